"""Steps on trial: train for some batches, and leave the run as it was."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import starmap, zip_longest
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable._support.tree import leaves_of, map_tensors, tensors_of
from composable.checkpoint.compare import same_bits
from composable.core.state import State
from composable.data.fetching import function_arity, is_map_style, without_workers
from composable.data.order import get_generator_states, is_stateful, set_generator_states
from composable.engines.modules import all_modules
from composable.optim.multi import base_optimizers
from composable.optim.stepping import restoring
from composable.trainer.guards import NonFiniteGuard
from composable.trainer.parameters import start_training
from composable.trainer.run import Run
from composable.trainer.training_data import TrainingData
from composable.trainer.undo import restore_tensors

_PARTS = ("loss_scaler", "loss_shares", "microbatches")
"""The parts of a run that a step changes."""


@attrs.frozen(eq=False)
class TrialRun:
    """A run whose next steps are undone at the end of a block."""

    run: Run
    attributes: "Attributes"

    def batches(self, loader: Iterable[Any] | None = None) -> Iterator[Any]:
        """Iterate without end over batches: by default, those that the run trains on next.

        Args:
            loader: Other batches: a list, or a `DataLoader` that fetches by index.

        Raises:
            ValueError: To read the batches would change the position of the loader.
        """
        given = self.run.data.loader if loader is None else loader
        name = "train_dataloader" if loader is None else "batches"
        if given is None:
            raise ValueError("train_dataloader=None: pass it to the Trainer, or pass batches.")
        listed = isinstance(given, (list, tuple)) or function_arity(given) == 2
        if not listed and (not is_map_style(given) or is_stateful(given)):
            raise ValueError(
                f"{name}={type(given).__name__} has a position, which reading it would "
                "change: pass batches as a list or a DataLoader that fetches by index."
            )
        try:
            yield from self._endless(without_workers(given), from_start=loader is not None)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error

    def _endless(self, given: Any, *, from_start: bool) -> Iterator[Any]:
        """Iterate over the batches of a loader again and again."""
        data = self.run.data
        limit = None if from_start else data.epoch_batches
        reader = TrainingData(given, None, data.batches_per_step, limit, engine=self.run.engine)
        state = self.run.state
        if from_start:
            state = state.evolve(timestamp=type(state.timestamp)())
        while True:
            count = 0
            for count, (batch, _, _) in enumerate(reader.batches(state), 1):  # noqa: B007
                yield batch
            if not count and not state.timestamp.batch_in_epoch:
                raise ValueError("the loader returned no batch; check the dataset.")
            reader.end_epoch()
            state = state.evolve(timestamp=state.timestamp.next_epoch())

    def step(self, batch: Any, number: int) -> Tensor:
        """Train on a batch at the time of the run, and return the loss.

        Args:
            batch: The batch.
            number: Its number in the trial, from which its random numbers follow.
        """
        run, state = self.run, self.run.state
        state = state.evolve_unchecked(
            batch=batch, outputs=None, key=state.key.fold("trial", number)
        )
        if run.after_dataloader is not None:
            state = run.after_dataloader(state)
        state = run.step(state)
        losses: Any = [one for name, one in state.losses.items() if "/" not in name] or [state.loss]
        return torch.stack([loss.detach() for loss in losses]).sum()


@contextmanager
def trial(run: Run) -> Iterator[TrialRun]:
    """Yield a trial; at the end of the block the run is as before, to the bit.

    Steps use the training weights, and fire no callbacks and loggers. Any loss is accepted.
    """
    guard, updates = run.guard, run.updates
    guard.flush()
    attributes = Attributes.of(run.state)
    undo = [
        attributes.restore,
        restore_tensors(run.state),
        *map(restoring, base_optimizers(run.state.optimizers)),
        *(_part(part) for name, part in run.parts.items() if name.partition(" ")[0] in _PARTS),
        *map(_loader, (run.data.loader, *(evaluator.dataloader for evaluator in run.evaluators))),
    ]
    run.guard = NonFiniteGuard("ignore", immediate=True)
    due = (attrs.evolve(update.update, every=1) for update in updates)
    run.updates = [attrs.evolve(one, update=now) for one, now in zip(updates, due, strict=True)]
    run.compose()
    try:
        start_training(run.state)
        yield TrialRun(run, attributes)
    finally:
        run.guard, run.updates = guard, updates
        for function in undo:
            function()


@attrs.frozen(eq=False)
class Attributes:
    """The attributes of the modules of a run, with copies of their tensors."""

    saved: list[tuple[nn.Module, dict[str, Any]]]

    @classmethod
    def of(cls, state: State) -> "Attributes":
        """Copy the attributes."""
        return cls([(one, map_tensors(torch.clone, _rest(one))) for one in all_modules(state)])

    def changed(self) -> list[tuple[nn.Module, str]]:
        """Return the attributes with other tensors or numbers, also in tuples, lists and dicts."""
        return [
            (module, name)
            for module, old in self.saved
            for name, new in {**dict.fromkeys(old), **_rest(module)}.items()
            if any(starmap(_differ, zip_longest(leaves_of(old.get(name)), leaves_of(new))))
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the attributes that have changed."""
        saved = dict(self.saved)
        for module, name in self.changed():
            vars(module).pop(name, None)
            if name in saved[module]:
                vars(module)[name] = map_tensors(torch.clone, saved[module][name])


_OWN = vars(nn.Module()).keys() - {"training"}
_VALUES = (Tensor, int, float, complex)


def _rest(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that neither every module has nor list its parameters."""
    rest = ((name, value) for name, value in vars(module).items() if name not in _OWN)
    return {n: v for n, v in rest if not any(isinstance(t, nn.Parameter) for t in tensors_of(v))}


def _differ(one: Any, other: Any) -> bool:
    """Return whether two leaves are not the same tensor or number; all else is taken for equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return not same_bits(one, other)
    has_value = isinstance(one, _VALUES) or isinstance(other, _VALUES)
    return has_value and (type(one) is not type(other) or one != other)


def _part(part: Any) -> Callable[[], None]:
    saved = copy.deepcopy(part.state_dict())
    return lambda: part.load_state_dict(saved)


def _loader(loader: Any) -> Callable[[], None]:
    """Return a function that restores the generators of a loader."""
    states = get_generator_states(loader)
    return lambda: set_generator_states(loader, states)
