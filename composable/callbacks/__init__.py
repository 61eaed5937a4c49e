"""Observers: what watches a run, and asks."""

from composable.callbacks.checkpoint_saver import CheckpointSaver, UnsavedCheckpointWarning

__all__ = ["CheckpointSaver", "UnsavedCheckpointWarning"]
