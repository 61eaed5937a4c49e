"""Mappings of tensors, and their interpolation, which all averages of weights share."""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from composable._support.checks import check_same_names, check_tensors
from composable._support.foreach import foreach, per_dtype

Floats: TypeAlias = Mapping[str, Float[Tensor, " ..."]]


def as_lists(**given: Floats) -> list[list[Tensor]]:
    """Return tensors by name as lists, in the order of the first; they must have the same names."""
    first, names = next(iter(given.items()))
    for name, tensors in given.items():
        check_tensors(name, tensors)
        check_same_names(first, names, name, tensors)
    return [[tensors[key] for key in names] for tensors in given.values()]


def lerp_tensors(
    average: Mapping[str, Tensor], current: Mapping[str, Tensor], weight: float
) -> dict[str, Tensor]:
    """Interpolate floating-point tensors, `average + weight * (current - average)`; copy others.

    An entry that is not finite in one of the two is taken from `current`, like tensors of 8 bits,
    in which an average would stall within rounding. Weights that are trained are finite, so this
    is omitted for tensors of `current` that require gradients: it would cost four times the rest.
    """
    check_tensors("average", average)
    check_tensors("current", current)
    check_same_names("average", average, "current", current)
    for name, tensor in average.items():
        if tensor.shape != current[name].shape:
            raise ValueError(
                f"average[{name!r}] has shape {tuple(tensor.shape)}, but current[{name!r}] has "
                f"{tuple(current[name].shape)}; pass tensors of one model."
            )
    means = _lerp(average, current, weight)
    return {
        name: means[name] if name in means else current[name].detach().to(kept.device, copy=True)
        for name, kept in average.items()
    }


def _lerp(
    average: Mapping[str, Tensor], current: Mapping[str, Tensor], weight: float
) -> dict[str, Tensor]:
    names = [name for name, tensor in average.items() if is_averaged(tensor)]
    if weight in (0, 1):  # a weight of 0 means not read
        taken = current if weight else average
        return {name: taken[name].detach().to(average[name], copy=True) for name in names}
    starts = [average[name].detach() for name in names]
    ends = [current[name].detach().to(average[name]) for name in names]
    # start + weight * (end - start) is exact if the two are equal; s * start + w * end is not.
    means = per_dtype(lambda start, end: foreach("lerp", start, end, weight), starts, ends)
    loose = [i for i, name in enumerate(names) if not current[name].requires_grad]
    pair = ([some[i] for i in loose] for some in (starts, ends))
    for i, ratio in zip(loose, per_dtype(_ratios, *pair), strict=True):
        # Equal entries are taken too: lerp turns -0.0 into 0.0.
        means[i] = torch.where(ratio.isnan(), ends[i], means[i])
    return dict(zip(names, means, strict=True))


def _ratios(starts: list[Tensor], ends: list[Tensor]) -> list[Tensor]:
    """Return NaN where two entries are equal, or one is not finite: 0 / 0 and inf / inf are NaN."""
    gaps = foreach("sub", ends, starts)
    return foreach("div", gaps, gaps)


def is_averaged(tensor: Tensor) -> bool:
    """Return whether a tensor is of a floating-point dtype in which an average moves."""
    return tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)
