"""Read the checkpoints of a run, on all of its processes together."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs
import torch
from torch import Tensor

from composable.checkpoint.errors import (
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    UnreadableCheckpointError,
    VersionError,
)
from composable.distributed.processes import ProcessError, Processes

if TYPE_CHECKING:
    from composable.checkpoint.files import Contents

__all__ = ["Reader", "replaced_while_read"]

Result = TypeVar("Result")

_ERRORS = {
    one.__name__: one
    for one in (
        DamagedCheckpointError,
        MismatchError,
        MissingCheckpointError,
        UnreadableCheckpointError,
        VersionError,
    )
}


@attrs.frozen
class Reader:
    """How the processes of a run read a checkpoint.

    Args:
        device: Where tensors go that were not on the CPU.
        processes: The processes, which call the methods together.
        divided: Whether each process needs only a part of the tensors. Their values are then read
            by `read_parts`, when the run is built and these parts are known.
    """

    device: torch.device
    processes: Processes = attrs.field(factory=Processes)
    divided: bool = False

    def read(self, path: Path) -> "Contents":
        """Read and verify a checkpoint; if `divided`, without the values of its tensors.

        If `divided`, each file is hashed by one of the processes; otherwise each of them hashes
        all that it reads.
        """
        from composable.checkpoint import files, outline  # on use: they are slow to import

        if self.divided:
            return outline.read_outline(path, self.processes)
        return files.read(path)

    def read_parts(self, contents: "Contents", like: Mapping[str, Tensor]) -> "Contents":
        """Read the values of the tensors of a checkpoint that was verified.

        Args:
            contents: What `read` returned.
            like: The parameters that are divided like the tensors of these names. All other tensors
                are read whole.

        Raises:
            DamagedCheckpointError: The checkpoint was replaced in the meantime.
        """
        from composable.checkpoint.resharding import read_shards  # on use: it is slow to import

        found = read_shards(contents.path, like, verify=False)
        if found.manifest != contents.manifest:
            raise replaced_while_read(contents.path)
        return found

    def agree(self, function: Callable[[], Result]) -> Result:
        """Call a function on every process; if it raises on any of them, raise on all.

        Raises:
            CheckpointError: The error of rank 0; or the checkpoint is damaged for another process.
            ProcessError: Another process failed with any other error.
        """
        if not self.processes.several:
            return function()
        failure, values = None, []
        try:
            values.append(function())
        except Exception as error:
            failure = error
        own = None if failure is None else [type(failure).__name__, str(failure)]
        faults = self.processes.gather(own)
        rank = next((rank for rank, fault in enumerate(faults) if fault is not None), None)
        if rank is None:
            return values[0]
        kind, message = faults[rank]
        # Where only rank 0 sees a checkpoint, an older one must not be used in its place.
        if kind in _ERRORS and (rank == 0 or kind == DamagedCheckpointError.__name__):
            raise _ERRORS[kind](message) from failure
        raise ProcessError(f"rank {rank} failed: {kind}: {message}") from failure


def replaced_while_read(path: Path) -> DamagedCheckpointError:
    """Return the error of a path at which there were two checkpoints."""
    return DamagedCheckpointError(f"{path} was replaced by another checkpoint while it was read.")
