"""Training steps of several updates: each a whole step over the batch, with its own loss.

    for update in updates:                  # each_update
        for repetition in range(update.times):
            if due: freeze the others; step; restore

An update sees a state in which `optimizers` has its own one only, `loss_fn` is its own, and all
other parameters require no gradient. So every part of a step (microbatches, sums over processes,
clipping, guards) works as in a run with one loss.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable.batches.precision import Precision, widest_float
from composable.core.algorithm import Algorithm
from composable.core.event import Event
from composable.core.key import Key
from composable.core.state import State
from composable.core.update import Update
from composable.core.window import Window
from composable.data.grouping import BatchGroup
from composable.engines.engine import Engine
from composable.engines.modules import Buffers, all_modules, largest_modules
from composable.engines.scaled import LossScaler, SkippedStep
from composable.engines.shares import LossShares, times, without_nothing
from composable.losses.loss import OutputLoss, check_scalar, loss_module
from composable.losses.part_weights import ADVICE, SplitLossError
from composable.optim.building import build_optimizers
from composable.optim.multi import base_optimizers
from composable.optim.per_name import UPDATE, PerGroup
from composable.optim.roles import ModelParameters, matches_pattern
from composable.optim.stepping import needs_closure, restoring
from composable.plan.combinators import Combined
from composable.plan.declarations import as_algorithm, as_list
from composable.trainer.guards import NonFiniteLossError
from composable.utils.reproducibility import seed_step

Step = Callable[[State], State]

_EMPTY: Mapping[str, Any] = MappingProxyType({})
_SURGERY = frozenset({Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.FIT_START})
_ALL = list(Event)
_STEP_EVENTS = frozenset(
    _ALL[_ALL.index(Event.BEFORE_TRAIN_BATCH) : _ALL.index(Event.AFTER_ZERO_GRAD) + 1]
)


# --- what a run is built from ---


def build_update_optimizers(updates: Sequence[Update], model: nn.Module) -> tuple[Optimizer, ...]:
    """Build the optimizer of each update. Two updates may share parameters.

    Raises:
        TypeError: The function of an update returns no optimizer.
        ValueError: An update has no parameter, or its optimizer has one that is not its own.
    """
    return tuple([_build(one, model) for one in updates])


def _build(update: Update, model: nn.Module) -> Optimizer:
    named = {name: p for name, p in model.named_parameters() if owns(update, name)}
    _check_patterns(update, model)
    module = loss_module(update.loss, model)
    if module is not None and any(True for _ in module.parameters()):
        raise ValueError(
            f"the loss of the update {update.name!r} has parameters: let it be a part of the model."
        )
    given = ModelParameters(named.values(), largest_modules(model, named.values()))
    try:
        (optimizer,) = build_optimizers(lambda _: update.optimizer(given), model)
    except (TypeError, ValueError) as error:
        error.args = (f"the update {update.name!r}: {error}",)
        raise
    own = {id(p) for p in named.values()}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if held - own:
        names = [name for name, p in model.named_parameters() if id(p) in held - own]
        raise ValueError(
            f"the optimizer of the update {update.name!r} has {', '.join(names[:3]) or 'others'}, "
            f"which parameters={update.parameters!r} doesn't match: let its function build it from "
            "the parameters that it gets."
        )
    for group in optimizer.param_groups:
        group[UPDATE] = update.name
    return optimizer


def owns(update: Update, name: str) -> bool:
    """Return whether a parameter or buffer of this name belongs to an update."""
    if callable(update.parameters):
        return bool(update.parameters(name))
    return any(matches_pattern(name, pattern) for pattern in _patterns(update))


def _patterns(update: Update) -> list[Any]:
    given = update.parameters
    return [given] if isinstance(given, str) else list(given)


def _check_patterns(update: Update, model: nn.Module) -> None:
    names = [name for name, _ in model.named_parameters()]
    patterns = [None] if callable(update.parameters) else _patterns(update)
    for pattern in patterns or [None]:
        found = (owns(update, n) if pattern is None else matches_pattern(n, pattern) for n in names)
        if not any(found):
            shown = update.parameters if pattern is None else pattern
            children = ", ".join(repr(name) for name, _ in model.named_children())
            raise ValueError(
                f"the update {update.name!r} has parameters={shown!r}, which match no parameter of "
                f"{type(model).__name__}; its modules are {children or 'none'}: pass their names, "
                "or patterns such as 'generator.*'."
            )


@attrs.frozen(eq=False)
class _OfUpdate(PerGroup):
    """A schedule of one update; the learning rates of the others are constant under it."""

    update: str = ""

    def schedule_of(self, group: Mapping[str, Any]) -> Any:
        if group.get(UPDATE) != self.update:
            return PerGroup(()).default
        own = self.schedules[0][1]
        return own.schedule_of(group) if isinstance(own, PerGroup) else own

    def check_names(self, groups: Any) -> None:
        own = self.schedules[0][1]
        if isinstance(own, PerGroup):
            own.check_names([one for one in groups if one.get(UPDATE) == self.update])


def schedules_of(
    updates: Sequence[Update], optimizers: Sequence[Optimizer], build: Callable[..., Any]
) -> list[Any]:
    """Return the schedules of all updates, and the torch schedulers that theirs build."""
    found = []
    for update, optimizer in zip(updates, optimizers, strict=True):
        for one in [build(given, [optimizer]) for given in as_list(update.schedulers)]:
            torch_one = isinstance(one, torch.optim.lr_scheduler.LRScheduler)
            own: Any = (("", one),)
            found.append(one if torch_one else _OfUpdate(own, update=update.name))
    return found


# --- algorithms of one update ---


@attrs.frozen(repr=False)
class _Within(Combined):
    """An algorithm that acts in one update, and outside of steps on its parameters alone."""

    update: Update = attrs.field(kw_only=True, eq=id)
    index: int = attrs.field(kw_only=True)

    def match(self, event: Event, state: State) -> bool:
        if event in _STEP_EVENTS:
            return state.update == self.update.name
        return True

    def apply(self, event: Event, state: State) -> State:
        if event in _STEP_EVENTS:
            return super().apply(event, state)
        with frozen_others(state.optimizers[self.index], state):
            new = super().apply(event, state)
        name = self.parts[0].name
        if new.averages is state.averages or name not in new.averages:
            return new
        kept = {n: one for n, one in new.averages[name].items() if owns(self.update, n)}
        return new.with_average(name, kept)

    def window(self) -> Window:
        name = self.update.name
        return Window(condition=f"in the update {name!r}", update=name)

    def describe(self, show: Callable[[Any], str]) -> str:
        return f"{self.update.name}: {show(self.parts[0])}"


def algorithms_of(updates: Sequence[Update]) -> list[Algorithm]:
    """Return the algorithms of all updates, each restricted to its own."""
    found: list[Algorithm] = []
    for i, update in enumerate(updates):
        for given in as_list(update.algorithms):
            one = as_algorithm(given, f"the update {update.name!r} contains")
            if not _SURGERY.isdisjoint(one.events) and one.declares:
                raise ValueError(
                    f"the update {update.name!r} has {one.name}, which acts before training, when "
                    "there are no updates: pass it to the Trainer."
                )
            one = _renamed(one, update.name)
            found.append(_Within((one,), name=one.name, update=update, index=i))
    return found


def _renamed(algorithm: Algorithm, update: str) -> Algorithm:
    """Return an algorithm whose name, and the names of its parts, begin with that of an update."""
    changes: dict[str, Any] = {"name": f"{update}/{algorithm.name}"}
    if algorithm.parts:
        changes["parts"] = tuple(_renamed(one, update) for one in algorithm.parts)
    return attrs.evolve(algorithm, **changes)


# --- a step ---


@attrs.frozen(eq=False)
class UpdateLoss(OutputLoss):
    """The loss of an update, which calls the model itself."""

    module: nn.Module = attrs.field(kw_only=True)
    function: Callable[..., Any] = attrs.field(kw_only=True)
    precision: Precision = attrs.field(kw_only=True)
    more: tuple[State, ...] = attrs.field(kw_only=True)
    """The state, if the function takes it."""

    def __call__(self, outputs: dict[str, Tensor], batch: Any) -> Tensor:
        """Compute the loss, and write its terms into the outputs.

        Raises:
            TypeError: It, or a term, is not a tensor.
            ValueError: It is not a differentiable scalar.
        """
        loss = self.function(self.module, self.precision.cast(batch), *self.more)
        where = f"the loss of the update {self.model!r}"
        if isinstance(loss, Mapping):
            terms = dict(loss)
            if "loss" not in terms:
                raise ValueError(
                    f"{where} returned {sorted(terms)}: the mapping needs 'loss', which is "
                    "differentiated."
                )
            loss = terms.pop("loss")
            outputs.update(
                {
                    name: check_scalar(one, f"{where}, {name!r},").detach()
                    for name, one in terms.items()
                }
            )
        if not check_scalar(loss, where).requires_grad and torch.is_grad_enabled():
            raise _no_gradient(self.model)
        return loss  # type: ignore[no-any-return]

    def per_example(self, outputs: Any, batch: Any) -> Tensor:
        raise TypeError(
            f"an algorithm weights examples, and the update {self.model!r} returns one loss for "
            "all: pass the algorithm in a run with loss_fn."
        )


def _no_gradient(name: str) -> ValueError:
    return ValueError(
        f"the loss of the update {name!r} has no gradient for its parameters: it detaches the "
        "outputs, or doesn't depend on them; all other parameters are frozen during the update."
    )


def _no_outputs(*_: Any) -> dict[str, Tensor]:
    """Stand for the forward pass of the model, which the loss of an update calls itself."""
    return {}


@attrs.define(eq=False)
class RunUpdate:
    """An update of a run, with what its steps remember: the shares of its loss, and its scale."""

    update: Update
    index: int
    shares: LossShares
    scaler: LossScaler
    loss: Callable[..., Any]
    """The loss, compiled where requested."""
    takes_state: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.takes_state = _takes_state(self.update.loss)


def _takes_state(loss: Callable[..., Any]) -> bool:
    """Return whether a loss has a third parameter without a default."""
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return False
    given = [one for one in parameters if one.kind <= one.POSITIONAL_OR_KEYWORD]
    return len([one for one in given if one.default is one.empty]) == 3


@attrs.define(eq=False)
class RunUpdates:
    """The updates of a run, as a part that a checkpoint saves."""

    each: list[RunUpdate]

    def in_each_batch(self) -> "RunUpdates":
        """Return the same updates, all of which are taken in each batch."""
        due = [attrs.evolve(one, update=attrs.evolve(one.update, every=1)) for one in self.each]
        return RunUpdates(due)

    def losses(self, state: State) -> list[Tensor]:
        """Return the losses of the updates that were taken in a batch, without their terms."""
        return [
            state.losses[n] for n in (one.update.name for one in self.each) if n in state.losses
        ]

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the shares and the loss scale of each update."""
        return {
            one.update.name: {
                "loss_scaler": one.scaler.state_dict(),
                "loss_shares": one.shares.state_dict(),
            }
            for one in self.each
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what `state_dict` returned; a new update begins as in a new run."""
        for one in self.each:
            if saved := state.get(one.update.name):
                one.scaler.load_state_dict(saved["loss_scaler"])
                one.shares.load_state_dict(saved["loss_shares"])


class UpdateStep:
    """One repetition of an update.

    Args:
        run: The update of the run.
        repetition: Which one of `times` it is.
        compose: Composes the step of a loss: see `step_of_loss`.
        optimizer: Its optimizer.
        engine: Takes the shares of its loss.
    """

    def __init__(
        self,
        run: RunUpdate,
        repetition: int,
        compose: Callable[..., Step],
        optimizer: Optimizer,
        engine: Engine,
    ) -> None:
        self.run, self.update, self.repetition = run, run.update, repetition
        self.index, self.engine, self.own = run.index, engine, (optimizer,)
        first = not (run.index or repetition)  # it has the random numbers of a step of one loss
        self.salt = () if first else (UPDATE, self.update.name, repetition)
        self._trains = False
        self.step = compose(run.scaler, closure=needs_closure(optimizer), update=self)

    def key_of(self, state: State) -> Key:
        """Return the key of the random numbers of a forward pass."""
        return state.key.fold(*self.salt) if self.salt else state.key

    def add_terms(self, state: State, terms: Mapping[str, Tensor], share: Any = 1.0) -> State:
        """Add the terms of the loss of a part of a batch, times its share."""
        if not terms:
            return state
        before = state.losses
        wide = widest_float(state.device)
        parts = {n: without_nothing(times(one, share), share).to(wide) for n, one in terms.items()}
        losses = {name: before.get(name, 0.0) + one for name, one in parts.items()}
        return state.evolve_unchecked(losses=losses)

    def whole_terms(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the terms of the loss of the batch, on all processes, by their names in logs."""
        if not parts:
            return {}
        engine, processes = self.engine, self.engine.processes
        sums = torch.stack(list(parts.values())) * engine.shares.factor
        if processes.several:
            sums = processes.sum(sums) / (processes.size if engine.mean_gradients else 1)
        names = [f"{self.update.name}/{name}" for name in parts]
        return dict(zip(names, sums.unbind(), strict=True))

    def check_gradients(self, state: State) -> State:
        """Check once that the loss has a gradient for a parameter of the update.

        Raises:
            ValueError: It has none.
        """
        if not self._trains:
            held = [p for group in self.own[0].param_groups for p in group["params"]]
            if all(p.grad is None for p in held):
                raise _no_gradient(self.update.name)
            self._trains = True
        return state

    def __call__(self, outer: State) -> State:
        """Take the update, and return the state with its losses."""
        state, name = self.enter(outer), self.update.name
        self.engine.shares = self.run.shares
        try:
            with frozen_others(self.own[0], outer):
                state = self.step(state)
        except SplitLossError as error:
            text = str(error).replace(ADVICE, "Pass loss_mean_over= what it is a mean over.")
            error.args = (f"the update {name!r}: {text.replace('loss_mean', 'mean')}",)
            raise
        losses = {**outer.losses, name: state.loss, **self.whole_terms(state.losses)}
        return state.evolve_unchecked(
            update=None,
            batch=outer.batch,
            optimizers=outer.optimizers,
            loss_fn=outer.loss_fn,
            model_call=outer.model_call,
            losses=MappingProxyType(losses),
        )

    def enter(self, state: State) -> State:
        """Return the state that the update sees."""
        optimizer = state.optimizers[self.index]
        if optimizer is not self.own[0]:
            self.own = (optimizer,)
        loss = UpdateLoss(
            self.update.name,
            module=state.model,
            function=self.run.loss,
            precision=state.precision,
            more=(state,) if self.run.takes_state else (),
        )
        return state.evolve_unchecked(
            update=self.update.name,
            batch=self.batch_of(state, state.batch, state.key),
            optimizers=self.own,
            loss_fn=loss,
            model_call=_no_outputs,
            losses=_EMPTY,
        )

    def batch_of(self, state: State, batch: Any, key: Key) -> Any:
        """Return what the update makes of a batch, or of each batch of a group."""
        if self.update.batch is None:
            return batch
        if isinstance(batch, BatchGroup):
            parts = [self.batch_of(state, one, key.of_batch(i)) for i, one, *_ in batch.parts]
            return attrs.evolve(batch, batches=tuple(parts))
        seed_step(key.fold("batch", self.update.name, self.repetition), state.timestamp.batch)
        return self.update.batch(batch, self.repetition)


def each_update(
    updates: Sequence[RunUpdate],
    optimizers: Sequence[Optimizer],
    compose: Callable[..., Step],
    engine: Engine,
    *,
    undoes: bool,
) -> Step:
    """Take the updates that are due, one after the other, over the same batch.

    Args:
        updates: The updates.
        optimizers: Their optimizers.
        compose: Composes the step of a loss: see `step_of_loss`.
        engine: Takes the shares of its loss.
        undoes: Whether all updates of a batch are undone if the loss of one is not finite.
    """
    steps = [
        UpdateStep(one, repetition, compose, optimizers[one.index], engine)
        for one in updates
        for repetition in range(one.update.times)
    ]

    def stepped(outer: State) -> State:
        state = outer.evolve_unchecked(losses=_EMPTY)
        due = [one for one in steps if one.update.is_due(outer)]
        undo = _kept(state, [one.run for one in due[:-1]]) if undoes else []
        try:
            for one in due:
                state = one(state)
        except (SkippedStep, NonFiniteLossError):
            for restore in undo:
                restore()
            raise
        return state

    return stepped


def _kept(state: State, updates: Sequence[RunUpdate]) -> list[Callable[[], Any]]:
    """Copy what updates change, and return functions that restore it."""
    undo: list[Callable[[], Any]] = [Buffers.of(state).restore] if updates else []
    for one in dict.fromkeys(updates):
        optimizer = state.optimizers[one.index]
        undo += [_restoring_weights(optimizer), *map(restoring, base_optimizers([optimizer]))]
        undo.append(partial(one.scaler.set, one.scaler.scale, one.scaler.streak))
    return undo


def _restoring_weights(optimizer: Optimizer) -> Callable[[], None]:
    held = [p for group in optimizer.param_groups for p in group["params"]]
    copies = [p.detach().clone() for p in held]

    def restore() -> None:
        for p, copy in zip(held, copies, strict=True):
            p.detach().copy_(copy)

    return restore


@contextmanager
def frozen_others(own: Optimizer, state: State) -> Iterator[None]:
    """Let the parameters that an optimizer does not have require no gradient in the block."""
    held = {id(p) for group in own.param_groups for p in group["params"]}
    every = (p for one in all_modules(state) for p in one._parameters.values())
    others = [p for p in every if p is not None and p.requires_grad and id(p) not in held]
    for p in others:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in others:
            p.requires_grad_(True)
