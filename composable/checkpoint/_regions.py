"""Read blocks of tensors from the files of a checkpoint, each file in one sequential pass."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor

from composable.checkpoint._json import JSON
from composable.checkpoint._reader import Input, Inputs, check_json, check_sizes, check_state
from composable.checkpoint._safetensors import Entry, chunks_of, fill, read_header
from composable.checkpoint.errors import DamagedCheckpointError, UnreadableCheckpointError
from composable.checkpoint.layout import Region, Stored, parse_layout
from composable.checkpoint.manifest import LAYOUT, Manifest

__all__ = [
    "Fetch",
    "Headers",
    "check_all",
    "fetcher",
    "hash_files",
    "read_headers",
    "read_regions",
]


def check_all(inputs: Inputs, *, keep: bool) -> tuple[Manifest, dict[str, Tensor], JSON]:
    """Read and check all files of a checkpoint."""
    manifest = check_sizes(inputs)
    data = check_state(inputs)
    headers = read_headers(inputs)
    wanted = headers.tensors if keep else {}
    regions = {name: Region.whole(each.shape) for name, each in wanted.items()}
    return manifest, read_regions(inputs, headers, regions, everything=True), data


class Fetch(Protocol):
    """A function that reads a tensor, or a region of it, by name."""

    def __call__(self, name: str, region: Region | None = None) -> Tensor: ...


@attrs.frozen
class Headers:
    """What the files of a checkpoint say about its tensors."""

    tensors: Mapping[str, Stored]
    """The tensors by name."""
    entries: Mapping[str, list[Entry]]
    """The entries of each file of tensors, in the order of their bytes."""


def read_headers(inputs: Inputs) -> Headers:
    """Read the headers of the files of tensors, and compare them with the layout.

    Raises:
        DamagedCheckpointError: They differ.
    """
    entries = {}
    for name in inputs.manifest.tensor_files:
        file = inputs.files[name]
        entries[name] = read_header(file, file.size, file.where)
    if inputs.manifest.sharded:
        raw = check_json(inputs, LAYOUT)
        tensors = parse_layout(raw, len(entries), inputs.files[LAYOUT].where)
        _compare(inputs, tensors, entries)
        return Headers(tensors, entries)
    (only,) = entries.values()
    whole = {e.name: Stored(e.dtype, e.shape, {1: Region.whole(e.shape)}) for e in only}
    return Headers(whole, entries)


def _compare(
    inputs: Inputs, tensors: Mapping[str, Stored], entries: Mapping[str, list[Entry]]
) -> None:
    """Compare the layout with what each file has."""
    expected: list[dict[str, tuple[torch.dtype, tuple[int, ...]]]] = [{} for _ in entries]
    for name, stored in tensors.items():
        for number, region in stored.slices.items():
            expected[number - 1][name] = stored.dtype, region.sizes
    for (file, own), wanted in zip(entries.items(), expected, strict=True):
        found = {entry.name: (entry.dtype, entry.shape) for entry in own}
        if found != wanted:
            differing = next(n for n in {**found, **wanted} if found.get(n) != wanted.get(n))
            raise DamagedCheckpointError(
                f"{inputs.files[file].where}: tensor {differing[:200]!r} differs from {LAYOUT}."
            )


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
        name: _empty(region.sizes, headers.tensors[name].dtype, name, first)
        for name, region in regions.items()
    }
    for number, name in enumerate(inputs.manifest.tensor_files, start=1):
        parts = {
            entry.name: part
            for entry in headers.entries[name]
            if entry.name in regions
            and (part := regions[entry.name].overlap(headers.tensors[entry.name].slices[number]))
        }
        if not (parts or everything):
            continue
        file = inputs.files[name]
        file.hashing = verify
        for entry in headers.entries[name]:
            if entry.name not in parts:
                file.skip(entry.size)
                continue
            part, block = parts[entry.name], headers.tensors[entry.name].slices[number]
            target = tensors[entry.name][part.within(regions[entry.name])]
            _read_part(file, part, block, target)
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
    for number, (name, entries) in enumerate(headers.entries.items(), start=1):
        file = files[name]
        file.hashing = False
        position = file.size - sum(entry.size for entry in entries)
        for entry in entries:
            block = headers.tensors[entry.name].slices[number]
            places[entry.name].append((file, position, block))
            position += entry.size

    def fetch(name: str, region: Region | None = None) -> Tensor:
        stored = headers.tensors[name]
        wanted = Region.whole(stored.shape) if region is None else region
        where = places[name][0][0].where if places[name] else name
        tensor = _empty(wanted.sizes, stored.dtype, name, where)
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


def _empty(sizes: Sequence[int], dtype: torch.dtype, name: str, where: str) -> Tensor:
    try:
        return torch.empty(sizes, dtype=dtype)
    except (RuntimeError, MemoryError) as error:  # also for a shape such as (0, 2**62, 4)
        raise UnreadableCheckpointError(
            f"{where}: tensor {name!r} of shape {list(sizes)} cannot be allocated."
        ) from error


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
