"""Law: each method acts in exactly the batches that the timeline shows."""

from fractions import Fraction

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable import (
    Algorithm,
    Clock,
    Event,
    Plan,
    Stage,
    chain,
    choose,
    during,
    every,
    when,
)
from composable.algorithms import EMA, SelectiveBackprop
from tests.support.data import batches
from tests.support.observers import Watch
from tests.support.runs import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::composable.IdleAlgorithmWarning")

EPOCHS, BATCHES = 3, 4
DATA = batches(4 * BATCHES, size=4)


@attrs.frozen(repr=False)
class Acts(Algorithm):
    """Remembers the batches in which it acts."""

    events = frozenset({Event.BATCH_START})
    stage = Stage.OTHER
    reads = frozenset({"memory", "timestamp"})
    writes = frozenset({"memory"})

    def apply(self, event, state):
        batches = [*state.memory.get(self.name, []), state.timestamp.batch]
        return state.remember(self.name, batches)


def odd(state):
    return state.timestamp.batch % 2 == 1


known_times = (
    st.fractions(0, 1, max_denominator=7).map(lambda f: f"{f.numerator}/{f.denominator}dur")
    | st.integers(0, EPOCHS + 1).map("{}ep".format)
    | st.integers(0, EPOCHS * BATCHES + 2).map("{}ba".format)
)
times = known_times | st.integers(0, 30).map("{}sp".format)
windows = st.recursive(
    st.just(Acts()),
    lambda inner: (
        st.builds(during, times, times, inner)
        | st.builds(every, st.sampled_from(["1ba", "2ba", "3ba", "1ep", "2ep"]), inner)
        | st.builds(when, st.just(odd), inner)
        | st.builds(lambda a: choose([a, chain()]), inner)
        | st.builds(lambda a, s, t: chain(a, during(s, t, Acts(name="again"))), inner, times, times)
    ),
    max_leaves=1,
)
lengths = st.sampled_from([f"{EPOCHS}ep", f"{EPOCHS * BATCHES}ba", f"{EPOCHS * BATCHES - 1}ba"])


@given(windows, lengths, st.booleans())
def test_algorithms_act_in_the_batches_of_their_timeline(algorithm, length, knows):
    state = make_trainer(loader=DATA, algorithms=[algorithm], max_duration=length).fit()

    timeline = Plan.compile([algorithm]).timeline(length, BATCHES if knows else None)
    for row in timeline.rows:
        acted = state.memory.get(row.name, [])
        for batch in range(state.timestamp.batch):
            said = row.active(fraction_done(batch, length))
            assert said in (None, batch in acted)


def fraction_done(batch, length):
    clock = Clock.at(batch=batch, max_duration=length, epoch_length=BATCHES)
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
    (row,) = Plan.compile([algorithm]).timeline(length, BATCHES).rows
    state = make_trainer(loader=DATA, max_duration=length).state

    for batch in range(EPOCHS * BATCHES - 1):
        clock = Clock.at(batch=batch, max_duration=length, epoch_length=BATCHES)
        now = state.evolve(timestamp=clock.timestamp)
        said = row.active(fraction_done(batch, length))
        assert said == algorithm.match(Event.AFTER_DATALOADER, now)
