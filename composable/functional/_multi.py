"""Many tensors in one call: `torch._foreach_*`, which the optimizers of torch are built on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["accurate", "global_norm", "multi", "multi_", "per_kind"]


def multi(name: str, tensors: list[Tensor], *args: Any, **options: Any) -> list[Tensor]:
    """Call `torch._foreach_<name>`, or `torch.<name>` in turn where that would not work.

    It has no rule for vmap, and its derivatives have faults (as of torch 2.13).
    """
    batched = torch._C._functorch.is_batchedtensor
    if not any(tensor.requires_grad or batched(tensor) for tensor in tensors):
        return list(getattr(torch, f"_foreach_{name}")(tensors, *args, **options))
    single = torch.linalg.vector_norm if name == "norm" else getattr(torch, name)
    columns = [arg if isinstance(arg, list) else [arg] * len(tensors) for arg in args]
    return [single(*row, **options) for row in zip(tensors, *columns, strict=True)]


def multi_(name: str, tensors: list[Tensor], *args: Any) -> list[Tensor]:
    """As `multi`, but in place where it can be: for tensors that nobody else holds."""
    batched = torch._C._functorch.is_batchedtensor
    if any(tensor.requires_grad or batched(tensor) for tensor in tensors):
        return multi(name, tensors, *args)
    getattr(torch, f"_foreach_{name}_")(tensors, *args)
    return tensors


def per_kind(
    function: Callable[..., list[Tensor]], tensors: list[Tensor], *others: list[Tensor]
) -> list[Tensor]:
    """Call with the tensors of one device and dtype at a time: a fused call takes no others."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(index)
    results: dict[int, Tensor] = {}
    for group in groups.values():
        rows = [[column[i] for i in group] for column in (tensors, *others)]
        results |= dict(zip(group, function(*rows), strict=True))
    return [results[index] for index in range(len(tensors))]


def accurate(dtype: torch.dtype) -> torch.dtype:
    """Give the dtype in which a value of this one is computed without avoidable rounding."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def global_norm(tensors: list[Tensor]) -> Tensor:
    """Take the L2 norm over all tensors together, in float32 at least; at least one is given."""
    norms = per_kind(_norms, tensors)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms]))
    return norm


def _norms(group: list[Tensor]) -> list[Tensor]:
    return multi("norm", group, 2.0, dtype=torch.promote_types(group[0].dtype, torch.float32))
