"""Laws: the events of a run are a word of the grammar of `Event`, and nest; requests are joined.

The recogniser is a regular expression over one character an event, made for each run from its
configuration alone: it does not depend on the code of the Trainer.
"""

import re
from fractions import Fraction
from functools import partial, reduce
from itertools import cycle, islice, takewhile
from operator import or_

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from composable import Algorithm, Control, Evaluator, Event, Logger, Plan, Stage, State, Time
from composable.loggers import InMemoryLogger
from composable.optim import cosine
from composable.plan.dispatch import Dispatcher
from tests.support.data import batches, stream
from tests.support.models import mlp, same, weights
from tests.support.observers import Asks, Trace
from tests.support.runs import make_trainer
from tests.support.strategies import few, fewer, requests, wishes
from tests.support.traced import SavesBy

# Requests are drawn at random: some can't be met.
pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.UnsupportedRequestWarning", "ignore:Cosine is measured in epochs"
)

LETTERS = {event: chr(ord("Ā") + i) for i, event in enumerate(Event)}


def spelled(events):
    """Spell events as a word, one character per event."""
    return "".join(LETTERS[event] for event in events)


def word(*names):
    return spelled(Event[name] for name in names)


def maybe(pattern):
    return f"(?:{pattern})?"


def some(pattern):
    return f"(?:{pattern})+"


def any_number(pattern):
    return f"(?:{pattern})*"


def one_of(*patterns):
    return f"(?:{'|'.join(patterns)})"


@attrs.frozen
class Run:
    """What a run is made of, as far as its events depend on it."""

    count: int = 10
    """Examples, in batches of 4."""
    max_duration: str = "2ep"
    knows_its_length: bool = True
    split: dict = attrs.field(factory=dict)
    evaluators: tuple = ()
    """For each, when it is due: the first has one batch, the second two, and so on."""
    schedulers: str = "none"
    iteration_length: str | None = None
    logs: bool = False
    log_interval: str = "1ba"
    asked: tuple = ()

    def train(self, *more):
        """Train, and return the trainer and the trace."""
        trace = Trace()
        evaluators = [
            Evaluator(str(i), batches(4 * (i + 1)), eval_interval=interval)
            for i, interval in enumerate(self.evaluators)
        ]
        schedulers, every_batch = SCHEDULERS[self.schedulers]
        training = make_trainer(
            mlp(),
            (batches if self.knows_its_length else stream)(self.count),
            eval_dataloader=evaluators or None,
            schedulers=schedulers,
            step_schedulers_every_batch=every_batch,
            max_duration=self.max_duration,
            iteration_length=self.iteration_length,
            loggers=InMemoryLogger() if self.logs else (),
            log_interval=self.log_interval,
            callbacks=[*(Asks(*wish) for wish in self.asked), trace, SavesBy(lambda state: None)],
            **self.split,
        )
        training.fit()
        for longer in more:
            training.fit(duration=longer)
        return training, trace

    # --- the grammar ---

    @property
    def saves(self):
        can = any(Control.SAVE in request for _, _, request in self.asked)
        return maybe(word("BEFORE_SAVE", "AFTER_SAVE")) if can else ""

    @property
    def evaluates(self):
        if not self.evaluators:
            return ""
        batch = word(
            "EVAL_BATCH_START", "EVAL_BEFORE_FORWARD", "EVAL_AFTER_FORWARD", "EVAL_BATCH_END"
        )
        each = [
            maybe(word("EVAL_START") + batch * (i + 1) + word("EVAL_END"))
            for i in range(len(self.evaluators))
        ]
        return maybe(
            word("EVAL_BEFORE_ALL")
            + f"(?!{word('EVAL_AFTER_ALL')})"  # at least one of them
            + "".join(each)
            + word("EVAL_AFTER_ALL")
        )

    @property
    def trains(self):
        """One batch: at full length, or the short last one."""
        microbatch = word(
            "BEFORE_FORWARD",
            "AFTER_FORWARD",
            "BEFORE_LOSS",
            "AFTER_LOSS",
            "BEFORE_BACKWARD",
            "AFTER_BACKWARD",
        )
        sizes = {len(targets) for _, targets in batches(self.count)}
        batch = (
            word("BATCH_START", "BEFORE_TRAIN_BATCH")
            + one_of(*(microbatch * self.microbatches(size) for size in sizes))
            + word("AFTER_TRAIN_BATCH", "BEFORE_OPTIMIZER_STEP", "AFTER_OPTIMIZER_STEP")
            + word("BEFORE_ZERO_GRAD", "AFTER_ZERO_GRAD")
        )
        steps = word("BEFORE_SCHEDULER_STEP", "AFTER_SCHEDULER_STEP")
        logging = maybe(word("LOG")) if self.logs else ""
        if self.logs and self.log_interval == "1ba":
            logging = word("LOG")
        return (
            word("BEFORE_DATALOADER", "AFTER_DATALOADER")
            + (steps if self.schedulers == "schedule" else "")
            + batch
            + (steps if self.schedulers == "every batch" else "")
            + word("BATCH_END")
            + logging
            + self.evaluates
            + word("BATCH_CHECKPOINT")
            + self.saves
        )

    def microbatches(self, count):
        size = self.split.get("microbatch_size") or -(-count // self.split.get("grad_accum", 1))
        return -(-count // size)

    @property
    def fits(self):
        steps = word("BEFORE_SCHEDULER_STEP", "AFTER_SCHEDULER_STEP")
        begun = word("EPOCH_START") + some(self.trains)
        epoch = (
            begun
            + maybe(word("BEFORE_DATALOADER"))  # the loader was exhausted
            + (maybe(word("LOG")) if self.logs else "")
            + (steps if self.schedulers == "every epoch" else "")
            + word("EPOCH_END")
            + self.evaluates
            + (maybe(steps) if self.schedulers == "plateau" else "")
            + word("EPOCH_CHECKPOINT")
            + self.saves
        )
        start = word("ITERATION_START")
        iteration = start + some(epoch) + word("ITERATION_END", "ITERATION_CHECKPOINT") + self.saves
        stopped = start + one_of(some(epoch) + maybe(begun), begun)
        return (
            word("FIT_START")
            + any_number(iteration)
            + maybe(stopped)
            + self.evaluates
            + word("FIT_END")
        )


SCHEDULERS = {
    "none": (None, False),
    "schedule": (cosine(), False),
    "every batch": (partial(StepLR, step_size=1), True),
    "every epoch": (partial(StepLR, step_size=1), False),
    "plateau": (ReduceLROnPlateau, False),
}
BUILDING = word("INIT", "BEFORE_LOAD", "AFTER_LOAD")

intervals = st.sampled_from(["1ba", "2ba", "1ep", "2ep", "0.5dur", "5sp"])


@st.composite
def runs(draw, *, asked=None):
    """Draw runs of every kind."""
    evaluators = tuple(draw(st.lists(intervals, max_size=2)))
    kinds = [kind for kind in SCHEDULERS if evaluators or kind != "plateau"]
    iteration_length = draw(st.sampled_from([None, "1ep", "2ep"]))
    durations = ["1ep", "2ep", "3ep", "1ba", "4ba", "6ba", "9sp", "20sp"]
    durations += ["1iter", "2iter"] if iteration_length else []
    return Run(
        count=draw(st.integers(1, 12)),
        max_duration=draw(st.sampled_from(durations)),
        knows_its_length=draw(st.booleans()),
        split=draw(
            st.sampled_from([{}, {"grad_accum": 2}, {"grad_accum": 3}, {"microbatch_size": 3}])
        ),
        evaluators=evaluators,
        schedulers=draw(st.sampled_from(kinds)),
        iteration_length=iteration_length,
        logs=draw(st.booleans()),
        log_interval=draw(st.sampled_from(["1ba", "3ba", "1ep", "0.5dur"])),
        asked=draw(wishes() if asked is None else asked),
    )


@few
@given(runs())
@example(Run(asked=[(Event.FIT_START, 0, Control.STOP)]))
@example(Run(asked=[(Event.ITERATION_START, 0, Control.STOP)], iteration_length="1ep"))
@example(Run(asked=[(Event.BATCH_END, 1, Control.STOP | Control.END_EPOCH | Control.SAVE)]))
@example(Run(asked=[(Event.EVAL_END, 0, Control.EVALUATE)], evaluators=("2ba", "1ep")))
@example(Run(evaluators=("3ba", "2ep"), max_duration="1ep"))
def test_events_of_a_run_match_the_grammar_and_end_with_an_evaluation_by_every_evaluator(run):
    """Law of events: The event sequence of a run, and of several calls of `fit`, matches the
    grammar.

    Law of events: Training ends with an evaluation by every evaluator, followed by `FIT_END`.
    """
    training, trace = run.train()

    assert re.fullmatch(BUILDING + run.fits, spelled(trace.events)), named(trace)
    last = training.state.timestamp.batch
    at_the_end = {i for i, batch in evaluations(trace) if batch == last}
    assert at_the_end == set(range(len(run.evaluators)))


@pytest.mark.filterwarnings("ignore::composable.data.order.ReplayedBatchesWarning")
@few
@given(runs(), st.lists(st.sampled_from(["1ep", "2ba", "1ba", "5sp"]), min_size=1, max_size=3))
def test_events_of_several_fits_match_the_grammar(run, more):
    """Law of events: The event sequence of a run, and of several calls of `fit`, matches the
    grammar.
    """
    _, trace = run.train(*more)

    seam = run.evaluates + word("FIT_END", "FIT_START")
    sewn = re.sub(seam, "", spelled(trace.events))
    assert re.fullmatch(BUILDING + run.fits, sewn), named(trace)
    assert trace.events.count(Event.FIT_START) == 1 + len(more)


def named(trace):
    return " ".join(event.value for event in trace.events)


def evaluations(trace):
    """Return each evaluation in order: its evaluator, and the number of batches before it."""
    found, seen = [], 0
    for event, now in zip(trace.events, trace.timestamps, strict=True):
        seen = 0 if event is Event.EVAL_START else seen + (event is Event.EVAL_BATCH_START)
        if event is Event.EVAL_END:  # evaluator i has i + 1 batches
            found.append((seen - 1, now.batch))
    return found


def samples_after(run):
    """Yield the number of samples after each batch, without end."""
    sizes, done = [len(targets) for _, targets in batches(run.count)], 0
    for size in cycle(sizes):
        done += size
        yield done


def batches_of(run):
    """Compute the number of batches of a run without requests."""
    time = Time.parse(run.max_duration)
    number, unit = time.value, time.unit.value
    length = len(batches(run.count))
    if unit == "ba":
        return number
    if unit == "sp":
        return 1 + sum(1 for _ in takewhile(lambda done: done < number, samples_after(run)))
    return number * length * (int(run.iteration_length[0]) if unit == "iter" else 1)


def due_after(run, interval):
    """Compute the batches after which an evaluation is due."""
    total, length = batches_of(run), len(batches(run.count))
    time = Time.parse(interval)
    number, unit = time.value, time.unit.value
    if unit == "ba":
        return [k for k in range(1, total + 1) if k % number == 0]
    if unit == "ep":
        ends = [k for k in range(1, total + 1) if k % (number * length) == 0]
        # A run that stops here can't know that the loader has no more batches.
        in_doubt = not run.knows_its_length and not run.max_duration.endswith("ep")
        return [k for k in ends if k < total or not in_doubt]
    if unit == "sp":
        done = [0, *islice(samples_after(run), total)]
        return [k for k in range(1, total + 1) if done[k - 1] // number != done[k] // number]
    halves = {  # "0.5dur" of a run that is measured in this
        "ba": lambda k: Fraction(2 * k, total),
        "ep": lambda k: Fraction(2 * (k // length * length), total),
    }
    half = halves["ep" if run.max_duration.endswith("ep") else "ba"]
    if run.knows_its_length:
        half = halves["ba"]
    return [k for k in range(1, total + 1) if half(k - 1) // 1 != half(k) // 1]


@few
@given(runs(asked=st.just([])))
@example(Run(evaluators=("0.5dur",), knows_its_length=False))
@example(Run(log_interval="1ep", knows_its_length=False))
def test_run_ends_evaluates_and_logs_at_its_intervals(run):
    """Law of events: Evaluators run at their intervals.

    Law of events: The loss is logged every `log_interval`.

    Law of events: A run has the length `max_duration`.
    """
    run = attrs.evolve(run, logs=True)

    training, trace = run.train()

    last = training.state.timestamp.batch
    assert last == trace.events.count(Event.BATCH_END) == batches_of(run)
    if run.max_duration.endswith(("ba", "ep")):
        for i, interval in enumerate(run.evaluators):
            found = [batch for who, batch in evaluations(trace) if who == i]
            assert found == sorted({*due_after(run, interval), last})
        stamped = zip(trace.events, trace.timestamps, strict=True)
        logged = [now.batch for event, now in stamped if event is Event.LOG]
        assert logged == due_after(run, run.log_interval)


IN_A_BATCH = st.sampled_from(
    [
        Event.AFTER_DATALOADER,
        Event.BATCH_START,
        Event.BEFORE_FORWARD,
        Event.AFTER_BACKWARD,
        Event.AFTER_OPTIMIZER_STEP,
        Event.BATCH_END,
    ]
)


@few
@given(IN_A_BATCH, st.integers(0, 5), requests)
def test_request_in_a_batch_is_carried_out_after_that_batch_once(event, n, request):
    """Law of events: A request made in a batch is carried out after that batch, once."""
    run = Run(evaluators=("9ep",), asked=[(event, n, request)], logs=True, log_interval="100ba")

    _, trace = run.train()

    found = list(zip(trace.events, trace.timestamps, strict=True))
    starts = [i for i, (event, _) in enumerate(found) if event is Event.AFTER_DATALOADER]
    assert [found[i][1].epoch for i in starts] == epochs_of_two(n, request)
    after = [event for event, _ in found[starts[n] :] if event in ANSWERS]
    expected = [event for event in ANSWERS if ANSWERS[event] in request]
    assert after[: len(expected)] == expected
    at_the_end = [] if Control.EVALUATE in request and n == len(starts) - 1 else [EVALUATION]
    assert after[len(expected) :] == at_the_end
    assert not any(event in ANSWERS for event, _ in found[: starts[n]])


EVALUATION = Event.EVAL_BEFORE_ALL
ANSWERS = {
    Event.LOG: Control.LOG,
    EVALUATION: Control.EVALUATE,
    Event.BEFORE_SAVE: Control.SAVE,
}


def epochs_of_two(n, request):
    """Return the epoch of each batch of two epochs of three, with a request in one of them."""
    shortened, early = divmod(n, 3)
    lengths = [3, 3]
    if Control.END_EPOCH in request:
        lengths[shortened] = early + 1
    epochs = [epoch for epoch, length in enumerate(lengths) for _ in range(length)]
    return epochs[: n + 1] if Control.STOP in request else epochs


# --- brackets ---

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


# --- requests ---


def joined(asked):
    """Return the pending requests after each callback has made one."""
    callbacks = [Asks(Event.BATCH_END, 0, request) for request in asked]
    dispatcher = Dispatcher(Plan.compile([], callbacks), Logger([]))
    dispatcher.fire(Event.BATCH_END, State(mlp()))
    return dispatcher.requests


@given(st.lists(requests, max_size=4), st.randoms())
def test_requests_are_joined_by_or(asked, random):
    again = random.sample(2 * asked, 2 * len(asked))

    assert joined(again) == joined(asked) == reduce(or_, asked, Control.NONE)


@st.composite
def wishes_in_two_orders(draw):
    """Draw requests, and the same in another order, some of them twice."""
    one = draw(wishes())
    twice = draw(st.lists(st.sampled_from(one), max_size=2)) if one else []
    return one, draw(st.permutations([*one, *twice]))


@fewer
@given(wishes_in_two_orders(), st.booleans())
def test_order_and_repetition_of_requests_do_not_matter(orders, evaluates):
    def run(asked):
        trace, saved = Trace(), []
        training = make_trainer(
            mlp(dropout=0.5),
            eval_dataloader=batches() if evaluates else None,
            callbacks=[
                *(Asks(*wish) for wish in asked),
                trace,
                SavesBy(lambda state: saved.append(state.timestamp.batch)),
            ],
        )
        training.fit()
        return weights(training.state.model), trace.events, saved

    (weights_of_one, *rest_of_one), (weights_of_other, *rest_of_other) = map(run, orders)

    assert same(weights_of_one, weights_of_other)
    assert rest_of_one == rest_of_other
