"""Observers, one a file. What they must remember is saved with the run."""

from composable.callbacks.checkpoint_saver import CheckpointSaver, UnsavedCheckpointWarning
from composable.callbacks.early_stopper import EarlyStopper
from composable.callbacks.speed_monitor import SpeedMonitor

__all__ = [
    "CheckpointSaver",
    "EarlyStopper",
    "SpeedMonitor",
    "UnsavedCheckpointWarning",
]
