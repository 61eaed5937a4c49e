"""Law: before and after are brackets. The first to open is the last to close."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from composable import Algorithm, Event, Plan, Stage
from tests.support.data import batches
from tests.support.runs import make_trainer
from tests.support.strategies import few

PAIRS = [(event, event.partner) for event in Event if event.opens]
SINGLE = [event for event in Event if event.partner is None]


@attrs.frozen(eq=False, repr=False)
class Listener(Algorithm):
    """Writes down when it runs."""

    listens: frozenset
    place: Stage
    trace: list

    events = property(lambda self: self.listens)
    stage = property(lambda self: self.place)

    def apply(self, event, state):
        self.trace.append((event, self.name))
        return state


@st.composite
def sets_of_listeners(draw, trace):
    """Draw algorithms that listen to both events of some pairs, and to single events."""
    chosen = []
    for name in draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1)):
        pairs = draw(st.lists(st.sampled_from(PAIRS), unique=True, max_size=6))
        alone = draw(st.lists(st.sampled_from(SINGLE), unique=True, max_size=2))
        events = frozenset(event for pair in pairs for event in pair) | frozenset(alone)
        chosen.append(Listener(events, draw(st.sampled_from(Stage)), trace, name=name))
    return chosen


@few
@given(st.data())
def test_the_trace_of_a_run_nests_like_brackets(data):
    trace = []
    listeners = data.draw(sets_of_listeners(trace))
    # Everyone listens to what surrounds them too, so that pairs of different events must nest.
    training = make_trainer(
        algorithms=listeners,
        eval_dataloader=batches(),
        grad_accum=data.draw(st.integers(1, 2)),
        schedulers=data.draw(st.sampled_from([None, lambda clock: 0.5])),
    )
    training.fit()
    training.eval()
    training.predict(batches())

    is_open = []
    for event, name in without_the_last_look_at_the_loader(trace):
        if event.opens:
            is_open.append((event.partner, name))
        elif event.closes:
            assert is_open, f"{event} of {name} closes what was not open"
            assert is_open.pop() == (event, name)

    assert is_open == []


def without_the_last_look_at_the_loader(trace):
    """Drop each BEFORE_DATALOADER at which the loader is exhausted from a trace."""
    kept, fetched = [], set()
    for event, name in reversed(trace):
        if event is Event.AFTER_DATALOADER:
            fetched.add(name)
        elif event is Event.BEFORE_DATALOADER:
            if name not in fetched:
                continue
            fetched.remove(name)
        kept.append((event, name))
    return kept[::-1]


@st.composite
def pairs_and_listeners(draw):
    """Draw a pair, and algorithms that listen to none, one or both of its events."""
    pair = draw(st.sampled_from(PAIRS))
    events = st.frozensets(st.sampled_from(pair)) | st.frozensets(st.sampled_from(Event))
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1))
    stages = st.sampled_from([Stage.AUGMENT, Stage.MIX, Stage.OTHER])
    return pair, [Listener(draw(events), draw(stages), [], name=name) for name in names]


@given(pairs_and_listeners(), st.sampled_from([event for event in Event if not event.closes]))
def test_stages_and_names_order_algorithms_and_those_at_both_events_close_last_in_reverse(
    drawn, single
):
    (opening, closing), listeners = drawn
    plan = Plan.compile(listeners)

    def ordered(event):
        return sorted((a for a in listeners if event in a.events), key=lambda a: (a.stage, a.name))

    for event in (opening, single):
        assert list(plan.transforms(event)) == ordered(event)
    alone = [a for a in ordered(closing) if opening not in a.events]
    both = [a for a in ordered(closing) if opening in a.events]
    assert list(plan.transforms(closing)) == [*alone, *reversed(both)]
