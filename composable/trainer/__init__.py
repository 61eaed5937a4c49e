"""The Trainer: a loop that fires events, runs the composed step, and carries out requests."""
