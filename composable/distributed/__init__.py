"""Runs of many processes."""

from composable.distributed.processes import ProcessError, Processes
from composable.distributed.shards import Shards
from composable.distributed.strategies import DDP

__all__ = ["DDP", "ProcessError", "Processes", "Shards"]
