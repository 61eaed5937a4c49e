"""Read what a process needs of a checkpoint: the parts of tensors, or all but their values."""

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from composable.checkpoint._reader import reading
from composable.checkpoint.errors import MismatchError
from composable.checkpoint.files import Contents
from composable.checkpoint.manifest import as_target
from composable.checkpoint.shards import Region, is_dtensor, like_dtensor, region_of
from composable.distributed.processes import Processes
from composable.functional._checks import check_device, check_flag

__all__ = ["read_outline", "read_shards"]

Like = Mapping[str, Any] | Callable[[str, tuple[int, ...]], Any]


def read_shards(
    folder: str | os.PathLike[str],
    like: Like,
    *,
    device: torch.device | str = "cpu",
    verify: bool = True,
) -> Contents:
    """Read the part of each tensor that this process needs, on any number of processes.

    The checkpoint may have been written by any number of processes. This function does not
    communicate: each process reads its own parts.

    The manifest and the state are always verified. A file of tensors is read if it has
    a part that is needed. Its hash is compared with the manifest, for which all of its bytes are
    read, but only the parts that are needed are kept in memory.

    Args:
        folder: The checkpoint to read.
        like: What to read of each tensor: a mapping of names to values, such as the tensors that
            `pack` returns for the state to restore, or a function of the name and the shape of a
            tensor. For a `DTensor`, the result is a `DTensor` with the same mesh, placements and
            device. For a `Region`, the result is a plain tensor of its elements. For any other
            value, and a name that the mapping does not have, it is the whole tensor.
        device: The device of the plain tensors.
        verify: Compare the hashes of files of tensors. Otherwise only the bytes of the parts are
            read, and of the files of tensors only the sizes and headers are verified.

    Returns:
        The contents. `unpack` accepts them.

    Raises:
        MismatchError: A value of `like` has another shape than the tensor, or cannot be imitated.
        CheckpointError: See `read`.

    Example:
        >>> import pathlib, tempfile
        >>> from composable.checkpoint import Region, read_shards, write
        >>> path = write(pathlib.Path(tempfile.mkdtemp()) / "it", {"w": torch.arange(6)}, None)
        >>> read_shards(path, {"w": Region([2], [3])}).tensors
        {'w': tensor([2, 3, 4])}
    """
    if not (isinstance(like, Mapping) or _is_function(like)):
        raise TypeError(
            f"like={like!r} must be a mapping of names to tensors, or a function of a name and a "
            "shape."
        )
    check_device(device)
    check_flag("verify", verify)
    path = as_target("folder", folder)
    with reading(path) as opened:
        data, files = opened.contents()
        shapes = {name: tuple(stored.shape) for name, stored in files.tensors.items()}
        models = {
            n: like(n, shape) if callable(like) else like.get(n) for n, shape in shapes.items()
        }
        regions = {name: _region(name, shape, models[name]) for name, shape in shapes.items()}
        if verify:
            tensors = files.read(regions)
        else:
            tensors = {name: files.fetch(name, region) for name, region in regions.items()}
    for name, tensor in tensors.items():
        model = models[name]
        tensors[name] = like_dtensor(tensor, model) if is_dtensor(model) else tensor.to(device)
    return Contents(tensors, data, opened.manifest, path)


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
        >>> from composable.checkpoint.resharding import read_outline
        >>> from composable.distributed import Processes
        >>> path = write(pathlib.Path(tempfile.mkdtemp()) / "it", {"w": torch.arange(6)}, None)
        >>> read_outline(path, Processes()).tensors["w"].shape
        torch.Size([6])
    """
    path = as_target("folder", folder)
    with reading(path) as opened:
        data, files = opened.contents()
        files.read({}, verify=opened.manifest.share(processes))
    return Contents(files.tensors, data, opened.manifest, path)


def _is_function(value: Any) -> bool:
    """Return whether a value is a function of a name and a shape."""
    if not callable(value) or isinstance(value, (type, nn.Module)):
        return False
    try:
        inspect.signature(value).bind("name", (2, 3))
    except TypeError:
        return False
    return True


def _region(name: str, shape: tuple[int, ...], model: Any) -> Region:
    """Return the region of a tensor to read."""
    if isinstance(model, Region):
        if not model.fits(shape):
            raise MismatchError(
                f"tensor {name!r} has shape {list(shape)} in the checkpoint, which has no {model}."
            )
        return model
    if not is_dtensor(model):
        return Region.whole(shape)
    if tuple(model.shape) != shape:
        raise MismatchError(
            f"tensor {name!r} has shape {list(shape)} in the checkpoint, but "
            f"{list(model.shape)} in like."
        )
    try:
        region = region_of(model)
    except ValueError as error:
        raise MismatchError(f"tensor {name!r} of like {error}.") from None
    return Region(shape, (0,) * len(shape)) if region is None else region
