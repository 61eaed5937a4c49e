"""Resume a run: select and verify a checkpoint, compare it with the run, and restore its parts."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.checkpoint.errors import BrokenCheckpointWarning as BrokenCheckpointWarning
    from composable.resume.best import Best as Best
    from composable.resume.best import NoBestCheckpointWarning as NoBestCheckpointWarning
    from composable.resume.changes import ChangedRunWarning as ChangedRunWarning
    from composable.resume.foreign import ForeignCheckpointWarning as ForeignCheckpointWarning
    from composable.resume.lock import FolderInUseError as FolderInUseError
else:
    export_lazily(__name__)
