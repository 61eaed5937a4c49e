"""Read and write tensors in the safetensors format, in one sequential pass.

The format is the length of a JSON header, the header, and the bytes of the tensors. It is
implemented here, instead of using the `safetensors` library, so that each byte is hashed while it
is read or written, the bytes that are hashed are the bytes that are loaded, and no second copy is
made. Each tensor has a separate storage, so it can be kept without the others.

https://github.com/huggingface/safetensors#format

A file that has blocks of tensors says where they begin in its metadata, under the key and in the
form of `torch.distributed.checkpoint.HuggingFaceStorageWriter`, so that torch reads it too:

    {"DCP_SHARDING_INFO": '{"w": {"saved_offsets": [2, 0]}}'}
"""

import ctypes
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import attrs
import torch
from torch import Tensor
from typing_extensions import TypedDict

from composable._support import strict_json
from composable._support.printable import shorten
from composable.checkpoint.errors import DamagedCheckpointError, UnreadableCheckpointError
from composable.checkpoint.shards import Region
from composable.core.stateful import Kind, check_type

_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
DTYPES = {key: getattr(torch, name) for key, name in _NAMES.items() if hasattr(torch, name)}
"""The dtypes of the format that this version of PyTorch supports."""

DTYPE_NAMES = {dtype: key for key, dtype in DTYPES.items()}
_METADATA, _BLOCKS, _OFFSETS = "__metadata__", "DCP_SHARDING_INFO", "saved_offsets"
_MAX_HEADER = 100_000_000  # the limit of the safetensors library
MAX_DIMENSIONS = 64
_CHUNK = 1 << 22

Write = Callable[[bytes | memoryview], object]
"""A function that writes all of a buffer."""
ReadInto = Callable[[memoryview], int]
"""A function that reads into a buffer and returns the number of bytes; 0 at the end of the file."""


@attrs.frozen
class Entry:
    """The header entry of a tensor, or of a block of one."""

    name: str
    dtype: torch.dtype
    block: Region
    start: int
    """The position of its first byte in the file."""
    size: int
    """The size in bytes."""


def write_tensors(
    write: Write,
    tensors: Mapping[str, Tensor],
    fetch: Callable[[str], Tensor] | None = None,
    offsets: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Write tensors on any device and with any strides, one after the other.

    Args:
        write: A function that appends to the file.
        tensors: The tensors, with dtypes in `DTYPES`.
        fetch: Returns the values of a tensor by its name, if `tensors` have none.
        offsets: Where each begins in a larger tensor, if they are blocks.
    """
    if sys.byteorder != "little":
        raise NotImplementedError("safetensors files are not supported on big-endian machines.")
    # Sorted by element size, then by name, like the safetensors library: all tensors are aligned,
    # and the same tensors give the same bytes.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    if offsets is not None:
        blocks = {name: {_OFFSETS: list(offsets[name])} for name in names}
        header[_METADATA] = {"format": "pt", _BLOCKS: strict_json.dump(blocks).decode()}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    raw = strict_json.dump(header)
    raw += b" " * (-len(raw) % 8)
    write(len(raw).to_bytes(8, "little") + raw)
    for name in names:
        # One at a time: the memory of a copy is freed before the next.
        tensor = as_stored(tensors[name] if fetch is None else fetch(name))
        for chunk in chunks_of(tensor):
            write(chunk)


def read_header(read_into: ReadInto, size: int, where: str) -> list[Entry]:
    """Read and check the header; return the entries in the order of their bytes.

    Args:
        read_into: Reads the file, from its start.
        size: The size of the whole file in bytes. No larger buffer is allocated.
        where: The file name for error messages.

    Raises:
        InvalidJSONError: The header is not JSON.
        StructureError: It is not the header of a file of tensors.
        DamagedCheckpointError: It does not describe a file of this size.
    """
    start = bytearray(8)
    fill(read_into, memoryview(start), where)
    length = int.from_bytes(start, "little")
    if length > min(size - 8, _MAX_HEADER):
        raise DamagedCheckpointError(
            f"{where} declares a header of {length} bytes, but the file has {size}, and a header "
            f"at most {_MAX_HEADER}: it is truncated, damaged, or not a safetensors file."
        )
    raw = bytearray(length)
    fill(read_into, memoryview(raw), where)
    header = strict_json.load(raw, f"the header of {where}")
    check_type(header, Mapping[str, Any], f"the header of {where}")
    metadata = header.pop(_METADATA, {})
    check_type(metadata, dict[str, str], f"the metadata of {where}")
    blocks = (
        strict_json.load(metadata[_BLOCKS], f"{_BLOCKS} of {where}")
        if _BLOCKS in metadata
        else None
    )
    if blocks is not None and not (isinstance(blocks, dict) and blocks.keys() == header.keys()):
        raise DamagedCheckpointError(f"{where}: {_BLOCKS} does not have the names of its tensors.")
    entries = [
        _entry(name, spec, None if blocks is None else blocks[name], where, 8 + length)
        for name, spec in header.items()
    ]
    entries.sort(key=lambda entry: (entry.start, entry.size))
    position = 8 + length
    for entry in entries:
        if entry.start != position:
            fault = "overlaps the previous tensor" if entry.start < position else "follows a gap"
            raise DamagedCheckpointError(f"{where}: tensor {entry.name!r} {fault}.")
        position += entry.size
    if position != size:
        raise DamagedCheckpointError(
            f"{where} has {size - 8 - length} bytes of tensors, but its header declares "
            f"{position - 8 - length}: it is truncated or damaged."
        )
    return entries


def allocate(
    name: str, sizes: Sequence[int], dtype: torch.dtype, where: str, device: str = "cpu"
) -> Tensor:
    """Return memory for a tensor of a file.

    Raises:
        UnreadableCheckpointError: There is not enough.
    """
    try:
        return torch.empty(sizes, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:  # also for a shape such as (0, 2**62, 4)
        raise UnreadableCheckpointError(
            f"{where}: tensor {name!r} of shape {list(sizes)} cannot be allocated."
        ) from error


class _Spec(TypedDict):
    """What a header has of a tensor."""

    dtype: Annotated[Any, Kind(f"one of {list(DTYPES)}", lambda v: v in list(DTYPES))]
    shape: Annotated[
        Any, Kind("a list of sizes", lambda v: are_counts(v) and len(v) <= MAX_DIMENSIONS)
    ]
    data_offsets: Annotated[Any, Kind("two sizes", lambda v: are_counts(v) and len(v) == 2)]


def _entry(name: str, spec: Any, block: Any, where: str, base: int) -> Entry:
    about = f"{where}: tensor {name[:200]!r}"
    if not strict_json.is_text(name):
        raise DamagedCheckpointError(f"{about}: the name is invalid Unicode.")
    check_type(spec, _Spec, about)
    dtype, shape, (begin, end) = DTYPES[spec["dtype"]], spec["shape"], spec["data_offsets"]
    needed = math.prod(shape) * dtype.itemsize
    if end - begin != needed:
        raise DamagedCheckpointError(
            f"{about} has {end - begin} bytes, but shape {shape} and dtype {spec['dtype']} require "
            f"{needed}."
        )
    start: Any = block.get(_OFFSETS) if isinstance(block, dict) else block
    start = [0] * len(shape) if block is None else start
    if not are_counts(start) or len(start) != len(shape):
        raise DamagedCheckpointError(f"{about} has invalid {_OFFSETS} {shorten(start, 80)}.")
    return Entry(name, dtype, Region(start, shape), base + begin, needed)


def are_counts(values: Any) -> bool:
    """Return whether a value is a list of non-negative integers."""
    if not isinstance(values, list) or not set(map(type, values)) <= {int}:
        return False
    return not values or (min(values) >= 0 and max(values) < 2**63)


def as_stored(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU whose memory has the bytes that a file has of it."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def chunks_of(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a contiguous CPU tensor without copying; by address, to avoid NumPy."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return
    view = memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")
    for start in range(0, size, _CHUNK):
        yield view[start : start + _CHUNK]


def fill(read_into: ReadInto, buffer: memoryview, where: str) -> None:
    """Read until a buffer is full."""
    filled = 0
    while filled < len(buffer):
        count = read_into(buffer[filled:])
        if not count:
            raise DamagedCheckpointError(f"{where} is truncated.")
        filled += count
