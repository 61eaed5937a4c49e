"""Read the parts of tensors that a process needs."""

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from composable.checkpoint._reader import check_sizes, check_state, reading
from composable.checkpoint._regions import read_headers, read_regions, tensor_inputs
from composable.checkpoint.errors import MismatchError
from composable.checkpoint.files import Contents
from composable.checkpoint.layout import Region
from composable.checkpoint.manifest import as_target
from composable.checkpoint.shards import is_dtensor, like_dtensor, region_of
from composable.functional._checks import check_device, check_flag

__all__ = ["read_shards"]

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
    with reading(path) as inputs:
        manifest = check_sizes(inputs)
        data = check_state(inputs)
        headers = read_headers(tensor_inputs(inputs))
        models = {
            name: like(name, tuple(stored.shape)) if callable(like) else like.get(name)
            for name, stored in headers.tensors.items()
        }
        regions = {
            name: _region(name, tuple(stored.shape), models[name])
            for name, stored in headers.tensors.items()
        }
        tensors = read_regions(inputs, headers, regions, verify=verify)
    for name, tensor in tensors.items():
        model = models[name]
        tensors[name] = like_dtensor(tensor, model) if is_dtensor(model) else tensor.to(device)
    return Contents(tensors, data, manifest, path)


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
