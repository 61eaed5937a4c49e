"""Callbacks, one per file. Their state is saved in checkpoints."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.callbacks.checkpoint_saver import CheckpointSaver as CheckpointSaver
    from composable.callbacks.checkpoint_saver import (
        UnsavedCheckpointWarning as UnsavedCheckpointWarning,
    )
    from composable.callbacks.early_stopper import EarlyStopper as EarlyStopper
    from composable.callbacks.speed_monitor import SpeedMonitor as SpeedMonitor
else:
    export_lazily(__name__)
