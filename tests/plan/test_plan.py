"""The order of algorithms and callbacks, and the description of a plan."""

import random
import re

import attrs
import pytest

from composable import (
    AmbiguousOrderWarning,
    Callback,
    Event,
    Plan,
    Stage,
    State,
)
from composable.algorithms import EMA, GradientClipping, LabelSmoothing, MixUp
from composable.core.algorithm import Algorithm, FunctionAlgorithm
from composable.core.logger import Logger
from composable.loggers import InMemoryLogger
from composable.plan.dispatch import Dispatcher
from composable.plan.ordering import topological_sort
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.models import linear


@attrs.frozen(repr=False)
class Note(Algorithm):
    """Writes its name into the batch, a list here."""

    at: frozenset = frozenset({Event.BATCH_START})
    place: Stage = Stage.OTHER
    fields: frozenset = frozenset()

    events = property(lambda self: self.at)
    stage = property(lambda self: self.place)
    writes = property(lambda self: self.fields)

    def apply(self, event, state):
        return state.evolve(batch=[*state.batch, self.name])


def note(name, *events, stage=Stage.OTHER, writes=()):
    return Note(frozenset(events or {Event.BATCH_START}), stage, frozenset(writes), name=name)


def order(plan, event):
    state = State(linear(), batch=[])
    return Dispatcher(plan, Logger()).fire(event, state).batch


def test_callbacks_see_what_algorithms_did_and_loggers_come_last():
    seen = []

    class Reads(Callback):
        def batch_start(self, state, logger):
            seen.append(("callback", list(state.batch)))

    class Writes(InMemoryLogger):
        def batch_start(self, state, logger):
            seen.append(("logger", list(state.batch)))

    plan = Plan.compile([note("a")], [Reads()], [Writes()])
    order(plan, Event.BATCH_START)

    assert seen == [("callback", ["a"]), ("logger", ["a"])]


def test_the_librarys_own_come_before_the_users_and_global_ones_after_them():
    core, given, visitor = Callback(), Callback(), Callback()
    loggers = [InMemoryLogger() for _ in range(3)]

    plan = Plan.compile((), [given], [loggers[1]], builtin_callbacks=[loggers[0], core])
    visited = plan.with_global_callbacks([visitor, loggers[2], given])

    assert plan.callbacks == (core, given, loggers[0], loggers[1])
    assert visited.callbacks == (core, given, visitor, *loggers)
    assert visited.with_global_callbacks([]) == plan
    assert plan.with_global_callbacks([given]) is plan


def test_an_empty_plan_gives_the_state_itself():
    plan = Plan.compile()
    fire, state = Dispatcher(plan, Logger()), State(linear())

    assert all(fire.fire(event, state) is state for event in Event)
    assert not fire.listens(Event.INIT)
    assert plan.explain() == "The plan is empty: the loop runs alone."


def test_a_plain_function_is_an_algorithm_that_decides_for_itself():
    def at_start(event, state):
        return state.evolve(batch=["function"]) if event is Event.BATCH_START else state

    plan = Plan.compile(at_start)

    assert order(plan, Event.BATCH_START) == ["function"]
    assert order(plan, Event.BATCH_END) == []
    assert [a.name for a in plan.algorithms] == ["at_start"]
    assert repr(FunctionAlgorithm(at_start)) == "FunctionAlgorithm(at_start)"


@pytest.mark.parametrize("method", ["match", "__call__"])
def test_an_algorithm_that_decides_when_it_acts_is_asked(method):
    @attrs.frozen
    class Never(Note):
        pass

    setattr(Never, method, lambda self, event, state: state if method == "__call__" else False)

    assert order(Plan.compile([Never(name="never"), note("a")]), Event.BATCH_START) == ["a"]


class Watch(Callback):
    def batch_end(self, state, logger):
        pass


def test_explain_prints_who_runs_when_on_what_and_why():
    plan = Plan.compile([LabelSmoothing(0.1), MixUp()], [Watch()])
    text = plan.explain(observers=True, width=120)
    lines = [re.split(r"  +", line) for line in text.splitlines()]

    assert lines[0] == ["event", "who", "stage", "writes", "why here"]
    assert [line[:3] for line in lines[2:]] == [
        ["before_train_batch", "MixUp", "mix"],
        ["before_loss", "MixUp", "mix"],
        ["before_loss", "LabelSmoothing", "targets"],
        ["batch_end", "Watch", "watches"],
    ]
    assert lines[4][3:] == ["batch, loss_fn", "targets comes after mix"]
    assert lines[5][3:] == ["-", "observes, in list order"]


@pytest.mark.parametrize("width", [80, 100])
def test_explain_lists_algorithms_within_the_width_and_names_the_callbacks(width):
    algorithms = [LabelSmoothing(0.1), MixUp(), EMA("1ba"), GradientClipping("norm", 1.0)]
    explained = Plan.compile(algorithms, [Watch()]).explain(width=width)

    assert max(map(len, explained.splitlines())) <= width
    assert "batch_end              EMA" in explained  # names and events are not wrapped
    assert "watches" not in explained
    assert explained.endswith("Callbacks, listed with observers=True: Watch.")


def test_explain_has_what_is_doubtful():
    with pytest.warns(AmbiguousOrderWarning):
        plan = Plan.compile([note("a", writes={"batch"}), note("b", writes={"batch"})])

    assert (
        plan.explain(width=999).splitlines()[-1].startswith("Caveat: a and b both write ['batch']")
    )


def ordered(name, *, before=(), after=(), events=(Event.BATCH_START,)):
    body = {"before": frozenset(before), "after": frozenset(after), "apply": Note.apply}
    return attrs.frozen(type(name, (Algorithm,), {**body, "events": frozenset(events)}))()


PAIR = (Event.BATCH_START, Event.BATCH_END)
ELSEWHERE = ordered("C", before={"A"}, events=(Event.BATCH_END,))


@pytest.mark.parametrize(
    ("algorithms", "event", "expected"),
    [
        (
            [ordered("A"), ordered("B"), ELSEWHERE],
            Event.BATCH_START,
            {"B": "A comes after C, as declared", "A": "after C, as declared"},
        ),
        (
            [note("a", *PAIR), note("b", Event.BATCH_END)],
            Event.BATCH_END,
            {"b": "before those that close batch_start", "a": "closes batch_start, in reverse"},
        ),
        (
            [ordered("A"), ordered("B")],
            Event.BATCH_START,
            {"A": "same stage as B, ordered by name", "B": "same stage as A, ordered by name"},
        ),
        (
            [ordered("A", after={"B"}), ordered("B")],
            Event.BATCH_START,
            {"B": "before A, as declared", "A": "after B, as declared"},
        ),
        ([ordered("A")], Event.BATCH_START, {"A": "alone here"}),
        (
            [note("b", stage=Stage.MIX), note("a")],
            Event.BATCH_START,
            {"b": "first of the stages here", "a": "other comes after mix"},
        ),
    ],
)
def test_explains_the_position_of_an_algorithm(algorithms, event, expected):
    steps = [step for step in Plan.compile(algorithms).steps() if step.event is event]

    assert {step.who: step.why for step in steps} == expected
    assert [step.who for step in steps] == list(expected)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (note("a", stage=Stage.MIX, writes={"batch"}), note("b", writes={"batch"})),
        (note("a", writes={"batch"}), note("b", writes={"loss"})),
        (note("a", writes={"memory"}), note("b", writes={"memory"})),  # each under its own name
        (note("a", writes={"batch"}), note("b", Event.BATCH_END, writes={"batch"})),
    ],
)
def test_algorithms_of_other_stages_fields_or_events_do_not_conflict(first, second):
    Plan.compile([first, second])  # warnings are errors in these tests


def test_an_algorithm_that_does_not_implement_apply_is_told_so():
    class Lazy(Algorithm):
        pass

    with pytest.raises(NotImplementedError, match=r"Lazy must implement apply\(event, state\)"):
        Lazy()(Event.INIT, State(linear()))


# --- the algorithms of the library ---


ORDER = [  # one line per stage
    *("ProxyFilter", "SelectiveBackprop"),
    *("Alibi", "FixRes", "ProgressiveResizing", "SeqLengthWarmup"),
    *("AlternatingFlip", "AugMix", "ColOut", "CutOut", "PairedAugment", "RandAugment"),
    *("RandomTranslation", "TTA"),
    *("SnapshotDistillation", "CutMix", "MixUp", "PrefixTokens"),
    "LabelSmoothing",
    # They come before the surgeries that would replace their layers.
    *("AttentionOutputGate", "Dropout", "ExclusiveSelfAttention", "GatedLinearUnits"),
    *("GhostBatchNorm", "GyroDropout", "InitializeConvolutions", "InitializeProjections"),
    *("NGramEmbeddings", "PartialKeyOffset", "QKNorm", "Rotary", "SkipConnections", "Smear"),
    *("SoftcapLogits", "SplitHead", "SquaredReLUs", "StochasticDepth", "ValueEmbeddings"),
    *(
        "ValueResidual",
        "WhitenedFirstLayer",
        "Factorize",
        "BlurPool",
        "SqueezeExcite",
        "WeightStandardization",
    ),
    "WindowWarmup",
    "ChannelsLast",
    *("LowPrecisionGroupNorm", "LowPrecisionLayerNorm"),
    *("GradientClipping", "LayerFreezing", "SAM"),
    *("EMA", "SWA"),
    *("ActivationCheckpointing", "NoOpModel", "WholeLoss"),
]


@pytest.mark.parametrize("seed", range(5))
def test_algorithms_run_in_the_order_of_their_stages_and_names(seed):
    listed = random.Random(seed).sample([case.example for case in ALGORITHMS], len(ALGORITHMS))

    assert [algorithm.name for algorithm in topological_sort(listed)] == ORDER


def test_batch_is_augmented_then_mixed_and_weights_are_averaged_after_the_step():
    at = {case.name: case.example.events for case in ALGORITHMS}

    assert Event.AFTER_DATALOADER in at["RandAugment"]
    assert Event.BEFORE_TRAIN_BATCH in at["MixUp"]
    assert Event.BEFORE_OPTIMIZER_STEP in at["GradientClipping"]
    assert Event.BATCH_END in at["EMA"]
