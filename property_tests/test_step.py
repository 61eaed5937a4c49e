"""Law: a step that a callback observes gives the same bits as a step that nothing observes.

A step is composed of what its run needs. Without a listener between the forward and the backward
pass it builds no states in between; with one, it fires every event.
"""

import tempfile
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import StepLR

from composable import Callback, Event, Stage
from composable.algorithms import SAM, SWA, GradientClipping, LayerFreezing
from composable.loggers import InMemoryLogger
from composable.optim import cosine
from composable.trainer.guards import NonFiniteLossError
from tests.support.algorithm_cases import (
    ALGORITHMS,
    algorithm_sets,
    can_be_combined,
    cases_on,
    instances_of,
    problems,
)
from tests.support.campaign import second_once
from tests.support.losses import NaNOnce
from tests.support.outcomes import differences, left_by
from tests.support.runs import PROBLEMS, VISION
from tests.support.stand_ins import stand_in
from tests.support.strategies import FIT_EVENTS, few, seeds

pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning",
    "ignore::composable.IdleAlgorithmWarning",
    "ignore::composable.trainer.guards.NonFiniteLossWarning",
)

BETWEEN = (Event.AFTER_FORWARD, Event.BEFORE_LOSS, Event.AFTER_LOSS, Event.BEFORE_BACKWARD)
STEERING = (SAM, SWA, LayerFreezing, GradientClipping)
"""Algorithms that change the step, and do not listen between the forward and the backward pass."""


def observer(events):
    """Build a callback with an empty method for each event."""
    hooks = {event.value: lambda self, state, logger: None for event in events}
    return type("Observer", (Callback,), hooks)()


# --- configurations ---


def one_half(parameters, kind, index):
    """Build an optimizer of the first or the second half of the parameters."""
    parameters = list(parameters)
    middle = len(parameters) // 2
    return kind(parameters[middle:] if index else parameters[:middle], lr=0.05)


FUSED = partial(AdamW, lr=0.05, fused=True)
CONFIGURATIONS = [
    {"grad_accum": 3, "loss_mean_over": "examples", "optimizers": FUSED, "logged": False},
    {"microbatch_size": 3, "loss_mean_over": "tokens", "optimizers": partial(Adam, lr=0.05)},
    {"microbatch_size": "auto", "schedulers": cosine()},
    {"optimizers": [partial(one_half, kind=SGD, index=i) for i in range(2)]},
    {"schedulers": partial(StepLR, step_size=1, gamma=0.5), "step_schedulers_every_batch": True},
    *({"nonfinite_loss": policy, "bad_call": 5} for policy in ("skip", "rollback", "ignore")),
    {"nonfinite_loss": "skip", "bad_call": 9, "grad_accum": 2},
    {"nonfinite_loss": "rollback", "bad_call": 1},
]


@st.composite
def algorithms_on_a_problem(draw):
    """Draw a problem and algorithms, some of which change the step."""
    problem = draw(problems)
    algorithms = draw(algorithm_sets(problem, max_size=draw(st.sampled_from([0, 0, 2]))))
    for kind in draw(st.lists(st.sampled_from(STEERING), unique=True, max_size=3)):
        others = [type(one).__name__ for one in algorithms]
        if kind.__name__ not in others and all(can_be_combined(kind.__name__, o) for o in others):
            algorithms.append(draw(instances_of(kind)))
    return {"problem": problem, "algorithms": algorithms}


def train(configuration, callbacks=(), **changes):
    """Return the whole outcome of a run."""
    options = {"nonfinite_loss": "raise", "check_effects": False, **configuration, **changes}
    problem, logger = options.pop("problem"), InMemoryLogger()
    bad_call = options.pop("bad_call", None)
    if options.get("microbatch_size") == "auto" and torch.version.cuda == "simulated":
        from tests.simgpu.failing import Fails

        callbacks = [*callbacks, Fails(most=2)]
    if options["nonfinite_loss"] in ("skip", "rollback"):
        options["loss_fn"] = NaNOnce(bad_call)
    if options.pop("logged", True):
        options["loggers"] = [logger]
    with tempfile.TemporaryDirectory() as folder:
        if options["nonfinite_loss"] == "rollback":
            options |= {"save_folder": folder, "save_interval": "1ba"}
        trainer = problem.trainer(callbacks=callbacks, **options)
        try:
            trainer.fit()
            error = None
        except NonFiniteLossError as raised:  # no checkpoint to roll back to
            error = str(raised)
    state, parts = trainer.state, {name: p.state_dict() for name, p in trainer._run.parts.items()}
    return {
        **left_by(state),
        "loss": state.loss,
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
        "parts": {name: parts[name] for name in ("rates", "guard", "microbatches")},
        "logged": [(stamp.batch, values) for stamp, values in logger.records],
        "error": error,
    }


# --- the law ---

some_events = st.one_of(
    st.just(list(Event)),
    st.lists(st.sampled_from(FIT_EVENTS), unique=True, min_size=1),
    st.sampled_from(BETWEEN).map(lambda event: [event]),
)


@few
@given(
    st.sampled_from(CONFIGURATIONS), algorithms_on_a_problem(), seeds, some_events, st.booleans()
)
def test_observed_and_unobserved_steps_give_the_same_bits(options, drawn, seed, events, checked):
    configuration = {**drawn, **options, "seed": seed}

    observed = train(configuration, [observer(events)], check_effects=checked)

    assert differences(observed, train(configuration)) == []


WITHOUT_REQUESTS = [one for one in CONFIGURATIONS if not {"bad_call", "grad_accum"} <= one.keys()]
Idle = stand_in("Idle", Stage.OTHER, Event.BATCH_START, writes=())


@few
@given(st.sampled_from(WITHOUT_REQUESTS), problems, seeds)
def test_a_step_without_algorithms_has_the_bits_of_one_with_an_idle_one(options, problem, seed):
    configuration = {"problem": problem, "seed": seed, **options}

    idle = train(configuration, [observer(Event)], algorithms=[Idle()])
    assert differences(idle, train(configuration, [observer(Event)])) == []


EACH = second_once((problem, one) for problem in PROBLEMS for one in cases_on(problem))


@pytest.mark.parametrize(("problem", "case"), EACH, ids=repr)
def test_with_each_algorithm_observed_and_unobserved_steps_give_the_same_bits(problem, case):
    configuration = {"problem": problem, "algorithms": [case.example], "grad_accum": 2}

    assert differences(train(configuration, [observer(Event)]), train(configuration)) == []


@pytest.mark.parametrize("one", [one for one in ALGORITHMS if one.kind in STEERING], ids=repr)
def test_the_law_compares_both_kinds_of_steps(one):
    listens = []
    for callbacks in ([], [observer([Event.AFTER_LOSS])]):
        run = VISION.trainer(algorithms=[one.example], callbacks=callbacks)
        listens.append([run._session.dispatcher.listens(event) for event in BETWEEN])

    assert listens == [[False] * 4, [False, False, True, False]]


def seen_at(event, *others):
    """Return the state that an observer of an event, and of some others, sees at that event."""
    seen = []

    def look(self, state, logger):
        loss = None if state.loss is None else state.loss.detach().clone()
        seen.append([state.timestamp.batch, state.inputs, getattr(state, "outputs", "split"), loss])

    callback = observer(others)
    setattr(type(callback), event.value, look)
    VISION.trainer(callbacks=[callback], grad_accum=2, check_effects=False).fit()
    return seen


EVENTS = list(Event)
STEP = EVENTS[EVENTS.index(Event.BATCH_START) : EVENTS.index(Event.AFTER_ZERO_GRAD) + 1]


@pytest.mark.parametrize("event", STEP)
def test_an_observer_of_one_event_sees_the_state_that_an_observer_of_all_sees(event):
    alone = seen_at(event)

    assert len(alone) in (6, 12)  # batches, or microbatches
    assert differences(alone, seen_at(event, *Event)) == []
