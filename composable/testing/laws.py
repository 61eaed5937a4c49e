"""What must hold for every algorithm, a function each, and the table of them all."""

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

from composable.core.algorithm import Algorithm, leaves
from composable.core.batch import map_tensors
from composable.core.callback import Callback
from composable.core.event import Event
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import Timestamp
from composable.plan.combinators import always, never, when
from composable.plan.compatibility import AmbiguousOrderWarning
from composable.plan.effects import EffectError, changes, fingerprint
from composable.plan.plan import Plan
from composable.testing.modules import description
from composable.testing.properties import same_state
from composable.testing.runs import (
    STEP,
    Breach,
    Case,
    Draws,
    Jitter,
    Noise,
    StopAfter,
    copied,
    difference,
)
from composable.trainer.evaluation import evaluation_mode
from composable.utils.reproducibility import get_rng_state, preserve_rng, seed_all

__all__ = ["LAWS", "Law", "NotApplicable"]


@attrs.frozen
class NotApplicable:
    """Why a law says nothing about an algorithm."""

    why: str


Verdict = Breach | NotApplicable | None


@attrs.frozen
class Law:
    """A law: its name, what it says, how an algorithm that breaks it is mended, and its test.

    `check` gives None where the law holds.
    """

    name: str
    says: str
    mend: str
    check: Callable[[Case], Verdict]


# --- what it is ---


def _frozen(case: Case) -> Verdict:
    algorithm = case.fresh()
    for name in _fields(algorithm):
        try:
            setattr(algorithm, name, getattr(algorithm, name))
        except AttributeError:
            continue
        return Breach(f"its field {name} can be assigned", where=name)
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


def _hyperparameters(case: Case) -> Verdict:
    for name, value in _fields(case.algorithm).items():
        if isinstance(value, _CHANGING):
            return Breach(f"its field {name} holds a {type(value).__name__}", where=name)
    return None


def _value(case: Case) -> Verdict:
    algorithm, again = case.fresh(), attrs.evolve(case.pristine)
    if algorithm != again:
        return Breach(f"two with the same fields are not equal: {algorithm!r} and {again!r}")
    if hash(algorithm) != hash(again):
        return Breach("two that are equal have different hashes")
    if repr(algorithm) != repr(again):
        return Breach(f"two that are equal are printed as {algorithm!r} and as {again!r}")
    if address := re.search(r"\bat 0x[0-9a-f]+", repr(algorithm)):
        return Breach(f"it is printed with an address, which no other run will have: {address[0]}")
    return None


def _plan(case: Case) -> Verdict:
    try:
        plan = Plan.compile([case.algorithm])
        explained, listed = plan.explain(), {step.event for step in plan.steps()}
    except Exception as error:
        return Breach(f"Plan.explain() raised {error!r}")
    if case.algorithm.name not in explained or listed != set(case.algorithm.events):
        return Breach(f"its lines in Plan.explain() are those of {_names(listed)}")
    if Plan.compile([case.fresh()]).explain() != explained:
        return Breach("a copy of it has another plan")
    return None


# --- what it does ---


def _acts(case: Case) -> Verdict:
    acted = False

    def watch(algorithm: Algorithm, event: Event, state: State) -> State:
        nonlocal acted
        new = algorithm(event, state)
        acted = acted or new is not state
        return new

    case.run(case.around(watch))
    return None if acted else Breach("it returned the state that it was given, at every event")


def _effects(case: Case) -> Verdict:
    try:
        case.run(case.algorithm, check_effects=True)
    except EffectError as error:
        where = re.search(r"state[^\s,:]+", str(error))
        event = re.search(rf"\bat ({'|'.join(Event.__members__)})\b", str(error))
        return Breach(str(error), event and Event[event[1]], where and where[0])
    if not all(part.declares for part in leaves(case.algorithm)):
        return NotApplicable(
            "a plain function doesn't declare what it writes; that it writes nothing in place "
            "was checked"
        )
    return None


def _surgery(case: Case) -> Verdict:
    early = {Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD}
    if not early & set(case.algorithm.events):
        return NotApplicable(f"it doesn't act at {_names(early)}")
    model = case.model()
    before, looks = State(model), description(model)
    seen, computed = fingerprint(before), _outputs(case, model)
    case.trainer(case.algorithm, model=model)
    for change in changes(seen, fingerprint(before)):
        return Breach(f"it changed {change.replace('state.model', 'the model')}", Event.INIT)
    if (now := description(model)) != looks:
        changed = next(name for name in {**looks, **now} if looks.get(name) != now.get(name))
        return Breach(f"it changed {changed} of the model", Event.INIT, changed)
    if not all(map(torch.equal, computed, _outputs(case, model))):
        return Breach("the model that was given computes something else than before", Event.INIT)
    return None


def _outputs(case: Case, model: nn.Module) -> list[Tensor]:
    trainer = case.trainer(model=model)
    with preserve_rng(), evaluation_mode(model):
        return [copied(out) for out in trainer.predict(case.dataloader) if isinstance(out, Tensor)]


# --- what it remembers ---


def _stateless(case: Case) -> Verdict:
    held = _snapshot(case.algorithm)
    found = difference(
        case.run(case.around(lambda _, event, state: case.fresh()(event, state))), case.base
    )
    if found:
        return attrs.evolve(found, what=f"when a fresh copy of it acts at each event, {found.what}")
    now = _snapshot(case.algorithm)
    for path in {**held, **now}:
        if path not in held or path not in now or not _same(held[path], now[path]):
            return Breach(f"its {path} is another one after a run", where=path)
    return None


def _snapshot(algorithm: Algorithm) -> dict[str, Any]:
    """Its fields and attributes, copied."""
    own = {**_fields(algorithm), **getattr(algorithm, "__dict__", {})}
    return {name: copy.deepcopy(value) for name, value in own.items()}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, nn.Module) and isinstance(other, nn.Module):
        pair = one.state_dict(), other.state_dict()
        return pair[0].keys() == pair[1].keys() and all(
            map(_same, pair[0].values(), pair[1].values())
        )
    return type(one) is type(other) and (one == other or repr(one) == repr(other))


class _Memory(Callback):
    """Looks over what is remembered, at every event of a step."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.remembers = False
        self.breach: Breach | None = None

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Look."""
        if event not in STEP or self.breach:
            return
        weights = {t.untyped_storage().data_ptr() for t in state.model.state_dict().values()}
        for name in self.names & state.memory.keys():
            self.remembers = True
            for path, what in _improper(f"state.memory[{name!r}]", state.memory[name], weights):
                self.breach = Breach(f"{path} {what} at {event.name}", event, path)


def _improper(path: str, value: Any, weights: set[int]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Tensor):
        if value.requires_grad:
            yield path, "requires a gradient, and keeps the graph of its step alive"
        elif value.numel() and value.untyped_storage().data_ptr() in weights:
            yield path, "is a view of the weights, and changes when the optimizer steps"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield path, f"has the key {key!r}, which is no string"
            yield from _improper(f"{path}[{key!r}]", item, weights)
    elif type(value) in (list, tuple):
        for i, item in enumerate(value):
            yield from _improper(f"{path}[{i}]", item, weights)
    elif type(value) not in (type(None), bool, int, float, str):
        yield path, f"is a {type(value).__name__}"


def _memory(case: Case) -> Verdict:
    look = _Memory({part.name for part in leaves(case.algorithm)})
    case.trainer(case.algorithm, callbacks=look).fit()
    if look.breach is None and not look.remembers:
        return NotApplicable("it remembers nothing")
    return look.breach


def _parts(case: Case) -> Verdict:
    if case.batches < 2:
        return NotApplicable("its run has one batch, so that there are no two parts")
    stop = max(1, (case.batches - 1) // 2)
    run = partial(case.run, case.algorithm, stop=stop)
    return _going_on(case, run, f"was stopped after batch {stop}")


def _going_on(case: Case, run: Callable[[], Any], what: str) -> Verdict:
    try:
        found = difference(run(), case.base)
    except Exception as error:
        return Breach(f"a run that {what} could not go on: {error!r}")
    return found and attrs.evolve(
        found, what=f"a run that {what} went on differently: {found.what}"
    )


@attrs.frozen(repr=False, eq=False)
class _Load(Algorithm):
    """Puts a saved run in the place of the one that begins."""

    name: str = attrs.field(default="~load", kw_only=True)  # the last of its stage
    saved: Any = None
    timestamp: Timestamp = Timestamp()

    events = frozenset({Event.BEFORE_LOAD})

    def apply(self, event: Event, state: State) -> State:
        """Load."""
        state.model.load_state_dict(self.saved["model"])
        for optimizer, values in zip(state.optimizers, self.saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        return state.evolve(
            memory=self.saved["memory"], timestamp=self.timestamp, previous_timestamp=self.timestamp
        )


def _resumes(case: Case) -> Verdict:
    if case.batches < 2:
        return NotApplicable("its run has one batch, so that there is nothing to resume")
    stop, recorder = min(case.batches // 2 + 1, case.batches - 1), case.recorder()
    first = case.trainer(case.fresh(), callbacks=[recorder, StopAfter(stop)])
    state = first.fit()
    file = io.BytesIO()
    try:
        torch.save(
            {
                "model": state.model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
                "memory": _plain(state.memory),
            },
            file,
        )
        file.seek(0)
        saved = torch.load(file, weights_only=True)
    except Exception as error:
        return Breach(f"what there was after batch {stop} could not be saved: {error!r}")
    if _shapes(case.trainer(case.fresh()).state.model) != _shapes(state.model):
        return NotApplicable(
            "it changed the layers of the model during the run, and a new Trainer has those of "
            "the beginning"
        )

    def resumed() -> Any:
        again = case.fresh()
        second = case.trainer(
            again, _Load(saved=saved, timestamp=state.timestamp), callbacks=recorder
        )
        second.fit()
        return case.ended(second, recorder.trace)

    return _going_on(case, resumed, f"was saved after batch {stop} and loaded into a new Trainer")


def _plain(value: Any) -> Any:
    return (
        {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
    )


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


# --- its random numbers ---


def _repeats(case: Case) -> Verdict:
    found = difference(case.run(case.algorithm), case.base)
    return found and attrs.evolve(found, what=f"in a second run with the same seed, {found.what}")


def _leaves_generators(case: Case) -> Verdict:
    moved: list[Breach] = []

    def watch(algorithm: Algorithm, event: Event, state: State) -> State:
        before = get_rng_state()
        new = algorithm(event, state)
        for whose, one in get_rng_state().items():
            if not same_state(one, before.get(whose, one)):
                moved.append(Breach(f"it moved {whose}'s global generator at {event.name}", event))
        return new

    case.run(case.around(watch))
    return moved[0] if moved else None


def _own_draws(case: Case) -> Verdict:
    def disturbed(algorithm: Algorithm, event: Event, state: State) -> State:
        with preserve_rng():
            seed_all(state.timestamp.batch + 1)
            return algorithm(event, state)

    found = difference(case.run(case.around(disturbed)), case.base)
    return found and attrs.evolve(
        found, what=f"with the global generators seeded differently before it acts, {found.what}"
    )


def _disturbs_nobody(case: Case) -> Verdict:
    other = Draws()
    alone, together = case.run(other), case.run(other, case.algorithm)
    drawn = {path: n for path, n in alone[-1].held.items() if other.name in path}
    for path, number in together[-1].held.items():
        if other.name in path and drawn.get(path, number) != number:
            return Breach(f"with it, another algorithm draws other numbers: {path}", where=path)
    found = difference(together, case.base, ignoring=other.name)
    return found and attrs.evolve(found, what=f"beside another one that draws, {found.what}")


# --- among others ---


def _order(case: Case) -> Verdict:
    others = [Draws(), Jitter(), Noise()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmbiguousOrderWarning)
        first = case.run(case.algorithm, *others)
        last = case.run(*reversed(others), case.algorithm)
    found = difference(last, first)
    return found and attrs.evolve(found, what=f"last in the list and not first, {found.what}")


def _when_always(case: Case) -> Verdict:
    found = difference(case.run(when(always, case.algorithm)), case.base)
    return found and attrs.evolve(found, what=f"under when(always, ...), {found.what}")


def _when_never(case: Case) -> Verdict:
    found = difference(case.run(when(never, case.algorithm)), case.without)
    return found and attrs.evolve(found, what=f"under when(never, ...), {found.what}")


class _Gradients(Callback):
    """Copies the gradients with which the optimizers stepped."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def after_optimizer_step(self, state: State, logger: Logger) -> None:
        """Copy."""
        self.seen.append({name: copied(grad) for name, grad in state.current_gradients().items()})


def _microbatches(case: Case) -> Verdict:
    if not case.microbatches:
        return NotApplicable(
            "microbatches=True was not given, which says that neither it nor the model looks at "
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
                return Breach(
                    f"in 3 microbatches the gradient of {name} is another one in batch {batch}",
                    Event.AFTER_TRAIN_BATCH,
                    name,
                )
    return None


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


# --- what they share ---


def _fields(algorithm: Algorithm) -> dict[str, Any]:
    return {f.name: getattr(algorithm, f.name) for f in attrs.fields(type(algorithm))}


def _names(events: set[Event]) -> str:
    """The names of some events, in the order of a run."""
    return ", ".join(event.name for event in Event if event in events) or "no event"


LAWS = {
    law.name: law
    for law in (
        Law(
            "frozen",
            "no field of it can be assigned",
            "decorate its class with @attrs.frozen(repr=False), and override no __setattr__.",
            _frozen,
        ),
        Law(
            "hyperparameters",
            "its fields are values that can't change",
            "use a tuple of numbers for a list or a tensor; what it remembers goes into "
            "state.remember(self.name, ...), and draws come from state.generator(self.name).",
            _hyperparameters,
        ),
        Law(
            "value",
            "two with equal fields are equal, hash and print alike",
            "keep attrs' own __eq__ and __hash__ (no eq=False), use fields that can be compared, "
            "and give those that print an address repr=False.",
            _value,
        ),
        Law(
            "plan",
            "the plan can place and explain it",
            "declare events as a set of Event, stage as a Stage, reads and writes as sets of "
            "names.",
            _plan,
        ),
        Law(
            "acts",
            "it does something in the run, or nothing could be checked",
            "give check_algorithm a model=, dataloader= and hyperparameters with which it acts.",
            _acts,
        ),
        Law(
            "effects",
            "it writes what it declares, and nothing in place",
            "return state.evolve(...) with new values, and name every field in writes.",
            _effects,
        ),
        Law(
            "surgery",
            "the model that is given to the Trainer stays as it was",
            "change a copy, as composable.functional.blurpool does, and return "
            "state.evolve(model=...).",
            _surgery,
        ),
        Law(
            "repeats",
            "two runs with one seed are the same, to the bit",
            "keep nothing in globals or in the class, and draw from state.generator(self.name).",
            _repeats,
        ),
        Law(
            "stateless",
            "any copy of it can go on where another one was",
            "keep nothing in the instance: use state.remember(self.name, ...).",
            _stateless,
        ),
        Law(
            "memory",
            "it remembers plain containers and tensors, which can be saved",
            "remember None, bool, int, float, str, list, tuple, dict with strings as keys, and "
            "tensors as tensor.detach().clone().",
            _memory,
        ),
        Law(
            "parts",
            "a run that is stopped and gone on with is the run in one go",
            "what happens at FIT_START happens at every fit: do at INIT what is to happen once, "
            "and remember the rest.",
            _parts,
        ),
        Law(
            "resumes",
            "a run that is saved and loaded into a new Trainer is the run in one go",
            "keep what it needs in state.memory: of a state, only the weights, the optimizers, "
            "the memory and the time are loaded.",
            _resumes,
        ),
        Law(
            "leaves_generators",
            "it moves no global generator",
            "draw with generator=state.generator(self.name).",
            _leaves_generators,
        ),
        Law(
            "own_draws",
            "what it draws doesn't depend on the global generators",
            "draw with generator=state.generator(self.name).",
            _own_draws,
        ),
        Law(
            "disturbs_nobody",
            "what others draw is the same with it and without it",
            "leave state.key, and the memory of others, as they are.",
            _disturbs_nobody,
        ),
        Law(
            "order",
            "its place in the list of algorithms doesn't matter",
            "let events, stage, before and after depend on its fields alone.",
            _order,
        ),
        Law(
            "when_always",
            "when(always, a) is a",
            "let apply depend on the event and the state alone.",
            _when_always,
        ),
        Law(
            "when_never",
            "when(never, a) is identity",
            "change nothing but in apply: events, match and idle_reason only answer.",
            _when_never,
        ),
        Law(
            "microbatches",
            "in microbatches the gradients are those of the whole batch",
            "act on the whole batch, at BEFORE_TRAIN_BATCH or earlier, or on each example by "
            "itself.",
            _microbatches,
        ),
    )
}
"""All laws by name, in the order in which they are checked."""
