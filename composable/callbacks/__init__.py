"""Callbacks, one per file. Their state is saved in checkpoints."""

from composable.callbacks.checkpoint_saver import CheckpointSaver, UnsavedCheckpointWarning
from composable.callbacks.early_stopper import EarlyStopper
from composable.callbacks.speed_monitor import SpeedMonitor

__all__ = [
    "CheckpointSaver",
    "EarlyStopper",
    "SpeedMonitor",
    "UnsavedCheckpointWarning",
]
