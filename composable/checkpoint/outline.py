"""Read what a checkpoint contains, without the values of its tensors."""

import os

from composable.checkpoint._reader import check_sizes, check_state, reading
from composable.checkpoint._regions import hash_files, read_headers, tensor_inputs
from composable.checkpoint.files import Contents
from composable.checkpoint.manifest import as_target
from composable.distributed.processes import Processes

__all__ = ["read_outline"]


def read_outline(folder: str | os.PathLike[str], processes: Processes) -> Contents:
    """Read a checkpoint without the values of its tensors, and verify a share of their files.

    This function does not communicate. Each process verifies the manifest, the state, and
    the size and header of every file. It compares the hashes of its share of the files of
    tensors: if no process raises, all of the checkpoint is verified.

    Args:
        folder: The checkpoint to read.
        processes: The processes that call this function, with the same folder.

    Returns:
        The contents. The tensors are on the meta device: they have a shape and a dtype only.

    Raises:
        CheckpointError: See `read`.

    Example:
        >>> import pathlib, tempfile
        >>> from composable.checkpoint import write
        >>> from composable.checkpoint.outline import read_outline
        >>> from composable.distributed import Processes
        >>> path = write(pathlib.Path(tempfile.mkdtemp()) / "it", {"w": torch.arange(6)}, None)
        >>> read_outline(path, Processes()).tensors["w"].shape
        torch.Size([6])
    """
    path = as_target("folder", folder)
    with reading(path) as inputs:
        manifest = check_sizes(inputs)
        data = check_state(inputs)
        headers = read_headers(tensor_inputs(inputs))
        hash_files(inputs, headers, manifest.tensor_files[processes.rank :: processes.size])
    return Contents(dict(headers.tensors), data, manifest, path)
