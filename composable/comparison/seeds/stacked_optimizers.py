"""Optimizers of several runs as one, where each element of a parameter is updated by itself."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from composable.comparison.seeds.stacking import NotStackable, Stack
from composable.optim.muon import Muon
from composable.optim.schedule_free import AdamWScheduleFree, SGDScheduleFree
from composable.optim.stepping import OptimizerSteps, count_skipped_step

__all__ = ["ELEMENTWISE", "SEED_BY_SEED", "StackedOptimizers", "refusal", "stackable"]

ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
)
"""The optimizers whose steps are the same on stacked parameters."""

SEED_BY_SEED = (Muon, SGDScheduleFree, AdamWScheduleFree)
"""The optimizers that step for each seed by itself, after gradients that are computed together."""


def refusal(optimizers: Sequence[Optimizer]) -> str | None:
    """Return why seeds with these optimizers cannot be computed together, or None.

    An optimizer that divides a gradient by its own size or takes its sign, such as Rprop, makes
    steps of full size of the rounding errors of a gradient that is 0.
    """
    for one in optimizers:
        if type(one) not in (*ELEMENTWISE, *SEED_BY_SEED):
            return (
                f"{type(one).__name__} is not one of the optimizers that keep rounding errors small"
            )
    return None


def stackable(optimizers: Sequence[Optimizer]) -> bool:
    """Return whether the optimizers of a run can step for several runs at once."""
    return all(
        type(one) in ELEMENTWISE
        and not one._optimizer_step_pre_hooks
        and not one._optimizer_step_post_hooks
        and not any(isinstance(v, Tensor) for group in one.param_groups for v in group.values())
        for one in optimizers
    )


class StackedOptimizers:
    """Optimizers of stacked parameters, whose states the runs' own optimizers see as views.

    Args:
        stack: The stacked models.
        runs: The optimizers of each run.

    Raises:
        NotStackable: They differ, or have other parameters than the models.
    """

    def __init__(self, stack: Stack, runs: Sequence[tuple[Optimizer, ...]]) -> None:
        self.runs = tuple(runs)
        self._names = [{id(p): name for name, p in own.items()} for own in stack.own]
        self._stack = stack
        self._step = OptimizerSteps()
        self._stacked = tuple(self._built(column) for column in zip(*runs, strict=True))
        self._share_state()

    def _built(self, column: Sequence[Optimizer]) -> Optimizer:
        groups = []
        for rows in zip(*(one.param_groups for one in column), strict=True):
            names = [
                [known.get(id(p)) for p in group["params"]]
                for known, group in zip(self._names, rows, strict=True)
            ]
            if None in names[0] or any(row != names[0] for row in names):
                raise NotStackable("the optimizers have parameters that the models don't have")
            params = [self._stack.parameters[name] for name in names[0]]  # type: ignore[index]
            groups.append({**_options(rows), "params": params})
        kind = type(column[0])
        accepted = inspect.signature(kind).parameters  # AdamW has a default that it does not take
        defaults = {k: v for k, v in column[0].defaults.items() if k in accepted}
        made: Optimizer = kind(groups, **defaults)
        self._take_state(made, column)
        return made

    def _take_state(self, made: Optimizer, column: Sequence[Optimizer]) -> None:
        for group, own in zip(made.param_groups, _transposed(column), strict=True):
            for parameter, row in zip(group["params"], own, strict=True):
                states = [o.state.get(p, {}) for o, p in zip(column, row, strict=True)]
                if any(one.keys() != states[0].keys() for one in states):
                    raise NotStackable("the states of the optimizers differ")
                if states[0]:
                    made.state[parameter] = {
                        key: _joined(key, [one[key] for one in states]) for key in states[0]
                    }

    def step(self) -> None:
        """Step for all runs.

        Raises:
            NotStackable: The options of the optimizers differ between the runs.
        """
        for made, column in zip(self._stacked, zip(*self.runs, strict=True), strict=True):
            groups = zip(*(one.param_groups for one in column), strict=True)
            for group, rows in zip(made.param_groups, groups, strict=True):
                group.update(_options(rows))
        known = self._known()
        self._step(self._stacked)
        if self._known() != known:
            self._share_state()
        for optimizers in self.runs:
            count_skipped_step(optimizers)

    def _known(self) -> int:
        return sum(len(state) for made in self._stacked for state in made.state.values())

    def _share_state(self, *, copy: bool = False) -> None:
        """Give each run its part of the states, or a copy."""
        for made, column in zip(self._stacked, zip(*self.runs, strict=True), strict=True):
            for group, own in zip(made.param_groups, _transposed(column), strict=True):
                for stacked, row in zip(group["params"], own, strict=True):
                    for i, (optimizer, parameter) in enumerate(zip(column, row, strict=True)):
                        if stacked in made.state:
                            optimizer.state[parameter] = {
                                key: _part(key, value, i, copy)
                                for key, value in made.state[stacked].items()
                            }

    def release(self) -> None:
        """Let each run step by itself from now on."""
        self._share_state(copy=True)


def _options(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    options = [{k: v for k, v in group.items() if k != "params"} for group in rows]
    if any(one != options[0] for one in options):
        raise NotStackable("the options of the optimizers differ between the seeds")
    return options[0]


def _transposed(column: Sequence[Optimizer]) -> list[list[tuple[Tensor, ...]]]:
    """Return, for each group and parameter, that of each run."""
    return [
        list(zip(*(group["params"] for group in rows), strict=True))
        for rows in zip(*(one.param_groups for one in column), strict=True)
    ]


_SHARED = ("step", "mu_product")
"""What depends on the number of steps alone."""


def _joined(key: str, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor) and key not in _SHARED:
        return torch.stack(values)
    if any(value != first for value in values):
        raise NotStackable("the states of the optimizers differ between the seeds")
    return first.clone() if isinstance(first, Tensor) else first


def _part(key: str, value: Any, i: int, copy: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    part = value if key in _SHARED else value[i]
    return part.clone() if copy else part
