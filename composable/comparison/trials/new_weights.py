"""Check that each call of a build function returns weights that no earlier run has trained."""

from collections.abc import Callable

import torch
from torch import Tensor

from composable.comparison.trials.building import BuildError
from composable.trainer.trainer import Trainer

__all__ = ["check_new_weights"]


def check_new_weights(first: Trainer, second: Trainer, build: Callable[[], Trainer]) -> None:
    """Check that a Trainer does not begin with the weights that another one has trained.

    Trainers may share parameters whose values are set in each call: where two do, their values are
    changed, as training would, for one more call, and restored.

    Args:
        first: A Trainer.
        second: The Trainer of another call.
        build: Returns the Trainer of one more call.

    Raises:
        BuildError: A call continues the weights of an earlier one.
    """
    shared = _common(_trained(first), second)
    if not shared:
        return
    before = [one.detach().clone() for one in shared]
    try:
        with torch.no_grad():
            for one in shared:
                one.add_(1)
        changed = [one.detach().clone() for one in shared]
        third = build()
        kept = [one for one, value in zip(shared, changed, strict=True) if one.equal(value)]
        continued = _common(kept, third)
    finally:
        with torch.no_grad():
            for one, value in zip(shared, before, strict=True):
                one.copy_(value)
    if continued:
        raise BuildError(
            f"build returns a Trainer with {len(continued)} of the parameters of an earlier call, "
            "so each trial would continue from the weights of the one before; create the model "
            "inside of build, or set its weights there: model.load_state_dict(...)."
        )


def _trained(trainer: Trainer) -> list[Tensor]:
    """Return the parameters that the optimizers change."""
    return [
        parameter
        for optimizer in trainer.state.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]


def _common(parameters: list[Tensor], trainer: Trainer) -> list[Tensor]:
    """Return the parameters that the trainer trains too."""
    numbers = set(map(id, _trained(trainer)))
    return [one for one in parameters if id(one) in numbers]
