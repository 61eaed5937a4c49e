"""What the property tests draw from."""

from fractions import Fraction

from hypothesis import Phase, settings
from hypothesis import strategies as st

from composable import Control, Event, Time, TimeUnit
from tests.support.campaign import FULL

seeds = st.integers(0, 2**64 - 1)

_PROFILE = settings.default.max_examples
few, fewer, fewest = (settings(max_examples=-(-_PROFILE * n // 25)) for n in (10, 5, 2))
"""For laws whose examples train: 10, 5 or 2 examples for every 25 of the profile, rounded up."""
single = fewest if FULL else settings(max_examples=1)
"""For tables of laws whose examples train: the simplest example; in a campaign, several."""
explicit = fewest if FULL else settings(phases=[Phase.explicit])
"""For such tables with examples of their own: these alone; in a campaign, several more."""


@st.composite
def exact_values(draw, unit):
    """Draw a value that a time of this unit can have."""
    if unit in (TimeUnit.DURATION, TimeUnit.SECOND):
        decimals = st.decimals(0, 1000, places=draw(st.integers(0, 4))).map(Fraction)
        return draw(decimals | st.fractions(0, 1000, max_denominator=1000))
    return draw(st.integers(0, 10**15))


@st.composite
def times(draw, unit=None):
    """Draw a time of any unit, or of this one."""
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


def wishes():
    """Draw requests of callbacks: `Asks(*wish)` makes one when an event fires for the n-th time."""
    one = st.tuples(st.sampled_from(FIT_EVENTS), st.integers(0, 6), requests)
    return st.lists(one, max_size=4)
