"""Read blocks of tensors from files of safetensors, each file in one sequential pass."""

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs
import torch
from torch import Tensor

from composable.checkpoint._json import JSON
from composable.checkpoint._reader import Input, Inputs, check_sizes, check_state
from composable.checkpoint._safetensors import Entry, allocate, chunks_of, fill, read_header
from composable.checkpoint.errors import DamagedCheckpointError, UnreadableCheckpointError
from composable.checkpoint.layout import Region, cover
from composable.checkpoint.manifest import Manifest

__all__ = [
    "Fetch",
    "Headers",
    "check_all",
    "fetcher",
    "hash_files",
    "read_headers",
    "read_regions",
    "tensor_inputs",
]


def check_all(inputs: Inputs, *, keep: bool) -> tuple[Manifest, dict[str, Tensor], JSON]:
    """Read and check all files of a checkpoint."""
    manifest = check_sizes(inputs)
    data = check_state(inputs)
    headers = read_headers(tensor_inputs(inputs))
    wanted = headers.tensors if keep else {}
    regions = {name: Region.whole(each.shape) for name, each in wanted.items()}
    return manifest, read_regions(inputs, headers, regions, everything=True), data


class Fetch(Protocol):
    """A function that reads a tensor, or a region of it, by name."""

    def __call__(self, name: str, region: Region | None = None) -> Tensor: ...


@attrs.frozen
class Headers:
    """What files say about their tensors."""

    tensors: Mapping[str, Tensor]
    """The whole tensors by name, on the meta device, without values."""
    entries: Mapping[str, list[Entry]]
    """The entries of each file, in the order of their bytes."""


def tensor_inputs(inputs: Inputs) -> dict[str, Input]:
    """Return the files of tensors of a checkpoint, by name."""
    return {name: inputs.files[name] for name in inputs.manifest.tensor_files}


def read_headers(files: Mapping[str, Input]) -> Headers:
    """Read the headers of files of tensors.

    Raises:
        DamagedCheckpointError: One is damaged, or their blocks of a tensor do not cover it.
    """
    entries = {name: read_header(file, file.size, file.where) for name, file in files.items()}
    blocks: dict[str, list[tuple[str, Entry]]] = {}
    for name, own in entries.items():
        for entry in own:
            blocks.setdefault(entry.name, []).append((files[name].where, entry))
    return Headers({name: _whole(name, own) for name, own in blocks.items()}, entries)


def _whole(name: str, blocks: list[tuple[str, Entry]]) -> Tensor:
    """Return the tensor that has the given blocks, each from a file."""
    where, first = blocks[0]
    regions = [entry.block for _, entry in blocks]
    shape = tuple(map(max, zip(*(region.ends for region in regions), strict=False)))
    if any(entry.dtype != first.dtype for _, entry in blocks) or not cover(shape, regions):
        files = ", ".join(where for where, _ in blocks[:4]) + (", ..." if len(blocks) > 4 else "")
        raise DamagedCheckpointError(
            f"tensor {name[:200]!r} is not divided into its blocks: they overlap, leave a gap, or "
            f"differ in dtype, in {files}."
        )
    return allocate(name, shape, first.dtype, where, "meta")


def read_regions(
    inputs: Inputs,
    headers: Headers,
    regions: Mapping[str, Region],
    *,
    everything: bool = False,
    verify: bool = True,
) -> dict[str, Tensor]:
    """Read a region of each of some tensors, after `read_headers`.

    Args:
        inputs: The open files.
        headers: Their headers.
        regions: The regions by the names of the tensors.
        everything: Read and verify all files, instead of those that have a part of the regions.
        verify: Compare the hash of each file that is read, which reads all of its bytes.
    """
    first = inputs.files[inputs.manifest.tensor_files[0]].where
    tensors = {
        name: allocate(name, region.sizes, headers.tensors[name].dtype, first)
        for name, region in regions.items()
    }
    for name, file in tensor_inputs(inputs).items():
        parts = {
            entry.name: part
            for entry in headers.entries[name]
            if entry.name in regions and (part := regions[entry.name].overlap(entry.block))
        }
        if not (parts or everything):
            continue
        file.hashing = verify
        for entry in headers.entries[name]:
            if entry.name not in parts:
                file.skip(entry.size)
                continue
            part = parts[entry.name]
            target = tensors[entry.name][part.within(regions[entry.name])]
            _read_part(file, part, entry.block, target)
        if verify:
            file.check(inputs.manifest.files[name])
    return tensors


def hash_files(inputs: Inputs, headers: Headers, names: Iterable[str]) -> None:
    """Compare the hashes of some files of tensors with the manifest, after `read_headers`."""
    for name in names:
        file = inputs.files[name]
        file.skip(sum(entry.size for entry in headers.entries[name]))
        file.check(inputs.manifest.files[name])


def fetcher(files: Mapping[str, Input], headers: Headers) -> Fetch:
    """Return a function that reads one tensor, or a region of it, and verifies no hash.

    Args:
        files: The open files of tensors, by name.
        headers: Their headers.
    """
    places: dict[str, list[tuple[Input, int, Region]]] = {name: [] for name in headers.tensors}
    for name, entries in headers.entries.items():
        file = files[name]
        file.hashing = False
        position = file.size - sum(entry.size for entry in entries)
        for entry in entries:
            places[entry.name].append((file, position, entry.block))
            position += entry.size

    def fetch(name: str, region: Region | None = None) -> Tensor:
        stored = headers.tensors[name]
        wanted = Region.whole(stored.shape) if region is None else region
        tensor = allocate(name, wanted.sizes, stored.dtype, places[name][0][0].where)
        try:
            for file, position, block in places[name]:
                if part := wanted.overlap(block):
                    file.seek(position)
                    _read_part(file, part, block, tensor[part.within(wanted)])
        except OSError as error:  # in the middle of writing another checkpoint
            raise UnreadableCheckpointError(
                f"{file.where} cannot be read: {error.strerror or error}."
            ) from error
        return tensor

    return fetch


def _read_part(file: Input, part: Region, block: Region, target: Tensor) -> None:
    """Read a part of a block that begins at the position of the file, and skip the rest.

    Args:
        file: The file.
        part: The region to read.
        block: The region that the file has.
        target: A tensor of the size of the part.
    """
    # Only the rows of the first dimension that have a part of the region are kept in memory.
    rows = Region(part.offsets[:1] + block.offsets[1:], part.sizes[:1] + block.sizes[1:])
    size = target.element_size()
    row = math.prod(block.sizes[1:])
    before = (part.offsets[0] - block.offsets[0]) * row if part.sizes else 0
    file.skip(before * size)
    straight = rows == part and target.is_contiguous()
    buffer = target if straight else torch.empty(rows.sizes, dtype=target.dtype)
    for chunk in chunks_of(buffer):
        fill(file, chunk, file.where)
    if not straight:
        target.copy_(buffer[part.within(rows)])
    file.skip((block.count - before - rows.count) * size)
