"""The loss of a batch, of its parts, and what it is a mean over."""
