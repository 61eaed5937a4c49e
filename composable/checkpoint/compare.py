"""Bitwise comparison of tensors."""

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from composable.checkpoint.safetensors import as_stored, chunks_of


def digest(tensor: Tensor) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a tensor's bytes.

    This synchronizes with the device.

    Example:
        >>> import torch
        >>> digest(torch.zeros(2)) == digest(torch.tensor([0.0, -0.0]))
        False
    """
    total = sha256()
    tensor = as_stored(tensor)  # kept alive: the chunks are views of its memory
    for chunk in chunks_of(tensor):
        total.update(chunk)
    return total.hexdigest()[:16]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bits: NaN is NaN, -0 is not 0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = as_stored(a), as_stored(b)
    return all(x == y for x, y in zip(chunks_of(a), chunks_of(b), strict=True))


def mismatched(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the names whose tensors differ or are missing in one mapping, the model's first."""
    for name in sorted({**a, **b}, key=_place):
        if name not in a or name not in b or not same_bits(a[name], b[name]):
            yield name


def _place(name: str) -> Any:
    """Sort the model first, and layer 2 before layer 10."""
    parts = re.split(r"(\d+)", name[:1000])
    return not name.startswith(("model.", "state/model/")), [
        (len(p), p) if p.isdigit() else (0, p) for p in parts
    ]


def describe_difference(a: Tensor | None, b: Tensor | None) -> str:
    """Describe the difference between two tensors, in words."""
    if a is None or b is None:
        return f"only the {'second' if a is None else 'first'} has it"
    if a.dtype != b.dtype or a.shape != b.shape:
        kinds = (f"{tensor.dtype} of shape {list(tensor.shape)}" for tensor in (a, b))
        return " and ".join(kinds)
    a, b = as_stored(a), as_stored(b)
    kind = torch.complex128 if a.is_complex() else torch.float64
    gap = (a.to(kind) - b.to(kind)).abs().max().item()
    return f"max abs difference {gap:.6g}"
