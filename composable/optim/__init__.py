"""Schedules as pure functions of time."""

from composable.optim.schedules import Schedule, constant, cosine, linear, step

__all__ = ["Schedule", "constant", "cosine", "linear", "step"]
