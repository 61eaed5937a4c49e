"""Write, read and verify checkpoints, without pickle: loading one never executes code."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.checkpoint.dcp import export_dcp as export_dcp
    from composable.checkpoint.dcp import import_dcp as import_dcp
    from composable.checkpoint.errors import CheckpointError as CheckpointError
    from composable.checkpoint.errors import CheckpointExistsError as CheckpointExistsError
    from composable.checkpoint.errors import DamagedCheckpointError as DamagedCheckpointError
    from composable.checkpoint.errors import MismatchError as MismatchError
    from composable.checkpoint.errors import MissingCheckpointError as MissingCheckpointError
    from composable.checkpoint.errors import UnreadableCheckpointError as UnreadableCheckpointError
    from composable.checkpoint.errors import UnsavableError as UnsavableError
    from composable.checkpoint.errors import UnwritableCheckpointError as UnwritableCheckpointError
    from composable.checkpoint.errors import VersionError as VersionError
    from composable.checkpoint.files import Broken as Broken
    from composable.checkpoint.files import Contents as Contents
    from composable.checkpoint.files import Found as Found
    from composable.checkpoint.files import consolidate as consolidate
    from composable.checkpoint.files import find as find
    from composable.checkpoint.files import read as read
    from composable.checkpoint.files import read_shards as read_shards
    from composable.checkpoint.files import verify as verify
    from composable.checkpoint.manifest import FileRecord as FileRecord
    from composable.checkpoint.manifest import Manifest as Manifest
    from composable.checkpoint.shards import Region as Region
    from composable.checkpoint.shards import TensorShard as TensorShard
    from composable.checkpoint.tree import pack as pack
    from composable.checkpoint.tree import unpack as unpack
    from composable.checkpoint.weights import LoadedWeights as LoadedWeights
    from composable.checkpoint.weights import load_weights as load_weights
    from composable.checkpoint.writer import write as write
else:
    export_lazily(__name__)
