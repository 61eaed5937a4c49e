"""Law: algorithms made of algorithms do what their words say, at any time and however nested."""

from fractions import Fraction

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
from composable.algorithms import EMA, BlurPool, LabelSmoothing, MixUp, SelectiveBackprop
from composable.optim import linear
from property_tests.strategies import algorithm_sets, clippings, mixups, selections
from tests.runs import (
    Draws,
    GradientNoise,
    Jitter,
    Watch,
    batches,
    conv_net,
    same,
    trainer,
    weights,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning", "ignore::composable.IdleAlgorithmWarning"
)

BATCHES = 6  # in two epochs of three

single = st.one_of(
    mixups,
    clippings,
    selections,
    st.sampled_from([LabelSmoothing(0.2), EMA("2ba"), EMA("1ep"), Jitter(), GradientNoise()]),
)
steps = st.integers(0, BATCHES)


@attrs.frozen(repr=False)
class Marks(Algorithm):
    """Remembers at which batches and events it acted."""

    events = frozenset({Event.BATCH_START, Event.BEFORE_LOSS, Event.BATCH_END, Event.EVAL_START})
    writes = frozenset({"memory"})

    def apply(self, event: Event, state: State) -> State:
        counted = state.began if event.counts_batch else state.timestamp
        mark = (event.value, counted.batch)
        return state.remember(self.name, [*state.memory.get(self.name, []), mark])


def outcome(*algorithms, **options):
    """All that a run leaves behind: weights, memory and metrics."""
    state = trainer(
        conv_net(),
        batches(images=True),
        eval_dataloader=batches(images=True),
        algorithms=algorithms,
        **options,
    ).fit()
    memory = {
        name: list(value["average"].values()) if name == "EMA" else value
        for name, value in state.memory.items()
    }
    return weights(state.model), memory, state.metrics["eval"]


def alike(one, other):
    """Whether two outcomes are equal to the bit."""
    (ours, mine, my_metrics), (theirs, their, their_metrics) = one, other
    averages = mine.pop("EMA", []), their.pop("EMA", [])
    return same(ours, theirs) and same(*averages) and mine == their and my_metrics == their_metrics


def marked(algorithm, **options):
    """The batches at which `Marks` acted, by event."""
    _, memory, _ = outcome(algorithm, **options)
    marks = memory.get("Marks", [])
    return {event.value: [n for value, n in marks if value == event.value] for event in Event}


# --- identity and chain ---


@given(single)
def test_identity_in_a_chain_changes_nothing(a):
    assert alike(outcome(chain(identity, a)), outcome(a))
    assert alike(outcome(chain(a, identity)), outcome(a))
    assert chain() == identity


@given(st.lists(single, min_size=3, max_size=3, unique_by=lambda a: a.name))
def test_chain_is_associative(algorithms):
    a, b, c = algorithms

    assert chain(chain(a, b), c) == chain(a, chain(b, c)) == chain(a, b, c)


@given(st.lists(single, min_size=1, max_size=3, unique_by=lambda a: a.name))
def test_a_chain_in_the_order_of_the_plan_trains_as_the_list_does(algorithms):
    plan = Plan.compile(algorithms)

    assert alike(outcome(chain(*plan.algorithms)), outcome(*algorithms))


def test_a_chain_can_say_another_order_than_the_plan():
    one, other = chain(Jitter(), MixUp()), chain(MixUp(), Jitter())

    assert Plan.compile([one]) != Plan.compile([other])
    assert [a.name for a in one.parts] == ["Jitter", "MixUp"]
    assert [a.name for a in other.parts] == ["MixUp", "Jitter"]


# --- conditions and windows ---


@given(single)
def test_when_always_is_the_algorithm(a):
    assert alike(outcome(when(always, a)), outcome(a))


@given(single)
def test_when_never_is_identity(a):
    assert alike(outcome(when(never, a)), outcome(identity))


@given(single, st.lists(steps, min_size=3, max_size=3))
def test_during_splits_at_any_point(a, points):
    start, middle, end = (f"{point}ba" for point in sorted(points))

    split = chain(during(start, middle, a), during(middle, end, a))

    assert alike(outcome(split), outcome(during(start, end, a)))


@given(single)
def test_during_the_whole_run_is_the_algorithm(a):
    assert alike(outcome(during("0dur", "1dur", a)), outcome(a))


@given(st.sampled_from(["ba", "ep", "sp", "dur"]), steps, steps)
def test_a_window_is_half_open_in_every_unit(unit, start, end):
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


@given(single, steps, steps, st.integers(1, BATCHES - 1))
def test_a_window_is_the_same_when_the_run_is_fitted_in_parts(a, one, other, stop):
    start, end = sorted([one, other])
    window = during(f"{start}ba", f"{end}ba", a)

    def fitted(*durations):
        run = trainer(conv_net(), batches(images=True), algorithms=window, max_duration=None)
        for duration in durations:
            state = run.fit(duration=duration)
        return weights(state.model)

    assume(not isinstance(a, SelectiveBackprop))  # whose own window is a fraction of the run
    assert same(fitted(f"{stop}ba", f"{BATCHES - stop}ba"), fitted(f"{BATCHES}ba"))


# --- turns ---


@given(st.integers(1, 4), st.integers(1, BATCHES))
def test_every_counts_batches_right_also_when_the_run_is_fitted_in_parts(n, stop):
    run = trainer(
        conv_net(), batches(images=True), algorithms=every(f"{n}ba", Marks()), max_duration=None
    )
    run.fit(duration=f"{stop}ba")
    state = run.fit(duration=f"{BATCHES}ba")

    expected = [k for k in range(stop + BATCHES) if k % n == 0]
    acted = state.memory["Marks"]
    assert [k for event, k in acted if event == "batch_start"] == expected
    assert [k for event, k in acted if event == "batch_end"] == expected


@given(st.integers(1, 3))
def test_every_few_epochs_means_all_batches_of_those_epochs(n):
    acted = marked(every(f"{n}ep", Marks()), max_duration="4ep")

    expected = [k for k in range(12) if k // 3 % n == 0]
    assert acted["batch_start"] == expected
    assert acted["batch_end"] == expected


@given(single)
def test_every_batch_is_the_algorithm(a):
    assert alike(outcome(every("1ba", a)), outcome(a))


# --- choice ---


@given(single)
def test_choosing_among_one_is_the_algorithm(a):
    assert alike(outcome(choose([a])), outcome(a))


@given(st.integers(0, 2**32), st.integers(2, 4))
def test_one_of_several_acts_in_each_batch_and_it_is_the_same_at_all_its_events(seed, count):
    parts = [Marks(name=f"Marks{i}") for i in range(count)]
    state = trainer(
        conv_net(), batches(images=True), algorithms=choose(parts), max_duration="4ep", seed=seed
    ).fit()

    marks = [state.memory.get(part.name, []) for part in parts]
    for event in ("batch_start", "before_loss", "batch_end"):
        acted = sorted(k for one in marks for value, k in one if value == event)
        assert acted == list(range(12))
    for one in marks:
        by_event = [{k for value, k in one if value == e} for e in ("batch_start", "batch_end")]
        assert by_event[0] == by_event[1]


@given(algorithm_sets())
def test_what_is_chosen_does_not_depend_on_other_algorithms(others):
    def chosen(*more):
        choice = choose([Marks(name="a"), Marks(name="b")], weights=[1, 2], name="choice")
        _, memory, _ = outcome(choice, *more, max_duration="3ep")
        return memory.get("a"), memory.get("b")

    assert chosen(*others) == chosen()


@given(st.sampled_from([0, 1]))
def test_a_weight_of_zero_is_never_chosen(zero):
    weights_of = [1.0, 1.0]
    weights_of[zero] = 0.0
    choice = choose([Marks(name="0"), Marks(name="1")], weights=weights_of)

    _, memory, _ = outcome(choice, max_duration="4ep")

    assert set(memory) == {str(1 - zero)}


# --- hyperparameters that change ---


@given(st.floats(0.0, 0.9), st.floats(0.0, 0.9))
def test_an_annealed_hyperparameter_is_its_schedule_at_the_batch(start, end):
    schedule = linear(start, end)
    seen = []

    @attrs.frozen(repr=False)
    class Notes(Algorithm):
        rate: float = 0.0
        events = frozenset({Event.BATCH_START, Event.BATCH_END})

        def apply(self, event, state):
            seen.append(self.rate)
            return state

    outcome(anneal(Notes, rate=schedule))

    expected = [
        schedule(Clock.at(batch=k, max_duration="2ep", epoch_length=3)) for k in range(BATCHES)
    ]
    assert seen[0::2] == expected
    assert seen[1::2] == expected


def test_annealing_with_constants_is_the_algorithm():
    assert alike(outcome(anneal(MixUp, alpha=0.4)), outcome(MixUp(alpha=0.4)))


# --- all of them ---


@st.composite
def combinations(draw, depth=2):
    """A list of algorithms, some of them under combinators, nested at random."""

    def wrapped(algorithm, left):
        kind = draw(st.sampled_from(["as it is", "when", "during", "every", "choose", "chain"]))
        if kind == "as it is" or not left:
            return algorithm
        inner = wrapped(algorithm, left - 1)
        if kind == "when":
            return when(draw(st.sampled_from([always, never])), inner)
        if kind == "during":
            start, end = sorted([draw(steps), draw(steps)])
            return during(f"{start}ba", f"{end}ba", inner)
        if kind == "every":
            return every(draw(st.sampled_from(["1ba", "2ba", "1ep"])), inner)
        if kind == "choose":
            return choose([inner, identity], weights=[draw(st.integers(1, 3)), 1])
        return chain(identity, inner)

    return [wrapped(algorithm, depth) for algorithm in draw(algorithm_sets(surgery=False))]


@given(combinations(), st.randoms(use_true_random=False))
def test_combinations_in_any_order_give_bit_identical_weights(algorithms, random):
    shuffled = random.sample(algorithms, len(algorithms))

    assert alike(outcome(*algorithms), outcome(*shuffled))


@given(combinations())
def test_a_combination_repeats_bit_for_bit(algorithms):
    assert alike(outcome(*algorithms), outcome(*algorithms))


@given(combinations())
def test_a_combination_declares_the_events_and_fields_of_its_parts(algorithms):
    def within(part, whole):
        return (
            part.events <= whole.events and part.reads <= whole.reads | {"timestamp"}
        ) and part.writes <= whole.writes

    for algorithm in algorithms:
        assert all(within(part, algorithm) for part in algorithm.parts)


@given(combinations())
def test_combinations_do_not_shift_what_another_algorithm_draws(algorithms):
    others = [a for a in algorithms if "Draws" not in a.name]

    _, memory, _ = outcome(*others, Draws())
    _, alone, _ = outcome(Draws())

    assert memory["Draws"] == alone["Draws"]


def test_surgery_in_a_window_from_the_beginning_takes_place():
    blurred = trainer(
        conv_net(),
        batches(images=True),
        algorithms=during("0dur", "1dur", BlurPool(min_channels=0)),
    )

    assert "Blur" in repr(blurred.state.model)


def test_the_state_says_when_the_batch_began():
    watch = Watch(lambda state: (state.began.batch, state.timestamp.batch), Event.BATCH_END)

    trainer(callbacks=watch).fit()

    assert watch.seen == [(k, k + 1) for k in range(6)]
