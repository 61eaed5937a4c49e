"""What can be wrong with a checkpoint. Each message names the file or the path, and the fault."""

__all__ = [
    "CheckpointError",
    "CheckpointExistsError",
    "DamagedCheckpointError",
    "MismatchError",
    "MissingCheckpointError",
    "UnreadableCheckpointError",
    "UnsavableError",
    "UnwritableCheckpointError",
    "VersionError",
]


class CheckpointError(Exception):
    """Something is wrong with a checkpoint; every error of this package is one of these."""


class DamagedCheckpointError(CheckpointError):
    """The files are not what was written, or were never a checkpoint."""


class VersionError(CheckpointError):
    """The checkpoint has a layout that this version of the library can't read."""


class MismatchError(CheckpointError):
    """The checkpoint is whole, and does not fit what it is loaded into."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at that path."""


class UnreadableCheckpointError(CheckpointError):
    """The system refuses to read a file. The `OSError` is its cause."""


class UnwritableCheckpointError(CheckpointError):
    """The system refuses to write: disk full, read-only, vanished. The `OSError` is its cause."""


class CheckpointExistsError(CheckpointError, FileExistsError):
    """Something is in the place of the checkpoint that would be written."""


class UnsavableError(CheckpointError, TypeError):
    """A value in the tree can't be saved without pickle."""
