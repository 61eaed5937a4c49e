"""The order of algorithms and callbacks, and the description of a plan."""

import json
import re
import warnings

import attrs
import pytest

from composable import (
    AmbiguousOrderWarning,
    Callback,
    CompatibilityWarning,
    Event,
    Plan,
    Stage,
    State,
    choose,
    during,
)
from composable.algorithms import EMA, BlurPool, GradientClipping, LabelSmoothing, MixUp
from composable.core.algorithm import Algorithm, FunctionAlgorithm
from composable.core.logger import Logger
from composable.loggers import InMemoryLogger
from composable.plan.dispatch import Dispatcher
from tests.support.tiny import linear


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


def test_algorithms_run_by_stage_and_then_by_name_however_listed():
    chosen = [
        note("a", stage=Stage.MIX),
        note("b", stage=Stage.SELECT),
        note("d", stage=Stage.AUGMENT),
        note("c", stage=Stage.AUGMENT),
    ]

    assert order(Plan.compile(chosen), Event.BATCH_START) == ["b", "c", "d", "a"]
    assert order(Plan.compile(chosen[::-1]), Event.BATCH_START) == ["b", "c", "d", "a"]
    assert Plan.compile(chosen) == Plan.compile(chosen[::-1])


def test_pairs_nest_like_brackets():
    pair = (Event.BATCH_START, Event.BATCH_END)
    plan = Plan.compile(
        [
            note("inner", *pair, stage=Stage.MIX),
            note("outer", *pair, stage=Stage.SELECT),
            note("late", Event.BATCH_END, stage=Stage.OTHER),
            note("early", Event.BATCH_END, stage=Stage.SELECT),
        ]
    )

    assert order(plan, Event.BATCH_START) == ["outer", "inner"]
    assert order(plan, Event.BATCH_END) == ["early", "late", "inner", "outer"]


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


def test_an_event_without_listeners_gives_the_state_itself():
    fire, state = Dispatcher(Plan.compile(), Logger()), State(linear())

    assert all(fire.fire(event, state) is state for event in Event)
    assert not fire.listens(Event.INIT)


def test_a_plain_function_is_an_algorithm_that_decides_for_itself():
    def at_start(event, state):
        return state.evolve(batch=["function"]) if event is Event.BATCH_START else state

    plan = Plan.compile(at_start)

    assert order(plan, Event.BATCH_START) == ["function"]
    assert order(plan, Event.BATCH_END) == []
    assert [a.name for a in plan.algorithms] == ["at_start"]


def test_explain_prints_who_runs_when_on_what_and_why():
    class Watch(Callback):
        def batch_end(self, state, logger):
            pass

    plan = Plan.compile([LabelSmoothing(0.1), MixUp()], [Watch()])
    lines = [re.split(r"  +", line) for line in plan.explain().splitlines()]

    assert lines[0] == ["event", "who", "stage", "reads", "writes", "why here"]
    assert [line[:3] for line in lines[2:]] == [
        ["before_train_batch", "MixUp", "mix"],
        ["before_loss", "MixUp", "mix"],
        ["before_loss", "LabelSmoothing", "targets"],
        ["batch_end", "Watch", "watches"],
    ]
    assert lines[4][3:] == [
        "batch, loss_fn, outputs",
        "batch, loss_fn",
        "targets comes after mix",
    ]
    assert lines[5][3:] == ["-", "-", "observes, in list order"]


def test_an_empty_plan_says_so():
    assert Plan.compile().explain() == "The plan is empty: the loop runs alone."


def test_to_dict_is_plain_data():
    plan = Plan.compile([MixUp(), EMA("10ba")], [Callback()], [InMemoryLogger()])

    data = json.loads(json.dumps(plan.to_dict()))

    assert data["version"] == 1
    assert list(data["algorithms"]) == ["MixUp", "EMA"]
    assert data["algorithms"]["MixUp"]["call"] == repr(MixUp())
    assert data["algorithms"]["MixUp"]["incompatible_with"] == ["CutMix", "MixUp"]
    assert data["algorithms"]["EMA"]["events"] == ["batch_end", "eval_start", "predict_start"]
    assert data["callbacks"] == ["Callback", "InMemoryLogger"]
    assert data["steps"][0]["event"] == "before_train_batch"
    assert data["steps"][0]["who"] == "MixUp"
    assert data["steps"][0]["writes"] == ["batch", "loss_fn"]


def test_to_dict_says_of_each_part_what_it_says_of_the_whole():
    plan = Plan.compile([choose([during("0ep", "1ep", MixUp()), LabelSmoothing()])])

    (data,) = json.loads(json.dumps(plan.to_dict()))["algorithms"].values()

    assert [part["name"] for part in data["parts"]] == [
        "during('0ep', '1ep', MixUp)",
        "LabelSmoothing",
    ]
    assert data["parts"][0]["parts"][0]["class"] == "MixUp"
    assert data["parts"][1]["writes"] == ["batch", "loss_fn"]
    declared = {
        "before",
        "after",
        "incompatible_with",
        "discouraged_with",
        "replaces",
        "reads",
        "writes",
        "events",
    }
    assert declared <= data["parts"][1].keys()


def test_to_dict_and_explain_have_what_is_doubtful():
    with pytest.warns(AmbiguousOrderWarning):
        plan = Plan.compile([note("a", writes={"batch"}), note("b", writes={"batch"})])

    (doubt,) = plan.to_dict()["caveats"]
    assert (doubt["first"], doubt["second"]) == ("a", "b")
    assert doubt["kind"] == "AmbiguousOrderWarning"
    assert plan.explain().splitlines()[-1].startswith("Caveat: a and b both write ['batch']")


def ordered(name, *, before=(), after=(), events=(Event.BATCH_START,)):
    body = {"before": frozenset(before), "after": frozenset(after), "apply": Note.apply}
    return attrs.frozen(type(name, (Algorithm,), {**body, "events": frozenset(events)}))()


def test_why_here_is_true_where_the_reason_is_an_algorithm_of_another_event():
    elsewhere = ordered("C", before={"A"}, events=(Event.BATCH_END,))
    plan = Plan.compile([ordered("A"), ordered("B"), elsewhere])

    assert [a.name for a in plan.algorithms] == ["B", "C", "A"]
    assert [step.why for step in plan.steps() if step.event is Event.BATCH_START] == [
        "A comes after C, as declared",
        "after C, as declared",
    ]


def test_why_here_says_of_the_first_why_it_is_first():
    def why(*algorithms):
        return Plan.compile(algorithms).steps()[0].why

    assert why(ordered("A"), ordered("B")) == "same stage as B, ordered by name"
    assert why(ordered("A", after={"B"}), ordered("B")) == "before A, as declared"
    assert why(note("b", stage=Stage.MIX), note("a")) == "first of the stages here"
    assert why(ordered("A")) == "alone here"


def test_why_here_at_a_closing_event():
    pair = (Event.BATCH_START, Event.BATCH_END)
    plan = Plan.compile([note("a", *pair), note("b", Event.BATCH_END)])

    assert [(s.who, s.why) for s in plan.steps() if s.event is Event.BATCH_END] == [
        ("b", "before those that close batch_start"),
        ("a", "closes batch_start, in reverse"),
    ]


def test_the_six_algorithms_go_together_without_a_warning():
    chosen = [MixUp(), EMA(), LabelSmoothing(), BlurPool(), GradientClipping("norm", 1.0)]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Plan.compile(chosen)


def test_two_of_one_name_are_refused_with_the_way_out():
    with pytest.raises(
        ValueError, match=r"two named 'MixUp': MixUp\(.*\) and MixUp\(.*name='MixUp2'"
    ):
        Plan.compile([MixUp(0.1), MixUp(0.2)])


def test_two_of_one_class_may_have_two_names():
    with pytest.warns(CompatibilityWarning, match="fast and slow may interfere: the model"):
        plan = Plan.compile([EMA("1ba", name="fast"), EMA("100ba", name="slow")])

    assert [a.name for a in plan.algorithms] == ["fast", "slow"]


def test_two_writers_of_one_field_in_one_stage_are_reported():
    chosen = [
        note("a", stage=Stage.AUGMENT, writes={"batch"}),
        note("b", stage=Stage.AUGMENT, writes={"batch", "loss"}),
    ]
    with pytest.warns(
        AmbiguousOrderWarning,
        match=r"a and b both write \['batch'\] in the stage AUGMENT.*puts? a first",
    ):
        Plan.compile(chosen)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"stage": Stage.MIX}, {"stage": Stage.AUGMENT}),  # the stage orders them
        ({"writes": {"batch"}}, {"writes": {"loss"}}),
        ({"writes": {"memory"}}, {"writes": {"memory"}}),  # each under its own name
    ],
)
def test_what_does_not_conflict_is_not_reported(first, second):
    options = [{"writes": {"batch"}, **first}, {"writes": {"batch"}, **second}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Plan.compile([note(name, **given) for name, given in zip("ab", options, strict=True)])


def test_algorithms_of_different_events_do_not_conflict():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Plan.compile(
            [
                note("a", Event.BATCH_START, writes={"batch"}),
                note("b", Event.BATCH_END, writes={"batch"}),
            ]
        )


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"algorithms": [MixUp]},
            TypeError,
            r"algorithms contains the class MixUp; pass an instance, MixUp\(\)",
        ),
        (
            {"algorithms": [Callback()]},
            TypeError,
            r"is a callback; pass it in callbacks=\[...\]",
        ),
        (
            {"algorithms": InMemoryLogger()},
            TypeError,
            r"a callback; pass it in loggers=\[...\]",
        ),
        (
            {"algorithms": ["MixUp"]},
            TypeError,
            "algorithms contains 'MixUp'; pass an Algori",
        ),
        (
            {"algorithms": "MixUp"},
            TypeError,
            "algorithms contains 'MixUp'; pass an Algorithm",
        ),
        (
            {"callbacks": [Callback]},
            TypeError,
            r"callbacks contains the class Callback; pass an instance, Callback\(\)",
        ),
        ({"callbacks": [MixUp()]}, TypeError, r"an algorithm; pass it in algorithms=\[...\]"),
        ({"callbacks": InMemoryLogger()}, TypeError, r"a logger; pass it in loggers=\[...\]"),
        (
            {"callbacks": [3]},
            TypeError,
            "callbacks contains 3; pass a Callback, or a function",
        ),
        ({"loggers": [Callback()]}, TypeError, "loggers contains .* instance of LoggerDestination"),
        ({"loggers": [InMemoryLogger]}, TypeError, r"pass an instance, InMemoryLogger\(\)"),
        ({"loggers": "stdout"}, TypeError, "loggers contains 'stdout'; pass an instance of"),
    ],
)
def test_what_is_in_the_wrong_list_is_told_where_it_belongs(given, error, message):
    with pytest.raises(error, match=message):
        Plan.compile(**given)


def test_a_function_algorithm_prints_its_name():
    def halve(event, state):
        return state

    assert repr(FunctionAlgorithm(halve)) == "FunctionAlgorithm(halve)"


def test_an_algorithm_that_does_not_implement_apply_is_told_so():
    class Lazy(Algorithm):
        pass

    with pytest.raises(NotImplementedError, match=r"Lazy must implement apply\(event, state\)"):
        Lazy()(Event.INIT, State(linear()))
