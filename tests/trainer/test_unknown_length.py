"""Loaders without a length: schedules, epochs that get shorter, and streams that resume."""

import io
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.optim import SGD
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

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
from composable.data import ReplayedBatchesWarning
from composable.loggers import InMemoryLogger, ProgressBarLogger
from composable.optim import constant, cosine, linear, step
from composable.plan.spans import find_unmeasured
from tests.support.campaign import each_once
from tests.support.data import batches, stream
from tests.support.models import linear as linear_model
from tests.support.models import same, weights
from tests.support.observers import Trace
from tests.support.runs import make_trainer


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


# --- streams of iterable datasets ---


class Stream(IterableDataset):
    """Twelve examples that depend on the epoch and on all global generators."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, 12, stride):
            noise = torch.rand(()) + random.random() + float(np.random.rand())  # noqa: NPY002
            yield torch.full((4,), float(i + self.epoch)) + noise, torch.tensor(i % 3)


LOADERS = {
    "no workers": {},
    "2 workers": {"num_workers": 2},
    "persistent": {"num_workers": 1, "persistent_workers": True},
}


@pytest.fixture(params=LOADERS.values(), ids=LOADERS)
def build(request):
    """Return a function that builds a Trainer on streams."""

    def build(**changes):
        return make_trainer(
            linear_model(),
            train_dataloader=DataLoader(Stream(), batch_size=2, **request.param),
            eval_dataloader=DataLoader(Stream(), batch_size=4, **request.param),
            check_effects=False,
            **changes,
        )

    return build


def test_train_evaluate_predict_and_repeat(build):
    first, again = build(), build()
    state = first.fit()
    assert (state.timestamp.epoch, state.timestamp.batch, state.timestamp.sample) == (2, 12, 24)
    assert state.epoch_length is None
    assert same(weights(again.fit().model), weights(state.model))
    assert again.state.metrics == state.metrics
    assert first.eval() == again.eval()
    predictions = [
        trainer.predict(DataLoader(Stream(), batch_size=4)) for trainer in (first, again)
    ]
    assert all(map(torch.equal, *predictions))
    assert len(predictions[0]) == 3


@pytest.mark.parametrize(
    ("build", "batch"), each_once(list(LOADERS.values()), [8, 4]), indirect=["build"]
)
def test_resumed_run_is_exact(build, tmp_path, batch):
    options = {"save_folder": tmp_path, "save_interval": "4ba"}
    expected = weights(build(**options).fit().model)

    resumed = build(load_path=tmp_path / f"ep{batch // 6}-ba{batch}")
    with pytest.warns(ReplayedBatchesWarning) as caught:
        state = resumed.fit()

    assert same(weights(state.model), expected)
    assert caught[0].filename == __file__
