"""Operations on lists of tensors by `torch._foreach_*`, and the dtypes to compute in."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def foreach(name: str, tensors: list[Tensor], *args: Any, **options: Any) -> list[Tensor]:
    """Call `torch._foreach_<name>`, or `torch.<name>` per tensor if that is not supported.

    In torch 2.13 the foreach operations have no vmap rule, and some derivatives are wrong.
    """
    batched = torch._C._functorch.is_batchedtensor
    if not any(tensor.requires_grad or batched(tensor) for tensor in tensors):
        return list(getattr(torch, f"_foreach_{name}")(tensors, *args, **options))
    single = torch.linalg.vector_norm if name == "norm" else getattr(torch, name)
    columns = [arg if isinstance(arg, list) else [arg] * len(tensors) for arg in args]
    return [single(*row, **options) for row in zip(tensors, *columns, strict=True)]


def foreach_(name: str, tensors: list[Tensor], *args: Any, **options: Any) -> list[Tensor]:
    """Call `foreach` in place if possible; the tensors must not be used elsewhere."""
    batched = torch._C._functorch.is_batchedtensor
    if any(tensor.requires_grad or batched(tensor) for tensor in tensors):
        return foreach(name, tensors, *args, **options)
    getattr(torch, f"_foreach_{name}_")(tensors, *args, **options)
    return tensors


def per_dtype(
    function: Callable[..., list[Tensor]], tensors: list[Tensor], *others: list[Tensor]
) -> list[Tensor]:
    """Call a function once for each device, dtype and kind of tensor, as a fused call requires.

    Tensors that are divided among processes (`DTensor`) are another kind.
    """
    groups: dict[tuple[torch.device, torch.dtype, bool], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kind = (tensor.device, tensor.dtype, hasattr(tensor, "device_mesh"))
        groups.setdefault(kind, []).append(index)
    results: dict[int, Tensor] = {}
    for group in groups.values():
        rows = [[column[i] for i in group] for column in (tensors, *others)]
        results |= dict(zip(group, function(*rows), strict=True))
    return [results[index] for index in range(len(tensors))]


def global_norm(tensors: list[Tensor]) -> Tensor:
    """Compute the L2 norm of one or more tensors together, in at least float32."""
    return total_norm(l2_norms(tensors))


def l2_norms(tensors: list[Tensor]) -> list[Tensor]:
    """Compute the L2 norm of each tensor, in at least float32."""
    return per_dtype(_norms, tensors)


def total_norm(norms: list[Tensor]) -> Tensor:
    """Compute the norm of one or more tensors together, given the norm of each."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms]))
    return norm


def _norms(group: list[Tensor]) -> list[Tensor]:
    return foreach("norm", group, 2.0, dtype=torch.promote_types(group[0].dtype, torch.float32))
