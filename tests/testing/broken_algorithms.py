"""Algorithms that break one law each, with what the message of `check_algorithm` says of them."""

import copy
import itertools
import random
import sys

import attrs
import torch
from torch.nn.functional import cross_entropy

from composable import Algorithm, Event, Stage


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


def variant(apply=None, *, name="Broken", fields=(), plain=False, **members):
    """Build a `Good` algorithm with another `apply(self, state)`, further fields or members.

    With `plain`, its class isn't an attrs class: instances can have further attributes.
    """
    if apply is not None:
        members["apply"] = lambda self, event, state: apply(self, state)
    body = {"__annotations__": dict.fromkeys(fields, object), **dict(fields), **members}
    kind = type(name, (Good,), body)
    return kind() if plain else attrs.frozen(repr=False)(kind)()


def scaled(state, factor):
    return state.with_batch(inputs=state.inputs * (0.5 + 0.5 * float(factor)))


def writing(*names):
    return {"writes": frozenset({"batch", *names})}


SURGERY = {"events": frozenset({Event.INIT}), "stage": Stage.SURGERY, **writing("model")}
AT_FIT = {
    "events": frozenset({Event.FIT_START}),
    "stage": Stage.OTHER,
    "writes": frozenset({"max_duration"}),
}


def halves(self, state):
    return state.evolve(max_duration=state.max_duration * 0.5)


def writes_in_place(self, state):
    state.inputs.mul_(self.factor)
    return state.evolve()


def changes_the_stride(self, state):  # by attributes, which no check of effects sees
    for attribute, value in (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1))):
        setattr(state.model[4], attribute, value)
    return state.evolve()


def hooks_the_model(self, state):
    state.model.register_forward_hook(lambda module, args, output: 2 * output)
    return state.evolve()


def counts_in_the_instance(self, state):
    own = vars(self).setdefault("batches", {})
    own[state.timestamp.batch] = True
    return scaled(state, len(own) % 2)


def notes_in_the_instance(self, state):  # it doesn't look at what it notes
    vars(self)["last"] = state.timestamp.batch
    return scaled(state, 0.5)


def remembers_in_another_field(self, state):  # in a field that isn't saved
    if state.timestamp.batch == 1:
        state = state.evolve(epoch_length=100)
    return scaled(state, state.epoch_length == 100)


def stage_by_place(self):  # another stage for the first of the list: it looks, in the frame
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "compile":
        frame = frame.f_back
    listed = list(frame.f_locals["algorithms"]) if frame else [self]
    return Stage.SELECT if listed[0] is self else Stage.MIX


def knows_that_it_is_a_part(self, event, state):  # acts otherwise inside of a combinator
    return scaled(state, sys._getframe(1).f_code.co_name == "_act")


LOOKED_AT = []


def looked_at(self):
    LOOKED_AT.append(1)
    return frozenset({Event.AFTER_DATALOADER})


def loss_of_looks(outputs, targets):
    return cross_entropy(outputs, targets) * (1 + len(LOOKED_AT))


def remembering(value):
    return variant(
        lambda self, state: state.remember(self.name, {"seen": [value(state)]}),
        **writing("memory"),
    )


COUNT = itertools.count()
HALVES = variant(halves, **AT_FIT)
HALVES_ONCE = variant(halves, **{**AT_FIT, "events": frozenset({Event.INIT})})
WRITES_IN_PLACE = variant(writes_in_place, name="WritesInPlace")

ASSIGNABLE = variant(plain=True, __setattr__=object.__setattr__)
HOLDS_A_LIST = variant(fields={"seen": attrs.field(factory=list)})
HOLDS_A_GENERATOR = variant(fields={"source": attrs.field(factory=torch.Generator)})
PRINTS_AN_ADDRESS = variant(fields={"loss": attrs.field(default=(lambda outputs: outputs,))})
EQUAL_TO_ITSELF = variant(__eq__=lambda self, other: self is other, __hash__=object.__hash__)
DOES_NOTHING = variant(lambda self, state: state)
WRITES_UNDECLARED = variant(lambda self, state: state.evolve(metrics={"mine": {"seen": 1.0}}))
COUNTS_IN_A_GLOBAL = variant(lambda self, state: scaled(state, 1 / (1 + next(COUNT))))
DRAWS_GLOBALLY = variant(lambda self, state: scaled(state, torch.rand(())))
# It moves no generator, but depends on one.
LOOKS_AT_THE_SEED = variant(lambda self, state: scaled(state, torch.initial_seed() % 1000 / 1000))
REPLACES_THE_KEY = variant(
    lambda self, state: state.evolve(key=state.key.fold(self.name)), **writing("key")
)
ORDERS_BY_PLACE = variant(
    lambda self, state: state.with_batch(inputs=state.inputs.clamp(max=0.5)),
    stage=property(stage_by_place),
)
NORMALIZES_MICROBATCHES = variant(
    lambda self, state: state.with_batch(inputs=state.inputs - state.inputs.mean(0)),
    events=frozenset({Event.BEFORE_FORWARD}),
)


def replaces_in_place(self, state):
    state.model[1] = torch.nn.Identity()
    return state


COPIES_THE_MODEL = variant(
    lambda self, state: state.evolve(model=copy.deepcopy(state.model)), **SURGERY
)
REPLACES_IN_PLACE = variant(replaces_in_place, **SURGERY)

LATE = variant(  # it acts after the last step
    lambda self, state: scaled(state, 1 - 0.5 * (state.timestamp.batch > 100))
)

# The law that each breaks, the algorithm, what the message says that was seen, and the case.
TABLE = [
    ("frozen", ASSIGNABLE, "its field name can be assigned"),
    ("hyperparameters", HOLDS_A_LIST, "field seen holds a list"),
    ("hyperparameters", HOLDS_A_GENERATOR, "field source holds a Generator"),
    ("value", EQUAL_TO_ITSELF, "instances with equal fields differ"),
    ("value", variant(__hash__=lambda self: id(self)), "equal instances have different hashes"),
    ("value", PRINTS_AN_ADDRESS, "its repr contains a memory address"),
    ("plan", variant(stage=30), "Plan.explain() raised TypeError"),
    ("acts", DOES_NOTHING, "returned its input state"),
    ("acts", COPIES_THE_MODEL, "returned a copy of the model in which nothing is replaced"),
    ("takes_effect", DOES_NOTHING, "the outputs after training equal a run without it"),
    ("takes_effect", LATE, "the outputs after training equal"),
    ("effects", REPLACES_IN_PLACE, "changed state.model.1, which is another object, at INIT"),
    ("effects", WRITES_UNDECLARED, "wrote state.metrics at AFTER_DATALOADER"),
    ("effects", WRITES_IN_PLACE, "changed state.batch[0] in place at AFTER_DATALOADER"),
    ("surgery", variant(changes_the_stride, **SURGERY), "it changed 4.stride of the model"),
    ("surgery", variant(hooks_the_model, **SURGERY), "it changed _forward_hooks of the model"),
    ("repeats", COUNTS_IN_A_GLOBAL, "state.batch[0] differs by up to"),
    (
        "stateless",
        variant(counts_in_the_instance, plain=True),
        "a fresh copy of it acts at each event, state.batch[0]",
    ),
    (
        "stateless",
        variant(notes_in_the_instance, plain=True),
        "its attribute last changed during a run",
    ),
    ("memory", remembering(lambda state: {1, 2}), "['seen'][0] has type set at"),
    ("memory", remembering(lambda state: {1: 2}), "has the key 1, which is not a str"),
    ("memory", remembering(lambda state: state.model[0].weight), "requires a gradient"),
    (
        "memory",
        remembering(lambda state: state.model[0].weight.detach()),
        "is a view of the weights",
    ),
    ("parts", HALVES, "state.max_duration is '1ep' in one run and '2ep' in the other"),
    (
        "resumes",
        variant(remembers_in_another_field, **writing("epoch_length")),
        "loaded into a new Trainer continued differently",
    ),
    ("resumes", remembering(lambda state: {1, 2}.__iter__), "could not be saved"),
    *(
        (
            "leaves_generators",
            variant(
                lambda self, state, draw=draw: state.remember(self.name, draw()),
                events=frozenset({event}),
                **writing("memory"),
            ),
            f"it used {library}'s global generator at {event.name}",
        )
        for library, draw in {
            "python": random.random,
            "torch": lambda: torch.rand(()).item(),
        }.items()
        for event in (Event.FIT_START, Event.EPOCH_START, Event.BATCH_END)
    ),
    ("leaves_generators", DRAWS_GLOBALLY, "it used torch's global generator at AFTER_DATALOADER"),
    ("own_draws", LOOKS_AT_THE_SEED, "state.batch[0] differs"),
    ("isolated", REPLACES_THE_KEY, "changes the random numbers of another algorithm"),
    ("order", ORDERS_BY_PLACE, "last in the list instead of first"),
    (
        "when_always",
        variant(__call__=knows_that_it_is_a_part),
        "under when(always, ...), state.batch[0] differs",
    ),
    (
        "when_never",
        variant(events=property(looked_at)),
        "under when(never, ...), state.loss differs by up to",
    ),
    ("microbatches", NORMALIZES_MICROBATCHES, "changes with 3 microbatches"),
]
