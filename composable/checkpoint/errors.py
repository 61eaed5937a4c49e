"""Errors of checkpoints. Each message names the file or the path in the tree, and the fault."""


class CheckpointError(Exception):
    """The base class of all errors of this package."""


class DamagedCheckpointError(CheckpointError):
    """The files differ from those that were written, or were never a checkpoint."""


class VersionError(CheckpointError):
    """The checkpoint has a schema that this version of the library cannot read."""


class MismatchError(CheckpointError):
    """The checkpoint is valid, but does not match the objects that it is loaded into."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at that path."""


class UnreadableCheckpointError(CheckpointError):
    """A file cannot be read. The `OSError` is the cause."""


class UnwritableCheckpointError(CheckpointError):
    """A file cannot be written: disk full, read-only or removed. The `OSError` is the cause."""


class TakenOverError(CheckpointError):
    """Another run or process writes to the folder in an object store, and this one stops."""


class CheckpointExistsError(CheckpointError, FileExistsError):
    """The path of the checkpoint to write exists already."""


class BrokenCheckpointWarning(UserWarning):
    """A checkpoint is damaged: an older one is used instead, or it is renamed."""


class UnsavableError(CheckpointError, TypeError):
    """A value in the tree cannot be saved without pickle."""
