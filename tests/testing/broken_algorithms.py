"""Algorithms that break one law each, and no more than they can help."""

import itertools
import sys

import attrs
import torch
from torch.nn.functional import cross_entropy

from composable import Algorithm, Event, Stage

COUNT = itertools.count()
LOOKED_AT = []


@attrs.frozen(repr=False)
class Good(Algorithm):
    """Scales the inputs: breaks nothing."""

    factor: float = 0.9

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch"})
    writes = frozenset({"batch"})

    def apply(self, event, state):
        return state.with_batch(inputs=state.inputs * self.factor)


def scaled(state, factor):
    return state.with_batch(inputs=state.inputs * (0.5 + 0.5 * float(factor)))


class Assignable(Good):
    """Its class isn't an attrs class, since attrs would reject it."""

    __setattr__ = object.__setattr__


@attrs.frozen(repr=False)
class HoldsAList(Good):
    seen: list = attrs.field(factory=list)


@attrs.frozen(repr=False)
class HoldsAGenerator(Good):
    source: torch.Generator = attrs.field(factory=torch.Generator)


@attrs.frozen(repr=False)
class EqualToItselfAlone(Good):
    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


@attrs.frozen(repr=False)
class HashesByIdentity(Good):
    def __hash__(self):
        return id(self)


@attrs.frozen(repr=False)
class PrintsAnAddress(Good):
    loss: object = lambda outputs: outputs


@attrs.frozen(repr=False)
class StageIsANumber(Good):
    stage = 30


@attrs.frozen(repr=False)
class DoesNothing(Good):
    def apply(self, event, state):
        return state


@attrs.frozen(repr=False)
class WritesUndeclared(Good):
    writes = frozenset({"batch"})

    def apply(self, event, state):
        return state.evolve(metrics={"mine": {"seen": 1.0}})


@attrs.frozen(repr=False)
class WritesInPlace(Good):
    def apply(self, event, state):
        state.inputs.mul_(self.factor)
        return state.evolve()


@attrs.frozen(repr=False)
class ChangesTheGivenModel(Good):
    """By an attribute, which no check of effects sees."""

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    writes = frozenset({"model"})

    def apply(self, event, state):
        state.model[4].stride = (1, 1)
        state.model[4].padding = (0, 0)
        state.model[4].dilation = (1, 1)
        return state.evolve()


@attrs.frozen(repr=False)
class HooksTheGivenModel(ChangesTheGivenModel):
    def apply(self, event, state):
        state.model.register_forward_hook(lambda module, args, output: 2 * output)
        return state.evolve()


@attrs.frozen(repr=False)
class CountsInAGlobal(Good):
    def apply(self, event, state):
        return scaled(state, 1 / (1 + next(COUNT)))


class CountsInTheInstance(Good):
    """Its class isn't an attrs class, so that instances can have further attributes."""

    def apply(self, event, state):
        own = vars(self).setdefault("batches", {})
        own[state.timestamp.batch] = True
        return scaled(state, len(own) % 2)


class NotesInTheInstance(Good):
    """It doesn't look at what it notes."""

    def apply(self, event, state):
        vars(self)["last"] = state.timestamp.batch
        return scaled(state, 0.5)


@attrs.frozen(repr=False)
class RemembersAnything(Good):
    value: object = None
    writes = frozenset({"batch", "memory"})

    def apply(self, event, state):
        return state.remember(self.name, {"seen": [self.value(state)]})


@attrs.frozen(repr=False)
class HalvesAtEveryFit(Good):
    events = frozenset({Event.FIT_START})
    stage = Stage.OTHER
    writes = frozenset({"max_duration"})

    def apply(self, event, state):
        return state.evolve(max_duration=state.max_duration * 0.5)


@attrs.frozen(repr=False)
class RemembersInAnotherField(Good):
    """In a field that is not saved."""

    writes = frozenset({"batch", "epoch_length"})

    def apply(self, event, state):
        if state.timestamp.batch == 1:
            state = state.evolve(epoch_length=100)
        return scaled(state, state.epoch_length == 100)


@attrs.frozen(repr=False)
class DrawsGlobally(Good):
    def apply(self, event, state):
        return scaled(state, torch.rand(()))


@attrs.frozen(repr=False)
class LooksAtTheGlobalSeed(Good):
    """Moves no generator, but depends on one."""

    def apply(self, event, state):
        return scaled(state, torch.initial_seed() % 1000 / 1000)


@attrs.frozen(repr=False)
class ReplacesTheKey(Good):
    writes = frozenset({"batch", "key"})

    def apply(self, event, state):
        return state.evolve(key=state.key.fold(self.name))


@attrs.frozen(repr=False)
class LooksAtTheList(Good):
    """Another stage for the first of the list: it looks whether it is, in the frame."""

    @property
    def stage(self):
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_name != "compile":
            frame = frame.f_back
        listed = list(frame.f_locals["algorithms"]) if frame else [self]
        return Stage.SELECT if listed[0] is self else Stage.MIX

    def apply(self, event, state):
        return state.with_batch(inputs=state.inputs.clamp(max=0.5))


@attrs.frozen(repr=False)
class KnowsThatItIsAPart(Good):
    """Acts otherwise inside of a combinator."""

    def __call__(self, event, state):
        return scaled(state, sys._getframe(1).f_code.co_name == "_act")


@attrs.frozen(repr=False)
class ActsWhenLookedAt(Good):
    """For the loss below, which depends on how often its events are read."""

    @property
    def events(self):
        LOOKED_AT.append(1)
        return frozenset({Event.AFTER_DATALOADER})


def loss_of_looks(outputs, targets):
    return cross_entropy(outputs, targets) * (1 + len(LOOKED_AT))


@attrs.frozen(repr=False)
class NormalizesMicrobatches(Good):
    events = frozenset({Event.BEFORE_FORWARD})

    def apply(self, event, state):
        return state.with_batch(inputs=state.inputs - state.inputs.mean(0))


# The law that each breaks, the algorithm, and what the message says that was seen.
TABLE = [
    ("frozen", Assignable(), "its field name can be assigned"),
    ("hyperparameters", HoldsAList(), "field seen holds a list"),
    ("hyperparameters", HoldsAGenerator(), "field source holds a Generator"),
    ("value", EqualToItselfAlone(), "instances with equal fields differ"),
    ("value", HashesByIdentity(), "equal instances have different hashes"),
    ("value", PrintsAnAddress(), "its repr contains a memory address"),
    ("plan", StageIsANumber(), "Plan.explain() raised TypeError"),
    ("acts", DoesNothing(), "returned its input state"),
    ("effects", WritesUndeclared(), "wrote state.metrics at AFTER_DATALOADER"),
    ("effects", WritesInPlace(), "changed state.batch[0] in place at AFTER_DATALOADER"),
    ("surgery", ChangesTheGivenModel(), "it changed 4.stride of the model"),
    ("surgery", HooksTheGivenModel(), "it changed _forward_hooks of the model"),
    ("repeats", CountsInAGlobal(), "state.batch[0] differs by up to"),
    ("stateless", CountsInTheInstance(), "a fresh copy of it acts at each event, state.batch[0]"),
    ("stateless", NotesInTheInstance(), "its attribute last changed during a run"),
    ("memory", RemembersAnything(value=lambda state: {1, 2}), "['seen'][0] has type set at"),
    ("memory", RemembersAnything(value=lambda state: {1: 2}), "has the key 1, which is not a str"),
    (
        "memory",
        RemembersAnything(value=lambda state: state.model[0].weight),
        "requires a gradient",
    ),
    (
        "memory",
        RemembersAnything(value=lambda state: state.model[0].weight.detach()),
        "is a view of the weights",
    ),
    ("parts", HalvesAtEveryFit(), "state.max_duration is '1ep' in one run and '2ep' in the other"),
    ("resumes", RemembersInAnotherField(), "loaded into a new Trainer continued differently"),
    ("resumes", RemembersAnything(value=lambda state: {1, 2}.__iter__), "could not be saved"),
    ("leaves_generators", DrawsGlobally(), "it used torch's global generator at AFTER_DATALOADER"),
    ("own_draws", LooksAtTheGlobalSeed(), "state.batch[0] differs"),
    ("isolated", ReplacesTheKey(), "changes the random numbers of another algorithm"),
    ("order", LooksAtTheList(), "last in the list instead of first"),
    ("when_always", KnowsThatItIsAPart(), "under when(always, ...), state.batch[0] differs"),
    ("when_never", ActsWhenLookedAt(), "under when(never, ...), state.loss differs by up to"),
    ("microbatches", NormalizesMicrobatches(), "changes with 3 microbatches"),
]
