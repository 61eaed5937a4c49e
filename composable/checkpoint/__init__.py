"""Write, read and verify checkpoints, without pickle: loading one never executes code."""

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
    Found,
    find,
    read,
    verify,
    write,
)
from composable.checkpoint.manifest import FileRecord, Manifest
from composable.checkpoint.tree import pack, unpack
from composable.checkpoint.weights import LoadedWeights, load_weights

__all__ = [
    "Broken",
    "CheckpointError",
    "CheckpointExistsError",
    "Contents",
    "DamagedCheckpointError",
    "FileRecord",
    "Found",
    "LoadedWeights",
    "Manifest",
    "MismatchError",
    "MissingCheckpointError",
    "UnreadableCheckpointError",
    "UnsavableError",
    "UnwritableCheckpointError",
    "VersionError",
    "find",
    "load_weights",
    "pack",
    "read",
    "unpack",
    "verify",
    "write",
]
