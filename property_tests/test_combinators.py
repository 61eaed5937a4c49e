"""Laws: combinations do what their words say, at any time and however nested; the timeline too."""

from fractions import Fraction
from functools import partial

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from composable import (
    Algorithm,
    Clock,
    Event,
    Plan,
    State,
    Time,
    always,
    anneal,
    chain,
    choose,
    during,
    every,
    identity,
    never,
    when,
)
from composable.algorithms import EMA, MixUp, SelectiveBackprop
from composable.optim import linear
from tests.support.algorithm_cases import (
    ALGORITHMS,
    EXTRAS,
    algorithm_sets,
    algorithms,
    annealed,
    on_a_problem,
)
from tests.support.algorithms import Jitter
from tests.support.data import batches
from tests.support.observers import Watch
from tests.support.outcomes import differences, left_by, outcome, resumed
from tests.support.runs import VISION, make_trainer
from tests.support.strategies import few, fewer
from tests.support.tracing import traced

pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning", "ignore::composable.IdleAlgorithmWarning"
)

BATCHES = 6  # in two epochs of three

single = on_a_problem(algorithms)
unhurried = on_a_problem(partial(algorithm_sets, min_size=1, max_size=1)).map(
    lambda drawn: (drawn[0], drawn[1][0])
)
"""Those that need no length of the run at its start, for runs that are fitted in parts."""
steps = st.integers(0, BATCHES)


@attrs.frozen(repr=False)
class Marks(Algorithm):
    """Remembers at which batches and events it acted."""

    events = frozenset({Event.BATCH_START, Event.BEFORE_LOSS, Event.BATCH_END, Event.EVAL_START})
    reads = frozenset({"memory", "timestamp"})
    writes = frozenset({"memory"})

    def apply(self, event: Event, state: State) -> State:
        counted = state.previous_timestamp if event.counts_batch else state.timestamp
        mark = (event.value, counted.batch)
        return state.remember(self.name, [*state.memory.get(self.name, []), mark])


def alike(problem, one, other, **options):
    """Return whether two algorithms, or two lists, have bit-identical outcomes."""
    return not differences(outcome(problem, one, **options), outcome(problem, other, **options))


def marked(algorithm, **options):
    """Return the batches at which `Marks` acted, by event."""
    marks = outcome(VISION, algorithm, **options)["memory"].get("Marks", [])
    return {event.value: [n for value, n in marks if value == event.value] for event in Event}


# --- those that change nothing ---

TRIVIAL = {
    "chain(identity, a)": lambda a: chain(identity, a),
    "chain(a, identity)": lambda a: chain(a, identity),
    "when": lambda a: when(always, a),
    "during": lambda a: during("0dur", "1dur", a),
    "every": lambda a: every("1ba", a),
    "choose": lambda a: choose([a]),
    "anneal": annealed,
}


@fewer
@given(single)
def test_trivial_combinations_are_the_algorithm(drawn):
    """Law of combinators: `identity` in a chain has no effect, and an empty chain equals
    `identity`.

    Law of combinators: `when(always, a)` equals `a`, and `when(never, a)` equals `identity`.
    """
    problem, a = drawn
    expected = outcome(problem, a)

    for name, combination in TRIVIAL.items():
        assert not differences(outcome(problem, combination(a)), expected), name
    assert alike(problem, when(never, a), identity)
    assert chain() == identity


# --- runs that are fitted in parts ---


# SWA warns of a first part that is too short for it.
@pytest.mark.filterwarnings("ignore::composable.algorithms.swa.NothingAveragedWarning")
@fewer
@given(
    unhurried,
    st.tuples(steps, steps).map(sorted) | st.sampled_from(["2ba", "3ba", "2ep"]),
    st.integers(1, BATCHES + 1),
)
def test_windows_and_turns_do_not_depend_on_how_the_run_is_fitted(drawn, window, stop):
    """Law of combinators: Windows are half-open, in batches, epochs, samples and fractions, and do
    not depend on how a run is split into calls of `fit`.

    Law of combinators: `every` counts correctly, also if a run is split into several calls of
    `fit`.
    """
    problem, a = drawn

    def build():
        if isinstance(window, str):
            limited = every(window, a)
        else:
            limited = during(*(f"{step}ba" for step in window), a)
        return problem.trainer(algorithms=limited, check_effects=False)

    with traced() as trace:
        in_parts = resumed(build, f"{stop}ba", f"{BATCHES + 2 - stop}ba")
    assume(not trace.asks_how_long())

    assert not differences(left_by(in_parts), left_by(resumed(build, f"{BATCHES + 2}ba")))


# --- chain ---


@few
@given(on_a_problem(partial(algorithm_sets, min_size=3)))
def test_chain_is_associative(drawn):
    """Law of combinators: `chain` is associative."""
    _, algorithms = drawn
    assume(len(algorithms) >= 3)
    a, b, *rest = algorithms
    c = chain(*rest)

    assert chain(chain(a, b), c) == chain(a, chain(b, c)) == chain(*algorithms)


@fewer
@given(on_a_problem(partial(algorithm_sets, min_size=1)))
def test_a_chain_in_the_order_of_the_plan_trains_as_the_list_does_and_can_say_another(drawn):
    """Law of combinators: A chain in the order of the plan equals the list; a different order can
    give a different result.
    """
    problem, algorithms = drawn
    plan = Plan.compile(algorithms)

    assert alike(problem, chain(*plan.algorithms), algorithms)
    one, other = chain(Jitter(), MixUp()), chain(MixUp(), Jitter())

    assert Plan.compile([one]) != Plan.compile([other])
    assert [a.name for a in one.parts] == ["Jitter", "MixUp"]
    assert [a.name for a in other.parts] == ["MixUp", "Jitter"]


# --- conditions and windows ---


@fewer
@given(single, st.lists(steps, min_size=3, max_size=3))
def test_during_splits_at_any_point(drawn, points):
    """Law of combinators: `during` can be split at any point, and a window over the whole run has
    no effect.
    """
    problem, a = drawn
    start, middle, end = (f"{point}ba" for point in sorted(points))

    split = chain(during(start, middle, a), during(middle, end, a))

    assert alike(problem, split, during(start, end, a))


@few
@given(st.sampled_from(["ba", "ep", "sp", "dur"]), steps, steps)
def test_a_window_is_half_open_in_every_unit(unit, start, end):
    """Law of combinators: Windows are half-open, in batches, epochs, samples and fractions, and do
    not depend on how a run is split into calls of `fit`.
    """
    whole = BATCHES if unit == "dur" else 1
    window = [Time(Fraction(n, whole), unit) for n in (start, end)]

    acted = marked(during(*window, Marks()))

    # Batches have 4, 4 and 2 examples.
    now = {"ba": [0, 1, 2, 3, 4, 5], "ep": [0, 0, 0, 1, 1, 1], "sp": [0, 4, 8, 10, 14, 18]}
    begins = now.get(unit, now["ba"])
    expected = [k for k, at in enumerate(begins) if start <= at < end]
    for event in (Event.BATCH_START, Event.BEFORE_LOSS, Event.BATCH_END):
        assert acted[event.value] == expected
    assert acted["eval_start"] == [k for k in (2, 5) if k in expected]


# --- turns ---


@few
@given(
    st.integers(1, 4),
    st.sampled_from(["ba", "ep"]),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_every_means_one_batch_or_all_batches_of_one_epoch_in_n(n, unit, parts):
    """Law of combinators: `every` counts correctly, also if a run is split into several calls of
    `fit`.
    """
    algorithm = every(f"{n}{unit}", Marks())
    state = resumed(lambda: VISION.trainer(algorithms=algorithm), *(f"{k}ba" for k in parts))

    epoch = 1 if unit == "ba" else 3
    expected = [k for k in range(sum(parts)) if k // epoch % n == 0]
    acted = state.memory["Marks"]
    for name in ("batch_start", "batch_end"):
        assert [k for event, k in acted if event == name] == expected


# --- choice ---


@few
@given(st.integers(0, 2**32), st.lists(st.sampled_from([0, 1]), min_size=2, max_size=4).filter(any))
def test_choose_runs_one_part_at_all_events_of_a_batch(seed, weights):
    """Law of combinators: `choose` runs exactly one part per batch, the same one at all events of
    the batch; the choice does not depend on other components.
    """
    parts = [Marks(name=f"Marks{i}") for i in range(len(weights))]
    choice = choose(parts, weights=weights)

    memory = outcome(VISION, choice, max_duration="4ep", seed=seed)["memory"]

    marks = [memory.get(part.name, []) for part in parts]
    for one, weight in zip(marks, weights, strict=True):
        at_start, at_end = (
            [k for value, k in one if value == e] for e in ("batch_start", "batch_end")
        )
        assert at_start == at_end
        assert weight or not one
    for event in ("batch_start", "before_loss", "batch_end"):
        assert sorted(k for one in marks for value, k in one if value == event) == [*range(12)]


@fewer
@given(algorithm_sets())
def test_choice_does_not_depend_on_other_algorithms(others):
    """Law of combinators: `choose` runs exactly one part per batch, the same one at all events of
    the batch; the choice does not depend on other components.
    """

    def chosen(*more):
        choice = choose([Marks(name="a"), Marks(name="b")], weights=[1, 2], name="choice")
        memory = outcome(VISION, [choice, *more], max_duration="3ep")["memory"]
        return memory.get("a"), memory.get("b")

    assert chosen(*others) == chosen()


# --- hyperparameters that change ---


@few
@given(st.floats(0.0, 0.9), st.floats(0.0, 0.9))
def test_an_annealed_hyperparameter_is_its_schedule_at_the_batch(start, end):
    """Law of combinators: The value of an annealed hyperparameter is its schedule's at the
    batch.
    """
    schedule = linear(start, end)
    seen = []

    @attrs.frozen(repr=False)
    class Notes(Algorithm):
        rate: float = 0.0
        events = frozenset({Event.BATCH_START, Event.BATCH_END})

        def apply(self, event, state):
            seen.append(self.rate)
            return state

    outcome(VISION, anneal(Notes, rate=schedule))

    expected = [
        schedule(Clock.at(batch=k, max_duration="2ep", epoch_length=3)) for k in range(BATCHES)
    ]
    assert seen[0::2] == expected
    assert seen[1::2] == expected


# --- all of them ---


@pytest.mark.parametrize("case", ALGORITHMS + EXTRAS, ids=repr)
def test_under_every_combinator_an_algorithm_declares_its_own_events_and_writes(case):
    """Law of combinators: A combination declares the events and fields of its parts."""
    a = case.example

    for combine in (*TRIVIAL.values(), lambda a: every("2ba", a), lambda a: choose([a, identity])):
        combination = combine(a)
        assert (combination.events, combination.writes) == (a.events, a.writes)
        assert combination.reads >= a.reads
        assert combination.stage == a.stage


# --- the timeline ---

EPOCHS, LENGTH = 3, 4
DATA = batches(4 * LENGTH, size=4)


def odd(state):
    return state.timestamp.batch % 2 == 1


times = (
    st.fractions(0, 1, max_denominator=7).map(lambda f: f"{f.numerator}/{f.denominator}dur")
    | st.integers(0, EPOCHS + 1).map("{}ep".format)
    | st.integers(0, EPOCHS * LENGTH + 2).map("{}ba".format)
    | st.integers(0, 30).map("{}sp".format)
)
windows = st.recursive(
    st.just(Marks()),
    lambda inner: (
        st.builds(during, times, times, inner)
        | st.builds(every, st.sampled_from(["1ba", "2ba", "3ba", "1ep", "2ep"]), inner)
        | st.builds(when, st.just(odd), inner)
        | st.builds(lambda a: choose([a, chain()]), inner)
        | st.builds(
            lambda a, s, t: chain(a, during(s, t, Marks(name="again"))), inner, times, times
        )
    ),
    max_leaves=1,
)
lengths = st.sampled_from([f"{EPOCHS}ep", f"{EPOCHS * LENGTH}ba", f"{EPOCHS * LENGTH - 1}ba"])


@given(windows, lengths, st.booleans())
def test_algorithms_act_in_the_batches_of_their_timeline(algorithm, length, knows):
    state = make_trainer(loader=DATA, algorithms=[algorithm], max_duration=length).fit()

    timeline = Plan.compile([algorithm]).timeline(length, LENGTH if knows else None)
    for row in timeline.rows:
        acted = {batch for _, batch in state.memory.get(row.name, [])}
        for batch in range(state.timestamp.batch):
            said = row.active(fraction_done(batch, length))
            assert said in (None, batch in acted)


def fraction_done(batch, length):
    clock = Clock.at(batch=batch, max_duration=length, epoch_length=LENGTH)
    return Fraction(clock.fraction_of("1dur"))


@given(times)
def test_an_average_is_updated_from_the_time_on_that_the_timeline_says(start):
    average = EMA("1ba", ema_start=start)
    watch = Watch(Event.BATCH_END, read=lambda state: "EMA" in state.averages)
    run = make_trainer(loader=DATA, algorithms=average, callbacks=watch, max_duration=f"{EPOCHS}ep")
    run.fit()

    (row,) = run.timeline().rows
    for done, exists in enumerate(watch.values, start=1):
        if not row.spans:
            assert not exists
        elif not row.spans[0].conditions:
            assert exists == (Fraction(done, len(watch.values)) >= row.spans[0].start)


@given(st.sampled_from([0.0, 0.25, 0.3, 0.5]), st.sampled_from([0.6, 0.9, 1.0]), lengths)
def test_selective_backprop_selects_in_the_span_of_the_timeline(start, end, length):
    algorithm = SelectiveBackprop(start, end, interrupt=0)
    (row,) = Plan.compile([algorithm]).timeline(length, LENGTH).rows
    state = make_trainer(loader=DATA, max_duration=length).state

    for batch in range(EPOCHS * LENGTH - 1):
        clock = Clock.at(batch=batch, max_duration=length, epoch_length=LENGTH)
        now = state.evolve(timestamp=clock.timestamp)
        said = row.active(fraction_done(batch, length))
        assert said == algorithm.match(Event.AFTER_DATALOADER, now)
