"""Observers: what watches a run, and asks."""

from composable.callbacks.checkpoint_saver import CheckpointSaver, UnsavedCheckpointWarning
from composable.callbacks.run_recorder import RunRecorder

__all__ = ["CheckpointSaver", "RunRecorder", "UnsavedCheckpointWarning"]
