"""Copy a sharded checkpoint into one file of tensors."""

import os
from pathlib import Path

from composable.checkpoint._reader import check_json, check_sizes, reading
from composable.checkpoint._regions import fetcher, read_headers, read_regions, tensor_inputs
from composable.checkpoint._safetensors import write_tensors
from composable.checkpoint._writer import Request, write_whole
from composable.checkpoint.manifest import STATE, as_target
from composable.functional._checks import check_flag

__all__ = ["consolidate"]


def consolidate(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], *, overwrite: bool = False
) -> Path:
    """Copy a checkpoint into an ordinary one, with one file of tensors.

    All of the checkpoint is verified first. Then one tensor at a time is kept in memory.

    Args:
        folder: The checkpoint, sharded or not.
        out: The checkpoint to write, possibly the same. Its parent folder must exist.
        overwrite: Replace an existing checkpoint.

    Returns:
        The absolute path of the new checkpoint.

    Raises:
        CheckpointError: See `read` and `write`.

    Example:
        >>> import pathlib, tempfile
        >>> from composable.checkpoint import consolidate, read, write
        >>> runs = pathlib.Path(tempfile.mkdtemp())
        >>> path = write(runs / "ba10", {"w": torch.ones(2)}, None)
        >>> read(consolidate(path, runs / "one")).tensors
        {'w': tensor([1., 1.])}
    """
    source, target = as_target("folder", folder), as_target("out", out)
    check_flag("overwrite", overwrite)
    with reading(source) as inputs:
        manifest = check_sizes(inputs)
        state = bytes(check_json(inputs, STATE))
        headers = read_headers(tensor_inputs(inputs))
        read_regions(inputs, headers, {}, everything=True)
        fetch = fetcher(inputs.files, headers)
        request = Request(target, {}, state, overwrite, dict(manifest.info))
        return write_whole(request, lambda out: write_tensors(out, headers.tensors, fetch))
