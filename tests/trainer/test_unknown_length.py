"""Loaders without a length: durations, the progress bar, schedules, and epochs that get shorter."""

import io
from functools import partial

import pytest
from torch.optim import SGD

from composable import Clock, Event, Timestamp, during
from composable.algorithms import (
    EMA,
    LabelSmoothing,
    LayerFreezing,
    ProxyFilter,
    SelectiveBackprop,
    SplitHead,
    StochasticDepth,
)
from composable.loggers import InMemoryLogger, ProgressBarLogger
from composable.optim import constant, cosine, linear, step
from composable.plan.spans import find_unmeasured
from tests.support.data import batches, stream
from tests.support.models import linear as linear_model
from tests.support.observers import Trace
from tests.support.runs import make_trainer


@pytest.mark.parametrize(
    ("duration", "batch", "epoch"),
    [("7ba", 7, 2), ("17sp", 5, 1), ("50tok", 3, 0), ("2ep", 6, 2), ("1iter", 6, 2)],
)
def test_every_unit_ends_a_run(duration, batch, epoch):
    state = make_trainer(
        loader=stream(12),
        max_duration=duration,
        count_tokens=lambda batch: 5 * len(batch[1]),
        iteration_length="2ep" if duration.endswith("iter") else None,
        eval_dataloader=stream(8),
    ).fit()

    assert (state.timestamp.batch, state.timestamp.epoch) == (batch, epoch)
    assert state.metrics["eval"]["loss"] > 0


class Abstract:
    """A loader that derives its length from a class that defines none."""

    def __iter__(self):
        return iter(batches(12))

    def __len__(self):
        raise NotImplementedError


def test_length_that_is_not_implemented_is_unknown():
    state = make_trainer(loader=Abstract(), eval_dataloader=Abstract(), max_duration="2ep").fit()

    assert state.timestamp.epoch == 2
    assert state.epoch_length is None


class Shrinking:
    """A loader whose epochs have fewer and fewer batches."""

    def __init__(self, lengths):
        self.lengths, self.epoch = lengths, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(batches(4 * self.lengths[self.epoch]))


@pytest.mark.parametrize("bar", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_an_epoch_may_end_earlier_than_the_one_before(bar, n):
    trace = Trace()
    loggers = [ProgressBarLogger(stream=io.StringIO())] if bar else []
    state = make_trainer(
        loader=Shrinking([5, 3, 1, 4]),
        max_duration="4ep",
        accumulate_batches=n,
        callbacks=trace,
        loggers=loggers,
    ).fit()

    steps = [-(-length // n) for length in (5, 3, 1, 4)]
    assert state.timestamp.batch == sum(steps)
    assert state.timestamp.sample == 4 * 13
    ends = [
        now for e, now in zip(trace.events, trace.timestamps, strict=True) if e is Event.EPOCH_END
    ]
    assert [now.batch for now in ends] == [sum(steps[: i + 1]) for i in range(4)]


@pytest.mark.parametrize(
    ("schedule", "duration", "length", "warns"),
    [
        (cosine(), "2ep", None, True),
        (linear(), "1ep", None, True),
        (cosine(duration="1ep"), "6ba", None, True),
        (cosine(duration="4ba"), "2ep", None, False),
        (cosine(), "6ba", None, False),
        (cosine(), "2ep", 3, False),
        (constant(), "2ep", None, False),
        (step("1ep"), "2ep", None, False),
    ],
)
def test_a_schedule_that_changes_only_between_epochs_warns(schedule, duration, length, warns):
    memory = InMemoryLogger()
    trainer = make_trainer(
        loader=batches(12) if length else stream(12),
        schedulers=schedule,
        max_duration=duration,
        loggers=memory,
    )
    if warns:
        with pytest.warns(UserWarning, match="constant within each; pass max_duration"):
            trainer.fit()
        assert len(set(memory.series("lr")[:3])) == 1
    else:
        trainer.fit()


def proxy(schedule=None):
    return ProxyFilter(linear_model(3), partial(SGD, lr=0.1), schedule=schedule)


@pytest.mark.parametrize(
    ("algorithm", "duration", "length", "warns"),
    [
        (SelectiveBackprop(), "1ep", None, True),
        (SelectiveBackprop(), "10ep", None, False),
        (SelectiveBackprop(), "1iter", 3, True),
        (SelectiveBackprop(), "1ep", 3, False),
        (SelectiveBackprop(), "6ba", None, False),
        (during("0.5dur", "1dur", LabelSmoothing(0.1)), "1ep", None, True),
        (during("0.5dur", "1dur", LabelSmoothing(0.1)), "2ep", None, False),
        (during("3ba", "6ba", LabelSmoothing(0.1)), "1ep", None, False),
        (EMA(ema_start="0.5dur", half_life="1ba"), "1ep", None, True),
        (LayerFreezing(), "2ep", None, True),
        (StochasticDepth(drop_warmup="0.5dur"), "2ep", None, True),
        (StochasticDepth(drop_warmup="3ba"), "2ep", None, False),
        (StochasticDepth(), "2ep", None, False),
        (SplitHead(), "1ep", None, True),
        (SplitHead(split_at="3ba"), "1ep", None, False),
        (proxy(linear()), "1ep", None, True),
        (proxy(), "1ep", None, False),
    ],
)
def test_a_method_that_changes_only_between_epochs_warns(algorithm, duration, length, warns):
    clock = Clock(max_duration=duration, epoch_length=length, timestamp=Timestamp())

    assert len(find_unmeasured([algorithm], clock)) == warns


def test_a_method_of_a_share_of_an_epoch_warns_when_training_starts():
    trainer = make_trainer(
        loader=stream(12), algorithms=SelectiveBackprop(), max_duration="1ep", loggers=[]
    )

    with pytest.warns(UserWarning, match="SelectiveBackprop follows the elapsed share of a run"):
        trainer.fit()
