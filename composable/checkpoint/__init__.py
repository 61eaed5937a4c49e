"""Checkpoints: what is saved, how, and how it is read back. Nothing in a file is ever executed."""

from composable.checkpoint.errors import (
    CheckpointError,
    CheckpointExistsError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    UnreadableCheckpointError,
    UnsavableError,
    UnwritableCheckpointError,
    VersionError,
)
from composable.checkpoint.files import (
    Broken,
    Contents,
    FileRecord,
    Found,
    Manifest,
    find,
    read,
    verify,
    write,
)
from composable.checkpoint.tree import pack, unpack

__all__ = [
    "Broken",
    "CheckpointError",
    "CheckpointExistsError",
    "Contents",
    "DamagedCheckpointError",
    "FileRecord",
    "Found",
    "Manifest",
    "MismatchError",
    "MissingCheckpointError",
    "UnreadableCheckpointError",
    "UnsavableError",
    "UnwritableCheckpointError",
    "VersionError",
    "find",
    "pack",
    "read",
    "unpack",
    "verify",
    "write",
]
