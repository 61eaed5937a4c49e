"""Write a checkpoint as a folder of files, atomically.

The files are written to a temporary folder next to the target, synced to disk, and the folder is
renamed in one operation. The manifest holds the size and the hash of each file, and a hash of
itself, so files that were changed, truncated or exchanged are detected.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from composable._support.strict_json import JSON
from composable.checkpoint.atomic import clean, staging, writable, write_file
from composable.checkpoint.manifest import TENSORS
from composable.checkpoint.request import Request, as_request, finish_folder
from composable.checkpoint.safetensors import write_tensors
from composable.checkpoint.shards import TensorShard, as_whole
from composable.distributed.processes import Processes


def write(
    folder: str | os.PathLike[str],
    tensors: Mapping[str, Tensor | TensorShard],
    data: JSON,
    *,
    overwrite: bool = False,
    info: Mapping[str, JSON] | None = None,
    processes: Processes | None = None,
) -> Path:
    """Write a checkpoint atomically: a reader sees either all of it or none.

    With several processes, all of them call this function, and each writes a separate file. The
    processes must share the file system of the folder. If one fails, all raise, and the folder is
    not written.

    Args:
        folder: The checkpoint to write. Its parent folder must exist.
        tensors: The tensors by name; with several processes, the same on each as on rank 0, but for
            whole tensors that only rank 0 has. A `DTensor` and a `TensorShard` are the part of a
            tensor that this process has. Any other tensor is whole, with equal values on each
            process, and is written by one of them.
        data: The rest of the state, as JSON: see `pack`.
        overwrite: Replace an existing checkpoint. It is deleted once the new one is on disk.
        info: Entries for the manifest, as JSON. `find` sorts by `batch`.
        processes: The processes that write it together. `data`, `overwrite` and `info` are taken
            from rank 0. Default: this process alone.

    Returns:
        The absolute path of the folder.

    Raises:
        CheckpointExistsError: `folder` exists, and is not a checkpoint or `overwrite` is False.
        UnsavableError: `data` or `info` is not JSON, the format does not support a dtype, or the
            parts of a tensor overlap or leave a gap.
        UnwritableCheckpointError: The files cannot be written. An existing checkpoint is kept.
        ProcessError: Another process ended, or raised an error of another type.
    """

    def check() -> Request:
        return as_request(folder, tensors, data, overwrite=overwrite, info=info)

    if processes is not None and not isinstance(processes, Processes):
        raise TypeError(f"processes={processes!r} must be Processes, or None.")
    if processes is not None and processes.several:
        from composable.checkpoint._together import write_together  # on use

        return write_together(check, processes)
    request = check()
    whole = {name: as_whole(name, tensor) for name, tensor in request.tensors.items()}
    return write_whole(attrs.evolve(request, tensors=whole))


def write_whole(request: Request, fetch: Callable[[str], Tensor] | None = None) -> Path:
    """Write a checkpoint with one file, of whole tensors.

    Args:
        request: What to write.
        fetch: Returns the values of a tensor by its name, if the request's tensors have none.
    """
    tensors: Any = request.tensors
    with writable(request.target):
        with staging(request.target, request.overwrite) as partial:
            file = write_file(partial / TENSORS, lambda out: write_tensors(out, tensors, fetch))
            finish_folder(request, partial, {TENSORS: file})
        clean(request.target)
    return request.target
