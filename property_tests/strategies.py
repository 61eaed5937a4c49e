"""What the property tests draw from."""

from fractions import Fraction

from hypothesis import strategies as st

from composable import Control, Event, Time, TimeUnit
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from tests.runs import Draws, GradientNoise, Jitter

seeds = st.integers(0, 2**64 - 1)

mixups = st.builds(
    MixUp,
    alpha=st.sampled_from([0.2, 1.0]),
    per_sample=st.booleans(),
    interpolate_loss=st.booleans(),
)
clippings = st.sampled_from(
    [
        GradientClipping("norm", 0.1),
        GradientClipping("value", 0.01),
        GradientClipping("adaptive", 0.1),
    ]
)
selections = st.builds(
    SelectiveBackprop,
    start=st.sampled_from([0.0, 0.3]),
    end=st.just(1.0),
    keep=st.sampled_from([0.5, 1.0]),
    interrupt=st.integers(0, 2),
)
averages = st.builds(
    EMA,
    half_life=st.sampled_from(["1ba", "3ba", "1ep"]),
    ema_start=st.sampled_from(["0dur", "3ba"]),
)


@st.composite
def algorithm_sets(draw, *, min_size=0, surgery=True):
    """A subset of all algorithms of the library and a few more, in any order."""
    pool = [
        draw(mixups),
        LabelSmoothing(draw(st.sampled_from([0.1, 0.3]))),
        draw(averages),
        draw(selections),
        draw(clippings),
        Jitter(),
        GradientNoise(),
        Draws(),
    ]
    if surgery:
        pool.append(BlurPool(min_channels=0, blur_first=draw(st.booleans())))
    chosen = draw(st.lists(st.sampled_from(range(len(pool))), unique=True, min_size=min_size))
    return [pool[i] for i in chosen]


@st.composite
def exact_values(draw, unit):
    """A value that a time of this unit can have."""
    if unit in (TimeUnit.DURATION, TimeUnit.SECOND):
        decimals = st.decimals(0, 1000, places=draw(st.integers(0, 4))).map(Fraction)
        return draw(decimals | st.fractions(0, 1000, max_denominator=1000))
    return draw(st.integers(0, 10**15))


@st.composite
def times(draw, unit=None):
    """A time of any unit, or of this one."""
    unit = draw(st.sampled_from(TimeUnit)) if unit is None else unit
    return Time(draw(exact_values(unit)), unit)


@st.composite
def times_of_one_unit(draw, count):
    """Several times that can be compared."""
    unit = draw(st.sampled_from(TimeUnit))
    return [draw(times(unit)) for _ in range(count)]


requests = st.sampled_from(Control)
whole_factors = st.integers(0, 1000)
factors = st.fractions(0, 100, max_denominator=100)
parts_of_the_run = st.fractions(Fraction(1, 100), 1, max_denominator=100)

FIT_EVENTS = [
    event
    for event in Event
    if "PREDICT" not in event.name
    and "STANDALONE" not in event.name
    and event not in (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD)
]


def wishes(max_size=4):
    """What callbacks ask for: `Asks(*wish)` asks when an event happens for the n-th time."""
    one = st.tuples(st.sampled_from(FIT_EVENTS), st.integers(0, 6), requests)
    return st.lists(one, max_size=max_size)
