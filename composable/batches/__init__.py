"""The batch: its examples, its input and target, and the call of the model."""
