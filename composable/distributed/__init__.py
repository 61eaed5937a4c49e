"""Runs of many processes."""

from composable.distributed.processes import ProcessError, Processes

__all__ = ["ProcessError", "Processes"]
