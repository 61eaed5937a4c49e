"""Gradient clipping: by global norm, by value, or adaptively per unit.

Norm: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks",
ICML 2013, https://arxiv.org/abs/1211.5063. Adaptive: Brock, De, Smith and Simonyan,
"High-Performance Large-Scale Image Recognition Without Normalization", ICML 2021,
https://arxiv.org/abs/2102.06171
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from composable._support.checks import (
    check_one_of,
    check_range,
    check_same_names,
    check_tensor,
    kind_of,
)
from composable._support.foreach import foreach, foreach_, global_norm, per_dtype

Tensors = Mapping[str, Tensor | None] | Sequence[Tensor | None]
Given = Tensors | Tensor | Iterator[Tensor | None]
Grads = TypeVar("Grads", bound=Tensors | Tensor)

SMALLEST_NORM = 1e-3  # the paper's floor: without it, weights of 0 would stay 0
METHODS = ("norm", "value", "adaptive")
_LAYOUTS = (torch.strided, torch.sparse_coo)


@overload
def clip_gradients(
    grads: Grads, *, threshold: float, method: str = "norm", params: Given | None = None
) -> Grads: ...


@overload
def clip_gradients(
    grads: Iterator[Tensor | None],
    *,
    threshold: float,
    method: str = "norm",
    params: Given | None = None,
) -> list[Tensor | None]: ...


def clip_gradients(
    grads: Any, *, threshold: float, method: str = "norm", params: Given | None = None
) -> Any:
    r"""Clip gradients by their global norm, by value, or adaptively per unit.

    With threshold $\lambda$, the three methods are

    $$g' = g \min\left(1, \frac{\lambda}{\lVert g \rVert}\right), \quad
    g' = \min(\max(g, -\lambda), \lambda), \quad
    g'_i = g_i \min\left(1, \lambda \frac{\max(\lVert w_i \rVert, 10^{-3})}{\lVert g_i
    \rVert}\right)$$

    "norm" clips the L2 norm of all gradients together, "value" each element, and "adaptive" each
    unit $i$: a row of the first dimension, such as a filter or the matrix of an expert, or the
    whole tensor if it has at most one dimension.

    Args:
        grads: Gradients, as a mapping or a sequence. None, for a parameter without a gradient, is
            kept. Sparse gradients, of the layout `torch.sparse_coo`, stay sparse; "adaptive" does
            not support them.
        threshold: Maximum norm, absolute value, or ratio of a unit's gradient norm to its weight
            norm; 0 or more.
        method: "norm", "value" or "adaptive".
        params: Parameters, with the names or the order of `grads`. Required for "adaptive".

    Returns:
        New gradients in a container of the same type; a dict for other mappings, a list for an
        iterator, and a tensor for a tensor. Norms are computed in at least float32.

        Non-finite gradients are not repaired. If the global norm is NaN, so are all results; if it
        is infinite, finite values become 0 and infinite ones NaN, as in `torch.nn.utils`. With
        "adaptive" this is limited to the unit. "value" clips infinities and keeps NaN.

    Raises:
        ValueError: `threshold` is negative, `method` is unknown, or `params` doesn't match `grads`.
        TypeError: An argument is of the wrong type, such as parameters in place of gradients, or a
            gradient is complex and `method` is "value".

    Example:
        >>> clip_gradients([torch.tensor([3.0]), None, torch.tensor([4.0])], threshold=1.0)
        [tensor([0.6000]), None, tensor([0.8000])]
    """
    check_one_of("method", method, METHODS)
    check_range("threshold", threshold, 0)
    grads, params = _collected(grads), _collected(params)
    entries = _entries("grads", grads, sparse=method != "adaptive")
    _check_gradients(grads, entries, method)
    if params is not None and method != "adaptive":
        _entries("params", params)  # invalid arguments raise even if they are unused
    whole = [grad.coalesce() if _is_sparse(grad) else grad for grad in entries]
    present = [g.values() if _is_sparse(g) else g for g in whole if g is not None]
    if not present:
        clipped = []
    elif method == "norm":
        clipped = _clip_norm(present, threshold)
    elif method == "value":
        clipped = foreach_("clamp_max", foreach("clamp_min", present, -threshold), threshold)
    else:
        clipped = _clip_adaptive(present, _matching(params, grads), threshold)
    rest = iter(clipped)
    return _like(grads, [one if one is None else _with_values(one, next(rest)) for one in whole])


def _is_sparse(grad: Tensor | None) -> TypeGuard[Tensor]:
    return grad is not None and grad.layout is torch.sparse_coo


def _with_values(grad: Tensor, values: Tensor) -> Tensor:
    """Return new values in the places of the values of a gradient, which may be sparse."""
    if not _is_sparse(grad):
        return values
    return torch.sparse_coo_tensor(
        grad.indices(), values, grad.shape, is_coalesced=True, check_invariants=False
    )


def _collected(tensors: Any) -> Any:
    """Return the tensors of an iterator as a list, and anything else as it is."""
    one_pass = isinstance(tensors, Iterable) and not isinstance(tensors, (Tensor, str, set))
    return list(tensors) if one_pass and not isinstance(tensors, (Mapping, Sequence)) else tensors


def _check_gradients(grads: Any, entries: list[Tensor | None], method: str) -> None:
    for index, grad in enumerate(entries):
        if isinstance(grad, nn.Parameter):
            raise TypeError(
                f"{_place('grads', grads, index)} must be a gradient, not a parameter; pass "
                "[p.grad for p in model.parameters()] or the like."
            )
        if grad is not None and not (grad.is_floating_point() or grad.is_complex()):
            raise TypeError(
                f"{_place('grads', grads, index)} must have a floating-point dtype, not "
                f"{grad.dtype}."
            )
        if grad is not None and grad.is_complex() and method == "value":
            raise TypeError(
                f"{_place('grads', grads, index)} must be real for method='value', since complex "
                f"numbers have no order, not {grad.dtype}; use method='norm' or 'adaptive'."
            )


def _place(name: str, tensors: Any, index: int) -> str:
    if isinstance(tensors, Tensor):
        return name
    return f"{name}[{list(tensors)[index] if isinstance(tensors, Mapping) else index!r}]"


def _clip_norm(grads: list[Tensor], threshold: float) -> list[Tensor]:
    # A clamp, as in torch.nn.utils.clip_grad_norm_: a branch would need a synchronization.
    scale = (threshold / (global_norm(grads) + 1e-6)).clamp(max=1.0)
    return per_dtype(lambda group: foreach("mul", group, scale.to(group[0])), grads)


def _clip_adaptive(grads: list[Tensor], params: list[Tensor], threshold: float) -> list[Tensor]:
    sizes = [_unit_norm(grad).clamp(min=1e-12) for grad in grads]
    weights = [_unit_norm(param.detach()) for param in params]
    bounds = [weight.clamp(min=SMALLEST_NORM) * threshold for weight in weights]
    scales = [
        (bound / size).clamp(max=1.0).to(grad)
        for bound, size, grad in zip(bounds, sizes, grads, strict=True)
    ]
    return per_dtype(lambda group, by: foreach("mul", group, by), grads, scales)


def _unit_norm(tensor: Tensor) -> Tensor:
    """Compute the norm over all dimensions but the first, or of a whole vector or scalar."""
    dims = tuple(range(1, tensor.ndim)) if tensor.ndim > 1 else None
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True, dtype=dtype)
    return norm


def _matching(params: Any, grads: Any) -> list[Tensor]:
    """Return the parameters of the gradients that are not None."""
    if params is None:
        raise ValueError('params=None must be the parameters for method="adaptive".')
    if isinstance(params, Mapping) and isinstance(grads, Mapping):
        check_same_names("params", params, "grads", grads)
        params = [params[name] for name in grads]
    held, given = _entries("params", params), _entries("grads", grads)
    pairs = list(zip(held, given, strict=False))
    shapes = [(None if p is None else p.shape, None if g is None else g.shape) for p, g in pairs]
    if len(held) != len(given) or any(g is not None and p != g for p, g in shapes):
        raise ValueError(
            f"params ({len(held)}) and grads ({len(given)}) must have the same number of tensors "
            "and the same shapes; pass both as mappings by name, or both as lists in one order."
        )
    return [cast(Tensor, p) for p, g in pairs if g is not None]


def _entries(name: str, tensors: Any, *, sparse: bool = False) -> list[Tensor | None]:
    if isinstance(tensors, Tensor):
        tensors = [tensors]
    if isinstance(tensors, str) or not isinstance(tensors, (Mapping, Sequence)):
        raise TypeError(
            f"{name} must be a tensor, or a mapping, a sequence or an iterator of tensors, not "
            f"{kind_of(tensors)}; pass [p.grad for p in model.parameters()] or the like."
        )
    entries: list[Any] = list(tensors.values() if isinstance(tensors, Mapping) else tensors)
    for index, tensor in enumerate(entries):
        if tensor is not None and not isinstance(tensor, Tensor):
            place = _place(name, tensors, index)
            check_tensor(place, tensor, advice="pass None for a missing gradient")
        if tensor is not None and tensor.layout not in _LAYOUTS[: 1 + sparse]:
            raise TypeError(
                f"{_place(name, tensors, index)} must be dense, not of layout {tensor.layout}; "
                "pass its to_dense(), or use embeddings with sparse=False."
            )
    return entries


def _like(grads: Any, clipped: list[Tensor | None]) -> Any:
    """Return the clipped gradients in a container of the type of `grads`."""
    if isinstance(grads, Tensor):
        return clipped[0]
    if isinstance(grads, Mapping):
        result = dict(zip(grads, clipped, strict=True))
        return OrderedDict(result) if isinstance(grads, OrderedDict) else result
    if isinstance(grads, list):
        return clipped
    make = getattr(grads, "_make", tuple)  # a named tuple is made from its fields
    return make(clipped)
