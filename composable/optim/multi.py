"""One optimizer of several."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Any

import torch
from torch.optim import Optimizer

from composable.optim.schedule_free import ScheduleFree
from composable.optim.wrapping import loss_of, restore_dtypes


class MultiOptimizer(Optimizer):
    """Several optimizers with different parameters, as one.

    It has the parameter groups and the states of all, so that schedulers, loss scaling and
    checkpoints work as with one optimizer. Each step calls every optimizer's, in order.

    Args:
        optimizers: The optimizers. Their states become one mapping; their groups stay separate.

    Raises:
        TypeError: An item is not an optimizer.
        ValueError: There is none, or two have the same parameter.

    Example:
        >>> from composable.optim import MultiOptimizer
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = MultiOptimizer(
        ...     [torch.optim.SGD([model.weight], lr=0.1), torch.optim.Adagrad([model.bias], lr=0.5)]
        ... )
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.1, 0.5]
    """

    optimizers: tuple[Optimizer, ...]

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        given = tuple(optimizers) if isinstance(optimizers, (list, tuple)) else (optimizers,)
        for one in given:
            if not isinstance(one, Optimizer):
                raise TypeError(
                    f"optimizers={optimizers!r} must be a list of optimizers, and {one!r} is not "
                    "one."
                )
        held = [id(p) for one in given for group in one.param_groups for p in group["params"]]
        if not given or len(held) != len(set(held)):
            raise ValueError(
                f"optimizers={[type(one).__name__ for one in given]!r} must be one or more "
                "optimizers without parameters in common."
            )
        self.optimizers = given
        self._share_states()
        first, *others = (one.defaults for one in given)
        common = {key: value for key, value in first.items() if all(key in more for more in others)}
        super().__setstate__({"defaults": common})  # the hooks; each optimizer has its groups

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @param_groups.setter
    def param_groups(self, groups: Iterable[dict[str, Any]]) -> None:
        remaining = iter(groups)
        for optimizer in self.optimizers:
            optimizer.param_groups = list(islice(remaining, len(optimizer.param_groups)))

    @property
    def state(self) -> "defaultdict[Any, Any]":
        """The states of all parameters: one mapping, which the optimizers share."""
        return self.optimizers[0].state

    @state.setter
    def state(self, state: "defaultdict[Any, Any]") -> None:
        for optimizer in self.optimizers:
            optimizer.state = state

    def _share_states(self) -> None:
        state: defaultdict[Any, Any] = defaultdict(dict)
        for optimizer in self.optimizers:
            state.update(optimizer.state)
        self.state = state

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "optimizers": self.optimizers}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Adopt the optimizers of a copy, each a copy, or the values of `load_state_dict`."""
        values = dict(state)
        self.optimizers = tuple(map(copy, values.pop("optimizers", ()))) or self.optimizers
        if "param_groups" in values:
            self.param_groups, loaded = values.pop("param_groups"), values.pop("state")
            for one in self.optimizers:  # it may complete its groups and states
                held = [p for group in one.param_groups for p in group["params"] if p in loaded]
                own = defaultdict(dict, {p: loaded[p] for p in held})
                one.__setstate__({"state": own, "param_groups": one.param_groups})
            self._share_states()
        super().__setstate__(values)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, as of any optimizer; states keep the dtypes that one gives them."""
        super().load_state_dict(state_dict)
        groups = iter(state_dict["param_groups"])
        for optimizer in base_optimizers(self.optimizers):
            own = list(islice(groups, len(optimizer.param_groups)))
            restore_dtypes(optimizer, {**state_dict, "param_groups": own})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise a TypeError: a group belongs to one of the optimizers."""
        raise TypeError(
            "a MultiOptimizer has no groups itself: call add_param_group of one of its optimizers."
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call the step of each optimizer.

        Args:
            closure: A function that computes the loss and the gradients again, and returns the
                loss; it is called once.
        """
        loss = loss_of(closure)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss


def base_optimizers(optimizers: Iterable[Optimizer]) -> Iterator[Optimizer]:
    """Iterate over optimizers, and over the parts of each `MultiOptimizer` instead of itself."""
    for optimizer in optimizers:
        if isinstance(optimizer, MultiOptimizer):
            yield from base_optimizers(optimizer.optimizers)
        else:
            yield optimizer


def schedule_free_parts(optimizers: Iterable[Optimizer]) -> list[ScheduleFree]:
    """Return the schedule-free optimizers, also within a `MultiOptimizer`."""
    return [one for one in base_optimizers(optimizers) if isinstance(one, ScheduleFree)]
