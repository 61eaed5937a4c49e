"""Gradient clipping: by the global norm, by value, or adaptively, unit by unit.

Norm: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks",
ICML 2013, https://arxiv.org/abs/1211.5063. Adaptive: Brock, De, Smith and Simonyan,
"High-Performance Large-Scale Image Recognition Without Normalization", ICML 2021,
https://arxiv.org/abs/2102.06171
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ._checks import check_one_of, check_range, check_same_names, check_tensor
from ._multi import accurate, global_norm, multi, multi_, per_kind

__all__ = ["clip_gradients"]

Tensors = Mapping[str, Tensor | None] | Sequence[Tensor | None]
Grads = TypeVar("Grads", bound=Tensors)

SMALLEST_NORM = 1e-3  # the paper's floor: without it what starts at zero would stay there
METHODS = ("norm", "value", "adaptive")


def clip_gradients(
    grads: Grads, *, threshold: float, method: str = "norm", params: Tensors | None = None
) -> Grads:
    r"""Bound the size of gradients.

    With threshold $\lambda$, the three methods are

    $$g' = g \min\left(1, \frac{\lambda}{\lVert g \rVert}\right), \quad
    g' = \min(\max(g, -\lambda), \lambda), \quad
    g'_i = g_i \min\left(1, \lambda \frac{\max(\lVert w_i \rVert, 10^{-3})}{\lVert g_i
    \rVert}\right)$$

    "norm" takes the L2 norm over all tensors together; "value" acts on each number; "adaptive"
    on each unit: a row $i$ of the first dimension, or the whole of a tensor with one dimension
    or none.

    Args:
        grads: Gradients, as a mapping or a sequence. None, for a parameter without one, passes
            through.
        threshold: The bound, 0 or more: of the norm, of a value, or of the ratio of a unit's
            gradient norm to its weight norm.
        method: "norm", "value" or "adaptive".
        params: The parameters, named or ordered like `grads`. Needed by "adaptive" only.

    Returns:
        New gradients in a container of the same type (a mapping that is no dict comes back as
        one). Norms are computed in float32 at least.

        A gradient that is not finite cannot be repaired: if the global norm is NaN every result
        is, and if it is infinite the finite values become 0 and the infinite ones NaN, as in
        torch's own function; "adaptive" confines this to the unit; "value" bounds infinities,
        and keeps NaN.

    Raises:
        ValueError: `threshold` is negative, `method` is unknown, or `params` do not match.
        TypeError: An argument is of the wrong type, such as an iterator or a single tensor.

    Example:
        >>> clip_gradients([torch.tensor([3.0]), None, torch.tensor([4.0])], threshold=1.0)
        [tensor([0.6000]), None, tensor([0.8000])]
    """
    check_one_of("method", method, METHODS)
    check_range("threshold", threshold, 0, advice="Leave clipping out instead.")
    entries = _entries("grads", grads)
    if params is not None and method != "adaptive":
        _entries("params", params)  # a mistake is one where it does nothing, too
    present = [grad for grad in entries if grad is not None]
    if not present:
        clipped = []
    elif method == "norm":
        clipped = _clip_norm(present, threshold)
    elif method == "value":
        clipped = multi_("clamp_max", multi("clamp_min", present, -threshold), threshold)
    else:
        clipped = _clip_adaptive(present, _matching(params, grads), threshold)
    rest = iter(clipped)
    return _like(grads, [None if grad is None else next(rest) for grad in entries])


def _clip_norm(grads: list[Tensor], threshold: float) -> list[Tensor]:
    # As in torch.nn.utils.clip_grad_norm_: a clamp, where a branch would wait for the number.
    scale = (threshold / (global_norm(grads) + 1e-6)).clamp(max=1.0)
    return per_kind(lambda group: multi("mul", group, scale.to(group[0])), grads)


def _clip_adaptive(grads: list[Tensor], params: list[Tensor], threshold: float) -> list[Tensor]:
    sizes = [_unit_norm(grad).clamp(min=1e-12) for grad in grads]
    weights = [_unit_norm(param.detach()) for param in params]
    bounds = [weight.clamp(min=SMALLEST_NORM) * threshold for weight in weights]
    scales = [
        (bound / size).clamp(max=1.0).to(grad)
        for bound, size, grad in zip(bounds, sizes, grads, strict=True)
    ]
    return per_kind(lambda group, by: multi("mul", group, by), grads, scales)


def _unit_norm(tensor: Tensor) -> Tensor:
    """Take the norm over all dimensions but the first; the whole one of a vector or number."""
    dims = tuple(range(1, tensor.ndim)) if tensor.ndim > 1 else None
    dtype = accurate(tensor.dtype)
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True, dtype=dtype)
    return norm


def _matching(params: Tensors | None, grads: Tensors) -> list[Tensor]:
    """Give the parameters of those gradients that there are."""
    if params is None:
        raise ValueError('params is None, but method="adaptive" needs the parameters.')
    if isinstance(params, Mapping) and isinstance(grads, Mapping):
        check_same_names("params", params, "grads", grads)
        params = [params[name] for name in grads]
    pairs = list(zip(_entries("params", params), _entries("grads", grads), strict=False))
    shapes = [(None if p is None else p.shape, None if g is None else g.shape) for p, g in pairs]
    if len(params) != len(grads) or any(g is not None and p != g for p, g in shapes):
        raise ValueError(
            f"params ({len(params)}) and grads ({len(grads)}) must match one by one, with the "
            "same "
            "shapes. Pass both as mappings by name, or both as lists in one order."
        )
    return [cast(Tensor, p) for p, g in pairs if g is not None]


def _entries(name: str, tensors: Tensors) -> list[Tensor | None]:
    if not isinstance(tensors, (Mapping, Sequence)):
        raise TypeError(
            f"{name} is a {type(tensors).__name__}, but must be a mapping or a sequence of "
            "tensors. "
            f"Make a list of it, as in [p.grad for p in model.parameters()]."
        )
    entries: list[Any] = list(tensors.values() if isinstance(tensors, Mapping) else tensors)
    for index, tensor in enumerate(entries):
        if tensor is not None and not isinstance(tensor, Tensor):
            key = list(tensors)[index] if isinstance(tensors, Mapping) else index
            check_tensor(f"{name}[{key!r}]", tensor, advice="None is for one without a gradient.")
        if tensor is not None and tensor.layout is not torch.strided:
            key = list(tensors)[index] if isinstance(tensors, Mapping) else index
            raise TypeError(
                f"{name}[{key!r}] has the layout {tensor.layout}, but must be dense, as of an "
                "embedding with sparse=False. Leave it out, or give its to_dense()."
            )
    return entries


def _like(grads: Grads, clipped: list[Tensor | None]) -> Grads:
    """Put the clipped gradients into a container of the same type."""
    result: Any
    if isinstance(grads, Mapping):
        result = dict(zip(grads, clipped, strict=True))
        return cast(Grads, OrderedDict(result) if isinstance(grads, OrderedDict) else result)
    if isinstance(grads, list):
        return cast(Grads, clipped)
    make = getattr(grads, "_make", tuple)  # a named tuple is made from its fields
    return cast(Grads, make(clipped))
