"""An update: a part of a training step, with a loss and an optimizer."""

from collections.abc import Callable
from typing import Any

import attrs
from torch import nn
from torch.optim import Optimizer

from composable._support.checks import check_count
from composable.core.state import State


@attrs.frozen(eq=False)
class Update:
    """One update of a training step: pass several in `updates=` of the `Trainer`.

    Each is a whole step over the batch, in the order of the list: the forward and the backward
    pass of its loss, and the step of its optimizer. All other parameters require no gradient.

    Args:
        name: Names it in `state.update`, in logs, and in the random numbers of its forward passes.
        loss: `loss(model, batch)`, or `loss(model, batch, state)` with the `State` at the beginning
            of the update. It returns a tensor without dimensions, or a mapping of named terms that
            are logged; the term named "loss" is differentiated.
        optimizer: A function of the parameters that returns an optimizer:
            `functools.partial(torch.optim.Adam, lr=2e-4)`.
        parameters: The names of its parameters or modules, or patterns of names, such as
            "generator.*"; or a function of the name of a parameter or a buffer.
        every: It is taken in each `every`-th batch, or where a function of the state is true.
        times: How often it is taken in a batch.
        batch: `batch(batch, repetition)`: what its loss gets instead of the whole batch, such as a
            minibatch for each of the `times` repetitions, which are counted from 0. It may draw
            random numbers from PyTorch's default generator. With `accumulate_batches` or several
            processes it is called for each batch of the group.
        mean_over: What its loss is a mean over: see `loss_mean_over` of the `Trainer`.
        schedulers: Schedules or PyTorch schedulers of its optimizer.
        algorithms: Algorithms that act in this update only; averages have its weights only.

    Raises:
        TypeError: An argument is of the wrong type, such as `parameters` that are not named.
        ValueError: `every` or `times` is below 1, or the name is empty or contains a slash.

    Example:
        >>> from functools import partial
        >>> from composable import Trainer, Update
        >>> class Pair(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.encoder, self.critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        >>> def value_loss(model, batch):
        ...     return model.critic(model.encoder(batch).detach()).square().mean()
        >>> def encoder_loss(model, batch):
        ...     return -model.critic(model.encoder(batch)).mean()
        >>> sgd = partial(torch.optim.SGD, lr=0.1)
        >>> trainer = Trainer(
        ...     Pair(),
        ...     train_dataloader=[torch.randn(4, 2)],
        ...     max_duration="2ba",
        ...     progress_bar=False,
        ...     updates=[
        ...         Update("critic", loss=value_loss, parameters="critic.*", optimizer=sgd),
        ...         Update("encoder", loss=encoder_loss, parameters="encoder.*", optimizer=sgd),
        ...     ],
        ... )
        >>> sorted(trainer.fit().losses)
        ['critic', 'encoder']
    """

    name: str
    loss: Callable[..., Any] = attrs.field(kw_only=True)
    optimizer: Callable[..., Optimizer] = attrs.field(kw_only=True)
    parameters: Any = attrs.field(kw_only=True, default="*")
    every: int | Callable[[State], bool] = attrs.field(kw_only=True, default=1)
    times: int = attrs.field(kw_only=True, default=1)
    batch: Callable[[Any, int], Any] | None = attrs.field(kw_only=True, default=None)
    mean_over: Any = attrs.field(kw_only=True, default=None)
    schedulers: Any = attrs.field(kw_only=True, default=())
    algorithms: Any = attrs.field(kw_only=True, default=())

    def __attrs_post_init__(self) -> None:
        where = f"of the update {self.name!r}"
        if not isinstance(self.name, str):
            raise TypeError(f"name={self.name!r} of an update must be a string.")
        if not self.name or "/" in self.name:
            raise ValueError(
                f"name={self.name!r} of an update must be a name without a slash, such as "
                "'generator': it begins the names of its losses in logs."
            )
        for name in ("loss", "optimizer", "batch"):
            value = getattr(self, name)
            given = callable(value) or (name == "batch" and value is None)
            if not given or isinstance(value, (type, Optimizer)):
                shown = f"{type(value).__name__}(...)" if isinstance(value, Optimizer) else value
                raise TypeError(
                    f"{name}={shown} {where} must be a function, such as "
                    "optimizer=functools.partial(torch.optim.Adam, lr=2e-4)."
                )
        several = isinstance(self.parameters, (list, tuple, set, frozenset))
        for one in self.parameters if several else [self.parameters]:
            if not isinstance(one, str) and (isinstance(one, nn.Module) or not callable(one)):
                raise TypeError(
                    f"parameters {where} {'contains' if several else 'is'} an object of the type "
                    f"{type(one).__name__}: pass names of parameters or modules, such as "
                    "'generator', patterns such as 'generator.*', or a function of a name."
                )
        check_count(f"times {where}", self.times, 1)
        if not callable(self.every):
            check_count(f"every {where}", self.every, 1)

    @property
    def summary(self) -> str:
        """Its name, and when it is taken."""
        every, times = self.every, self.times
        when = [f"every={getattr(every, '__name__', every)}"] * (every != 1)
        when += [f"times={times}"] * (times != 1)
        return self.name + (f" ({', '.join(when)})" if when else "")

    def is_due(self, state: State) -> bool:
        """Return whether it is taken in the batch of a state."""
        if callable(self.every):
            return bool(self.every(state))
        return state.timestamp.batch % self.every == self.every - 1
