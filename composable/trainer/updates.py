"""Training steps of several updates: each a whole step over the batch.

    for update in updates:                  # each_update
        for repetition in range(update.times):
            if due: freeze the others; step; restore

An update sees a state with its optimizer and its loss alone, in which all other parameters require
no gradient. So every part of a step (microbatches, sums over processes,
clipping, guards) works as in a run with one loss.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable.batches.batch import count_examples
from composable.batches.precision import Precision, widest_float
from composable.batches.spec import BatchSpec
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
from composable.losses.mean import declared_by, takes
from composable.losses.part_weights import ADVICE, SplitLossError
from composable.losses.weights import LossWeights
from composable.optim.building import build_optimizers
from composable.optim.learning_rates import LearningRates
from composable.optim.multi import base_optimizers
from composable.optim.per_name import UPDATE, PerGroup
from composable.optim.roles import ModelParameters, matches_pattern
from composable.optim.schedules import constant
from composable.optim.stepping import needs_closure, restoring
from composable.plan.combinators import Combined
from composable.plan.declarations import as_algorithm, as_list
from composable.trainer.guards import NonFiniteLossError
from composable.utils.reproducibility import seed_step

Step = Callable[[State], State]
_UNCHANGED = constant()
_OF_UPDATE = ("update", "batch", "optimizers", "loss_fn", "model_call")
"""The fields of the state that an update has for itself, besides its losses."""

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
        ValueError: An update has no parameter, or its optimizer has a parameter of others.
    """
    return tuple([_build(update, model) for update in updates])


def _build(update: Update, model: nn.Module) -> Optimizer:
    selected, where = _selected(update, model), f"the update {update.name!r}"
    module = loss_module(update.loss, model)
    if module is not None and any(True for _ in module.parameters()):
        raise ValueError(f"the loss of {where} has parameters: let it be a part of the model.")
    given = ModelParameters(selected, largest_modules(model, selected))
    try:
        (optimizer,) = build_optimizers(lambda _: update.optimizer(given), model)
    except (TypeError, ValueError) as error:
        error.args = (f"{where}: {error}",)
        raise
    for group in optimizer.param_groups:
        group[UPDATE] = update.name
        if not set(map(id, group["params"])) <= set(map(id, selected)):
            raise ValueError(
                f"the optimizer of {where} has parameters that parameters={update.parameters!r} "
                "doesn't match: let its function build it from the parameters that it gets."
            )
    return optimizer


def owns(update: Update, name: str) -> bool:
    """Return whether a parameter or buffer of this name belongs to an update."""
    return any(_matches(pattern, name) for pattern in _patterns(update))


def _patterns(update: Update) -> list[Any]:
    given = update.parameters
    return [given] if isinstance(given, str) or callable(given) else list(given)


def _matches(pattern: Any, name: str) -> bool:
    return bool(pattern(name) if callable(pattern) else matches_pattern(name, pattern))


def _selected(update: Update, model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of an update; each of its patterns must match one."""
    # A module that is used twice has two names, either of which may be given.
    named, patterns = dict(model.named_parameters(remove_duplicate=False)), _patterns(update)
    idle = [pattern for pattern in patterns if not any(_matches(pattern, name) for name in named)]
    if idle or not patterns:
        raise ValueError(
            f"the update {update.name!r} has parameters={[*idle, update.parameters][0]!r}, which "
            f"match no parameter of {type(model).__name__}; its modules are "
            f"{[name for name, _ in model.named_children()]}: pass their names, or patterns such "
            "as 'generator.*'."
        )
    return list(dict.fromkeys(p for name, p in named.items() if owns(update, name)))


@attrs.frozen(eq=False)
class _OfUpdate(PerGroup):
    """A schedule of one update, its `default`; under it the other learning rates are constant."""

    update: str = ""

    def schedule_of(self, group: Mapping[str, Any]) -> Any:
        one = self.default if group.get(UPDATE) == self.update else _UNCHANGED
        return one.schedule_of(group) if isinstance(one, PerGroup) else one


def update_schedules(updates: Sequence[Update], optimizers: Sequence[Optimizer]) -> list[Any]:
    """Return the schedules of all updates, and the torch schedulers that theirs build."""
    found: list[Any] = []
    for update, optimizer in zip(updates, optimizers, strict=True):
        rates = LearningRates.build(update.schedulers, [optimizer], every_batch=True)
        found += [*rates.steppers, *(_OfUpdate((), s, update=update.name) for s in rates.schedules)]
    return found


def updates_of_run(options: Any, engine: Engine, state: State) -> "list[RunUpdate]":
    """Return the updates of a run, each with its loss scale, shares, and compiled loss.

    Args:
        options: The arguments of the `Trainer`.
        engine: The engine, prepared.
        state: The state.
    """
    found, compiled = [], options.compile
    for i, update in enumerate(options.updates):
        weights = LossWeights(
            declared_by(update.mean_over, state.evolve(loss_fn=None)), bool(compiled)
        )
        weights.agree = engine.agree_on_calls
        loss = update.loss
        if compiled:
            given = compiled if isinstance(compiled, Mapping) else {}
            loss = torch.compile(loss, **{"dynamic": False, **given})
        shares = LossShares(weights, engine.forward.loss)
        scaler = attrs.evolve(engine.scaler, of_update=update.name)
        found.append(RunUpdate(update, i, shares, scaler, loss, takes(update.loss, 3)))
    return found


class SpecOfUpdates(BatchSpec):
    """The input and target of batches, which losses of updates need not have.

    Args:
        input_key: See `BatchSpec`.
        target_key: See `BatchSpec`.
        batch_layout: See `BatchSpec`.
    """

    def count(self, batch: Any) -> int:
        """Count the examples, of a mapping without the input by its first tensor."""
        if isinstance(batch, Mapping) and self.input_key == 0 and 0 not in batch:
            return count_examples(batch)
        return super().count(batch)


# --- algorithms of one update ---


@attrs.frozen(repr=False)
class _Within(Combined):
    """An algorithm that acts in one update, and outside of steps on its parameters alone."""

    update: Update = attrs.field(kw_only=True, eq=id)
    index: int = attrs.field(kw_only=True)

    def apply(self, event: Event, state: State) -> State:
        if event in _STEP_EVENTS:
            return super().apply(event, state) if state.update == self.update.name else state
        if not state.optimizers:  # a function, which is called at every event
            return super().apply(event, state)
        with frozen_others(state.optimizers[self.index], state):
            new = super().apply(event, state)
        name = self.parts[0].name
        if new.averages is state.averages or name not in new.averages:
            return new
        held = {id(p) for g in state.optimizers[self.index].param_groups for p in g["params"]}
        named = {n: id(p) in held for n, p in state.model.named_parameters()}
        whole = new.averages[name].items()
        kept = {n: one for n, one in whole if (named[n] if n in named else owns(self.update, n))}
        return new.with_average(name, kept)

    def window(self) -> Window:
        return Window(condition=f"in {self.update.name!r}", update=self.update.name)

    def describe(self, show: Callable[[Any], str]) -> str:
        return f"{self.update.name}: {show(self.parts[0])}"


def algorithms_of(updates: Sequence[Update]) -> list[Algorithm]:
    """Return the algorithms of all updates, each restricted to its update."""
    found: list[Algorithm] = []
    for i, update in enumerate(updates):
        for given in as_list(update.algorithms):
            one = as_algorithm(given, f"the update {update.name!r} contains")
            if not _SURGERY.isdisjoint(one.events) and one.declares:
                raise ValueError(
                    f"the update {update.name!r} has {one.name}, which acts before training: pass "
                    "it to the Trainer."
                )
            one = _renamed(one, update.name)
            found.append(_Within((one,), name=one.name, update=update, index=i))
    return found


def _renamed(algorithm: Algorithm, update: str) -> Algorithm:
    """Return an algorithm whose name, and the names of its parts, begin with an update's name."""
    changes: dict[str, Any] = {"name": f"{update}/{algorithm.name}"}
    if algorithm.parts:
        changes["parts"] = tuple(_renamed(part, update) for part in algorithm.parts)
    return attrs.evolve(algorithm, **changes)


# --- a step ---


@attrs.frozen(eq=False)
class UpdateLoss(OutputLoss):
    """The loss of an update, which calls the model itself."""

    module: nn.Module
    function: Callable[..., Any]
    precision: Precision
    more: tuple[State, ...]
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
                raise ValueError(f"{where} returned {sorted(terms)}, and must return 'loss' too.")
            loss = terms.pop("loss")
            for name, term in terms.items():
                outputs[name] = check_scalar(term, f"{where}, {name!r},").detach()
        if not check_scalar(loss, where).requires_grad and torch.is_grad_enabled():
            raise _no_gradient(self.model)
        return loss  # type: ignore[no-any-return]

    def needs_logits(self, name: str) -> str:
        """Return the message about an algorithm that needs a loss of logits and targets."""
        return (
            f"{name} needs the loss as a function of logits and targets, and the update "
            f"{self.model!r} calls the model itself: change the targets within its loss instead, "
            "such as by cross_entropy(..., label_smoothing=0.1)."
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
    takes_state: bool
    """Whether the loss has a third parameter."""


@attrs.define(eq=False)
class UpdateStep:
    """One repetition of an update.

    Args:
        run: The update of the run.
        repetition: Which one of `times` it is.
        optimizers: Its optimizer.
        engine: Takes the shares of its loss.
    """

    run: RunUpdate
    repetition: int
    optimizers: tuple[Optimizer, ...]
    engine: Engine
    step: Step = attrs.field(init=False)
    salt: tuple[str | int, ...] = attrs.field(init=False, default=())
    _trains: bool = attrs.field(init=False, default=False)

    def compose(self, step_of_loss: Callable[..., Step]) -> "UpdateStep":
        """Compose the step of its loss."""
        if self.run.index or self.repetition:  # the first one has the key of a step of one loss
            self.salt = UPDATE, self.run.update.name, self.repetition
        closure = needs_closure(self.optimizers[0])
        self.step = step_of_loss(self.run.scaler, closure=closure, update=self)
        return self

    def key_of(self, state: State) -> Key:
        """Return the key of the random numbers of a forward pass."""
        return state.key.fold(*self.salt) if self.salt else state.key

    def add_terms(self, state: State, terms: Mapping[str, Tensor], share: Any = 1.0) -> State:
        """Add the terms of the loss of a part of a batch, times its share."""
        if not terms:
            return state
        before, wide = state.losses, widest_float(state.device)
        parts = {n: without_nothing(times(one, share), share).to(wide) for n, one in terms.items()}
        losses = {name: before.get(name, 0.0) + part for name, part in parts.items()}
        return state.evolve_unchecked(losses=losses)

    def whole_terms(self, state: State) -> dict[str, Tensor]:
        """Return the terms of the loss of the batch, on all processes, by their names in logs."""
        parts, loss = state.losses, state.loss
        if not parts or loss is None:
            return {}
        engine, processes = self.engine, self.engine.processes
        sums = torch.stack(list(parts.values())) * engine.shares.factor
        if processes.several:
            sums = processes.sum(sums) / (processes.size if engine.mean_gradients else 1)
        name, terms = self.run.update.name, sums.to(loss.dtype)
        return {f"{name}/{n}": term for n, term in zip(parts, terms, strict=True)}

    def check_gradients(self, state: State) -> State:
        """Check once that the loss has a gradient for a parameter of the update.

        Raises:
            ValueError: It has none.
        """
        if not self._trains:
            held = [p for group in self.optimizers[0].param_groups for p in group["params"]]
            if all(p.grad is None for p in held):
                raise _no_gradient(self.run.update.name)
            self._trains = True
        return state

    def __call__(self, outer: State) -> State:
        """Take the update, and return the state with its losses."""
        state, name = self.enter(outer), self.run.update.name
        self.engine.shares = self.run.shares
        try:
            with frozen_others(self.optimizers[0], outer):
                state = self.step(state)
        except SplitLossError as error:
            text = str(error).replace(ADVICE, "Pass loss_mean_over= what it is a mean over.")
            error.args = (f"the update {name!r}: {text.replace('loss_mean', 'mean')}",)
            raise
        losses = {**outer.losses, name: state.loss, **self.whole_terms(state)}
        before = {field: getattr(outer, field) for field in _OF_UPDATE}
        return state.evolve_unchecked(**before, losses=MappingProxyType(losses))

    def enter(self, state: State) -> State:
        """Return the state that the update sees."""
        update = self.run.update
        if state.optimizers[self.run.index] is not self.optimizers[0]:
            self.optimizers = (state.optimizers[self.run.index],)
        more = (state.evolve_unchecked(update=update.name),) if self.run.takes_state else ()
        loss = UpdateLoss(update.name, state.model, self.run.loss, state.precision, more)
        return state.evolve_unchecked(
            update=update.name,
            batch=self.batch_of(state, state.batch, state.key),
            optimizers=self.optimizers,
            loss_fn=loss,
            model_call=_no_outputs,
            losses=_EMPTY,
        )

    def batch_of(self, state: State, batch: Any, key: Key) -> Any:
        """Return what the update makes of a batch, or of each batch of a group."""
        update = self.run.update
        if update.batch is None:
            return batch
        if isinstance(batch, BatchGroup):
            parts = [self.batch_of(state, one, key.of_batch(i)) for i, one, *_ in batch.parts]
            return attrs.evolve(batch, batches=tuple(parts))
        seed_step(key.fold("batch", update.name, self.repetition), state.timestamp.batch)
        return update.batch(batch, self.repetition)


def each_update(run: Any, step_of_loss: Callable[..., Step]) -> Step:
    """Take the updates that are due, one after the other, over the same batch.

    If the loss of one is not finite, and such batches are skipped, the others are undone. The next
    batch is fetched ahead after the last one, since a loader may read the weights.

    Args:
        run: The `Run` with the updates.
        step_of_loss: Composes the step of a loss.
    """
    undoes = run.guard.policy in ("skip", "rollback")
    steps = [
        UpdateStep(one, i, (run.rates.optimizers[one.index],), run.engine).compose(step_of_loss)
        for one in run.updates
        for i in range(one.update.times)
    ]

    def stepped(outer: State) -> State:
        state = outer.evolve_unchecked(losses=_EMPTY)
        due = [step for step in steps if step.run.update.is_due(outer)]
        undo = _kept(state, [one.run for one in due[:-1]]) if undoes else []
        try:
            for one in due:
                state = one(state)
        except (SkippedStep, NonFiniteLossError):
            for restore in undo:
                restore()
            raise
        return state if run.data.copies is None else run.data.fetch_ahead(state)

    return stepped


def _kept(state: State, updates: Sequence[RunUpdate]) -> list[Callable[[], Any]]:
    """Copy what updates change, and return functions that restore it."""
    undo: list[Callable[[], Any]] = [Buffers.of(state).restore] if updates else []
    for update in dict.fromkeys(updates):
        optimizer = state.optimizers[update.index]
        undo += [restoring(part, weights=True) for part in base_optimizers([optimizer])]
    return undo


@contextmanager
def frozen_others(optimizer: Optimizer, state: State) -> Iterator[None]:
    """Let the parameters that an optimizer does not have require no gradient in the block."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    every = (p for module in all_modules(state) for p in module._parameters.values())
    others = [p for p in every if p is not None and p.requires_grad and id(p) not in held]
    for p in others:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in others:
            p.requires_grad_(True)
