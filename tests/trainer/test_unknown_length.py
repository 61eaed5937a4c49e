"""Loaders without a length: durations, the progress bar, schedules, and epochs that get shorter."""

import io

import pytest

from composable import Event
from composable.loggers import InMemoryLogger, ProgressBarLogger
from composable.optim import constant, cosine, linear, step
from tests.support.data import batches, stream
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
        with pytest.warns(UserWarning, match="constant within an epoch; pass max_duration"):
            trainer.fit()
        assert len(set(memory.series("lr")[:3])) == 1
    else:
        trainer.fit()
