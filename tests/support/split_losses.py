"""Losses of batches that are computed in parts, and whether they are those of the whole."""

from typing import Any

import torch
from torch import Tensor, nn

from composable import SplitLossError
from composable.algorithms import SAM, LabelSmoothing, MixUp, WholeLoss
from composable.distributed import DDP, FSDP2
from composable.distributed.processes import ProcessError
from tests.support.losses import CLASSES, OF_TORCH, RECOGNIZED, REFUSED
from tests.support.runs import gradients_of

FEATURES = 3
SIZES = [7, 6]
LOSSES = {**OF_TORCH, **RECOGNIZED, **REFUSED}
SPLITS: dict[str, dict[str, Any]] = {
    "grad_accum": {"grad_accum": 3},
    "microbatch_size": {"microbatch_size": 1},
    "accumulate_batches": {"accumulate_batches": 2},
    "shards": {"parallel": DDP(shards=3)},
    "accumulate_batches, grad_accum": {"accumulate_batches": 2, "grad_accum": 2},
    "shards, grad_accum": {"parallel": DDP(shards=2), "grad_accum": 2},
    "shards, accumulate_batches": {"parallel": DDP(shards=2), "accumulate_batches": 2},
    "all three": {"parallel": DDP(shards=2), "accumulate_batches": 2, "grad_accum": 2},
}
OF_PROCESSES: dict[str, dict[str, Any]] = {
    "processes": {"parallel": DDP()},
    "processes, all": {"parallel": DDP(shards=4), "accumulate_batches": 2, "grad_accum": 2},
    "processes, empty shards": {"parallel": DDP(shards=16)},
    "divided": {"parallel": FSDP2(), "accumulate_batches": 2},
    "divided, all": {"parallel": FSDP2(), "accumulate_batches": 2, "grad_accum": 2},
}
ALGORITHMS: dict[str, list[Any]] = {
    "plain": [],
    "MixUp": [MixUp()],
    "MixUp of losses": [MixUp(interpolate_loss=True)],
    "LabelSmoothing": [LabelSmoothing()],
}
WHOLE: dict[str, list[Any]] = {
    "WholeLoss": [WholeLoss()],
    "WholeLoss, MixUp": [WholeLoss(), MixUp()],
    "WholeLoss, LabelSmoothing": [WholeLoss(), LabelSmoothing()],
    "WholeLoss, SAM": [WholeLoss(), SAM(rho=0.5)],
}
PRECISIONS = {"fp32": 1e-4, "amp_bf16": 0.05}
"""How far the losses and gradients of parts may be from those of the whole, by rounding."""

Result = tuple[list[float], list[float]]
"""A loss, and all gradients: numbers, which processes send to each other."""


def model(dtype: torch.dtype = torch.float64) -> nn.Module:
    net = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.arange(1, parameter.numel() + 1).sin().view_as(parameter))
    return net


def examples(
    count: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Return inputs, and targets in which every class is there."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, FEATURES, generator=generator, dtype=dtype)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    return inputs, (targets + torch.arange(count)) % CLASSES


def parts_of(sizes: list[int], **data: Any) -> list[tuple[Tensor, Tensor]]:
    inputs, targets = examples(sum(sizes), **data)
    return list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def attempt(name: str, algorithms: str, precision: str, options: dict[str, Any]) -> Result | str:
    """Return the loss and all gradients of a step, or "refused", or why the loss does not fit."""
    sizes = SIZES if "accumulate_batches" in options else [sum(SIZES)]
    loader, rule = parts_of(sizes, dtype=torch.float32), {**ALGORITHMS, **WHOLE}[algorithms]
    given = {"loss_fn": LOSSES[name], "algorithms": rule, "precision": precision, **options}
    try:
        ((gradients, loss),) = gradients_of(model(torch.float32), loader, **given)
    except SplitLossError:
        return "refused"
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, ProcessError) and "failed: SplitLossError" in str(error):
            return "refused"  # by another process, for what its part of the batch reads
        return f"{type(error).__name__}: {error}"
    return [float(loss)], torch.cat([one.flatten() for one in gradients.values()]).tolist()


def attempts(names: list[str], *case: Any) -> dict[str, Any]:
    """Attempt a step with each of some losses; processes import this function.

    An error ends the connections of processes, so a loss that is refused must be the last.
    """
    return {name: attempt(name, *case) for name in names}


def outcome(name: str, whole: Result | str, found: Result | str, tolerance: float) -> str:
    """Return "right", "refused", "not a loss of the method" or what is wrong."""
    if isinstance(whole, str):
        return "not a loss of the method"
    if found == "refused":
        return found
    if isinstance(found, str):
        return f"{name} fails: {found}"
    pairs = [map(torch.tensor, pair) for pair in zip(whole, found, strict=True)]
    errors = [float((one - other).norm() / one.norm().clamp(min=0.01)) for one, other in pairs]
    return "right" if max(errors) <= tolerance else f"{name} is wrong by {max(errors):.2g}"
