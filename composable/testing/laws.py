"""The laws that hold for every algorithm: one check per law, and a table of all laws."""

import copy
import io
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable._support.tree import map_tensors, tensors_of
from composable.core.algorithm import Algorithm, leaves
from composable.core.callback import Callback
from composable.core.evaluation_mode import evaluation_mode
from composable.core.event import Event
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import Timestamp
from composable.plan.combinators import always, never, when
from composable.plan.compatibility import AmbiguousOrderWarning
from composable.plan.effects import EffectError, fingerprint, fingerprint_changes
from composable.plan.plan import Plan
from composable.testing.modules import description, same_values
from composable.testing.properties import used_by
from composable.testing.runs import (
    STEP,
    Case,
    Draws,
    Jitter,
    Noise,
    StopAfter,
    Violation,
    copied,
    difference,
)
from composable.trainer.trainer import training_weights
from composable.utils.reproducibility import preserve_rng, seed_all


@attrs.frozen
class NotApplicable:
    """The reason why a law does not apply to an algorithm."""

    reason: str


Verdict = Violation | NotApplicable | None
Check = Callable[[Case], Verdict]


@attrs.frozen
class Law:
    """A law: its name, its statement, a hint for fixing a violation, and its check.

    `check` returns None if the law holds.
    """

    name: str
    statement: str
    hint: str
    check: Check


LAWS: dict[str, Law] = {}
"""All laws by name, in the order in which they are checked."""


def _law(statement: str, hint: str) -> Callable[[Check], Check]:
    """Add a check to the laws, under its name."""

    def add(check: Check) -> Check:
        name = check.__name__.removeprefix("_")
        LAWS[name] = Law(name, statement, hint, check)
        return check

    return add


# --- the algorithm as a value ---


@_law(
    "its fields cannot be assigned",
    "decorate its class with @attrs.frozen(repr=False), and do not override __setattr__.",
)
def _frozen(case: Case) -> Verdict:
    algorithm = case.fresh()
    for name in _fields(algorithm):
        try:
            setattr(algorithm, name, getattr(algorithm, name))
        except AttributeError:
            continue
        return Violation(f"its field {name} can be assigned", where=name)
    return None


_CHANGING = (
    MutableMapping,
    MutableSequence,
    MutableSet,
    Iterator,
    Optimizer,
    Tensor,
    random.Random,
    torch.Generator,
)


@_law(
    "its fields are immutable values",
    "use a tuple of numbers instead of a list or a tensor, store state with "
    "state.remember(self.name, ...), and draw from state.generator(self.name).",
)
def _hyperparameters(case: Case) -> Verdict:
    for name, value in _fields(case.algorithm).items():
        if isinstance(value, _CHANGING):
            return Violation(f"its field {name} holds a {type(value).__name__}", where=name)
    return None


@_law(
    "instances with equal fields are equal, and have the same hash and repr",
    "keep the __eq__ and __hash__ of attrs (no eq=False), use fields that can be compared, "
    "and set repr=False for fields whose repr contains an address.",
)
def _value(case: Case) -> Verdict:
    algorithm, again = case.fresh(), attrs.evolve(case.pristine)
    if algorithm != again:
        return Violation(f"instances with equal fields differ: {algorithm!r} and {again!r}")
    if hash(algorithm) != hash(again):
        return Violation("equal instances have different hashes")
    if repr(algorithm) != repr(again):
        return Violation(f"equal instances have different reprs: {algorithm!r} and {again!r}")
    if address := re.search(r"\bat 0x[0-9a-f]+", repr(algorithm)):
        return Violation(f"its repr contains a memory address, {address[0]}")
    return None


_WIDTH = 100_000  # characters, so that no name is wrapped


@_law(
    "the plan can order and explain it",
    "declare events as a set of Event, stage as a Stage, reads and writes as sets of names.",
)
def _plan(case: Case) -> Verdict:
    try:
        plan = Plan.compile([case.algorithm])
        explained, listed = plan.explain(width=_WIDTH), {step.event for step in plan.steps()}
    except Exception as error:
        return Violation(f"Plan.explain() raised {error!r}")
    if case.algorithm.name not in explained or listed != set(case.algorithm.events):
        return Violation(f"Plan.explain() lists it at {_names(listed)} instead of its events")
    if Plan.compile([case.fresh()]).explain(width=_WIDTH) != explained:
        return Violation("a copy of it has another plan")
    return None


# --- its effects ---


@_law(
    "it writes only the fields it declares, and nothing in place",
    "return state.evolve(...) with new values, and declare every field in writes.",
)
def _effects(case: Case) -> Verdict:
    try:
        case.run(case.algorithm, check_effects=True)
    except EffectError as error:
        where = re.search(r"state[^\s,:]+", str(error))
        event = re.search(rf"\bat ({'|'.join(Event.__members__)})\b", str(error))
        return Violation(str(error), event and Event[event[1]], where and where[0])
    if not all(part.declares for part in leaves(case.algorithm)):
        return NotApplicable(
            "a plain function does not declare what it writes; only in-place writes were checked"
        )
    return None


@_law(
    "the model passed to the Trainer is not modified",
    "modify a copy, like composable.functional.blurpool, and return state.evolve(model=...).",
)
def _surgery(case: Case) -> Verdict:
    early = {Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD}
    if not early & set(case.algorithm.events):
        return NotApplicable(f"it does not act at {_names(early)}")
    found: list[Violation] = []

    def watched(algorithm: Algorithm, event: Event, state: State) -> State:
        if event not in early or found:
            return algorithm(event, state)
        model = state.model
        before, looks = State(model), description(model)
        seen, computed = fingerprint(before), _outputs(case, state)
        new = algorithm(event, state)
        now = description(model)
        for change in fingerprint_changes(seen, fingerprint(before)):
            what = f"it changed {change.replace('state.model', 'the model')}"
            found.append(Violation(what, event))
        for name in {**looks, **now}:
            if looks.get(name) != now.get(name):
                found.append(Violation(f"it changed {name} of the model", event, name))
        if not all(map(torch.equal, computed, _outputs(case, state))):
            found.append(Violation("the outputs of the user's model changed", event))
        return new

    case.trainer(case.around(watched))
    return found[0] if found else None


def _outputs(case: Case, state: State) -> list[Tensor]:
    def outputs(batch: Any) -> Any:
        batch = map_tensors(lambda tensor: tensor.to(state.device), batch)
        return state.model_call(state.model, batch, state.batch_spec)

    with preserve_rng(), evaluation_mode(state.model):
        found = map(outputs, case.dataloader)
        return [copied(out) for out in found if isinstance(out, Tensor)]


@_law(
    "it changes the state at least once during the run",
    "pass a model=, a dataloader= and hyperparameters with which it acts.",
)
def _acts(case: Case) -> Verdict:
    acted, copied = False, False

    def watch(algorithm: Algorithm, event: Event, state: State) -> State:
        nonlocal acted, copied
        new = algorithm(event, state)
        if not acted and new is not state:
            changed = {
                name for name, value in vars(new).items() if value is not vars(state).get(name)
            }
            same = changed == {"model"} and _equal_models(state.model, new.model)
            acted, copied = not same, same
        return new

    case.run(case.around(watch))
    if acted:
        return None
    if copied:
        return Violation("it returned a copy of the model in which nothing is replaced")
    return Violation("it returned its input state at every event")


def _equal_models(mine: nn.Module, other: nn.Module) -> bool:
    """Return whether two models have the same layers, settings and tensors."""

    def settings(model: nn.Module) -> dict[str, str]:
        return {name: re.sub(r" \d+$", "", text) for name, text in description(model).items()}

    def tensors(model: nn.Module) -> dict[str, Tensor]:
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}

    ours, theirs = tensors(mine), tensors(other)
    return (
        settings(mine) == settings(other)
        and ours.keys() == theirs.keys()
        and all(
            our.stride() == theirs[name].stride() and same_values(our, theirs[name])
            for name, our in ours.items()
        )
    )


# --- its random numbers ---


@_law(
    "it does not use the global generators",
    "draw with generator=state.generator(self.name).",
)
def _leaves_generators(case: Case) -> Verdict:
    moved: list[Violation] = []

    def watch(algorithm: Algorithm, event: Event, state: State) -> State:
        new: list[State] = []
        for whose in used_by(lambda: new.append(algorithm(event, state))):
            moved.append(Violation(f"it used {whose}'s global generator at {event.name}", event))
        return new[0]

    case.run(case.around(watch))
    return moved[0] if moved else None


@_law(
    "its random numbers do not depend on the global generators",
    "draw with generator=state.generator(self.name).",
)
def _own_draws(case: Case) -> Verdict:
    def disturbed(algorithm: Algorithm, event: Event, state: State) -> State:
        with preserve_rng():
            seed_all(state.timestamp.batch + 1)
            return algorithm(event, state)

    trace = case.run(case.around(disturbed))
    return difference(
        trace, case.base, "with another seed of the global generators before it acts, "
    )


@_law(
    "two runs with the same seed are bit-identical",
    "store nothing in globals or in the class, and draw from state.generator(self.name).",
)
def _repeats(case: Case) -> Verdict:
    return difference(case.run(case.algorithm), case.base, "in a second run with the same seed, ")


# --- its memory ---


@_law(
    "any copy of it can replace it during a run",
    "store nothing in the instance: use state.remember(self.name, ...).",
)
def _stateless(case: Case) -> Verdict:
    held = _snapshot(case.algorithm)
    trace = case.run(case.around(lambda _, event, state: case.fresh()(event, state)))
    if found := difference(trace, case.base, "when a fresh copy of it acts at each event, "):
        return found
    now = _snapshot(case.algorithm)
    for path in {**held, **now}:
        if path not in held or path not in now or not _same(held[path], now[path]):
            return Violation(f"its attribute {path} changed during a run", where=path)
    return None


def _snapshot(algorithm: Algorithm) -> dict[str, Any]:
    """Copy the fields and attributes of an algorithm."""
    own = {**_fields(algorithm), **getattr(algorithm, "__dict__", {})}
    return {name: copy.deepcopy(value) for name, value in own.items()}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same_values(one, other)
    if isinstance(one, nn.Module) and isinstance(other, nn.Module):
        one, other = one.state_dict(), other.state_dict()
        return one.keys() == other.keys() and all(map(_same, one.values(), other.values()))
    return type(one) is type(other) and (one == other or repr(one) == repr(other))


class _Memory(Callback):
    """Checks the memory of algorithms, at every event of a step."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.found = False
        self.violation: Violation | None = None

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Check the memory."""
        if event not in STEP or self.violation:
            return
        weights = {t.untyped_storage().data_ptr() for t in state.model.state_dict().values()}
        for field, stored in (("memory", state.memory), ("averages", state.averages)):
            for name in self.names & stored.keys():
                self.found = True
                for path, what in _improper(f"state.{field}[{name!r}]", stored[name], weights):
                    self.violation = Violation(f"{path} {what} at {event.name}", event, path)


def _improper(path: str, value: Any, weights: set[int]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Tensor):
        if value.requires_grad:
            yield path, "requires a gradient, which keeps the autograd graph of its step alive"
        elif value.numel() and value.untyped_storage().data_ptr() in weights:
            yield path, "is a view of the weights, so it changes at an optimizer step"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield path, f"has the key {key!r}, which is not a str"
            yield from _improper(f"{path}[{key!r}]", item, weights)
    elif type(value) in (list, tuple):
        for i, item in enumerate(value):
            yield from _improper(f"{path}[{i}]", item, weights)
    elif type(value) not in (type(None), bool, int, float, str):
        yield path, f"has type {type(value).__name__}"


@_law(
    "its memory consists of plain containers and tensors, which can be saved",
    "store None, bool, int, float, str, list, tuple, dict with str keys, and tensors as "
    "tensor.detach().clone().",
)
def _memory(case: Case) -> Verdict:
    memory = _Memory({part.name for part in leaves(case.algorithm)})
    case.trainer(case.algorithm, callbacks=memory).fit()
    if memory.violation is None and not memory.found:
        return NotApplicable("it stores nothing in state.memory")
    return memory.violation


@_law(
    "a run that is stopped and continued equals an uninterrupted run",
    "FIT_START fires at every fit: act at INIT to act once, and store the rest in state.memory.",
)
def _parts(case: Case) -> Verdict:
    if case.batches < 2:
        return NotApplicable("its run has one batch, which cannot be split into two parts")
    stop = max(1, (case.batches - 1) // 2)
    run = partial(case.run, case.algorithm, stop=stop)
    return _continued(case, run, f"stopped after batch {stop}")


def _continued(case: Case, run: Callable[[], Any], what: str) -> Verdict:
    try:
        return difference(run(), case.base, f"a run {what} continued differently: ")
    except Exception as error:
        return Violation(f"a run {what} could not continue: {error!r}")


@attrs.frozen(repr=False, eq=False)
class _Load(Algorithm):
    """Replaces the initial state by a saved run's."""

    name: str = attrs.field(default="~load", kw_only=True)  # the last of its stage
    saved: Any = None
    timestamp: Timestamp = Timestamp()

    events = frozenset({Event.BEFORE_LOAD})

    def apply(self, event: Event, state: State) -> State:
        """Load the saved run."""
        state.model.load_state_dict(self.saved["model"])
        for optimizer, values in zip(state.optimizers, self.saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        return state.evolve(
            memory=self.saved["memory"],
            averages=self.saved["averages"],
            timestamp=self.timestamp,
            previous_timestamp=self.timestamp,
        )


@_law(
    "a run that is saved and resumed in a new Trainer equals an uninterrupted run",
    "store its state in state.memory: only the weights, the optimizers, the memory, the "
    "averages and the timestamp are loaded.",
)
def _resumes(case: Case) -> Verdict:
    if case.batches < 2:
        return NotApplicable("its run has one batch, so nothing is left to resume")
    stop, recorder = min(case.batches // 2 + 1, case.batches - 1), case.recorder()
    first = case.trainer(case.fresh(), callbacks=[recorder, StopAfter(stop)])
    state = first.fit()
    file = io.BytesIO()
    try:
        with training_weights(first):
            torch.save(
                {
                    "model": state.model.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
                    "memory": _plain(state.memory),
                    "averages": _plain(state.averages),
                },
                file,
            )
        file.seek(0)
        saved = torch.load(file, weights_only=True)
    except Exception as error:
        return Violation(f"the state after batch {stop} could not be saved: {error!r}")
    if _shapes(case.trainer(case.fresh()).state.model) != _shapes(state.model):
        return NotApplicable(
            "it changed the layers of the model during the run, and a new Trainer has the initial "
            "layers"
        )

    def resumed() -> Any:
        again = case.fresh()
        second = case.trainer(
            again, _Load(saved=saved, timestamp=state.timestamp), callbacks=recorder
        )
        second.fit()
        return case.ended(second, recorder.trace)

    return _continued(case, resumed, f"saved after batch {stop} and loaded into a new Trainer")


def _plain(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _plain(item) for key, item in value.items()}


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


# --- its composition with others ---


@_law(
    "it does not change the random numbers of other algorithms",
    "do not change state.key or the memory of other algorithms.",
)
def _isolated(case: Case) -> Verdict:
    other = Draws()
    alone, together = case.run(other), case.run(other, case.algorithm)
    drawn = {path: n for path, n in alone[-1].held.items() if other.name in path}
    for path, number in together[-1].held.items():
        if other.name in path and drawn.get(path, number) != number:
            return Violation(
                f"it changes the random numbers of another algorithm: {path}", where=path
            )
    when = "with another algorithm that draws random numbers, "
    return difference(together, case.base, when, ignoring=other.name)


@_law(
    "its position in the list of algorithms does not matter",
    "make events, stage, before and after depend only on its fields.",
)
def _order(case: Case) -> Verdict:
    others = [Draws(), Jitter(), Noise()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmbiguousOrderWarning)
        first = case.run(case.algorithm, *others)
        last = case.run(*reversed(others), case.algorithm)
    return difference(last, first, "last in the list instead of first, ")


@_law(
    "when(always, a) is equivalent to a",
    "make apply depend only on the event and the state.",
)
def _when_always(case: Case) -> Verdict:
    trace = case.run(when(always, case.algorithm))
    return difference(trace, case.base, "under when(always, ...), ")


@_law(
    "when(never, a) is equivalent to identity",
    "change nothing outside apply: events, match and idle_reason must be free of effects.",
)
def _when_never(case: Case) -> Verdict:
    trace = case.run(when(never, case.algorithm))
    return difference(trace, case.without, "under when(never, ...), ")


class _Gradients(Callback):
    """Copies the gradients of each optimizer step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def after_optimizer_step(self, state: State, logger: Logger) -> None:
        """Copy the gradients."""
        self.seen.append({name: copied(grad) for name, grad in state.current_gradients().items()})


@_law(
    "splitting a batch into microbatches does not change the gradients",
    "act on the whole batch, at BEFORE_TRAIN_BATCH or earlier, or on each example separately.",
)
def _microbatches(case: Case) -> Verdict:
    if not case.microbatches:
        return NotApplicable(
            "microbatches=True was not set, which asserts that neither it nor the model depends on "
            "the batch as a whole"
        )

    def gradients(parts: int | None) -> list[dict[str, Tensor]]:
        watch, model = _Gradients(), case.lone_model().double()
        still = torch.optim.SGD(model.parameters(), lr=0.0)
        loader = [map_tensors(_double, batch) for batch in case.dataloader]
        changes = {"optimizers": still, "grad_accum": parts, "train_dataloader": loader}
        case.trainer(
            case.fresh(), model=model, callbacks=watch, eval_dataloader=loader, **changes
        ).fit()
        return watch.seen

    pairs = zip(gradients(None), gradients(3), strict=True)
    for batch, (whole, split) in enumerate(pairs):
        for name in whole:
            if not torch.allclose(whole[name], split[name], rtol=1e-7, atol=1e-9, equal_nan=True):
                return Violation(
                    f"the gradient of {name} in batch {batch} changes with 3 microbatches",
                    Event.AFTER_TRAIN_BATCH,
                    name,
                )
    return None


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


# --- its results ---


@_law(
    "training with it gives other outputs than training without it",
    "see that its hyperparameters are read, that it acts before the end of the run, and "
    "with compile=True that no flag is frozen. Pass no_effect= if it only saves time.",
)
def _takes_effect(case: Case) -> Verdict:
    """Compare a run with one without: a switch may be set, and read by nothing."""
    (before, mine, weights), (plain, other, theirs) = (
        _results(case, [case.fresh()]),
        _results(case, []),
    )
    at_once, at_last = not _equal(before, plain), not _equal(mine, other)
    common = weights.keys() & theirs.keys()
    trains = not _equal([weights[name] for name in common], [theirs[name] for name in common])
    if case.no_effect:
        if not (at_once or at_last or trains):
            return NotApplicable(case.no_effect)
        return Violation("its results differ from a run without it, despite no_effect")
    if not at_last:
        return Violation("the outputs after training equal a run without it")
    if not (at_once or trains):
        return Violation("no output before training, and no parameter after it, differs")
    return None


def _results(
    case: Case, algorithms: list[Algorithm]
) -> tuple[list[Tensor], list[Tensor], dict[str, Tensor]]:
    """Return the predictions before and after training, and the parameters that are evaluated."""
    trainer = case.trainer(*algorithms)

    def predicted() -> list[Tensor]:
        return [copied(tensor) for tensor in tensors_of(trainer.predict(case.dataloader))]

    before = predicted()
    trainer.fit()
    named = trainer.state.model.named_parameters()
    return before, predicted(), {name: copied(parameter) for name, parameter in named}


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(same_values, some, others))


# --- helpers ---


def _fields(algorithm: Algorithm) -> dict[str, Any]:
    return {f.name: getattr(algorithm, f.name) for f in attrs.fields(type(algorithm))}


def _names(events: set[Event]) -> str:
    """Join the names of events, in the order of a run."""
    return ", ".join(event.name for event in Event if event in events) or "no event"
