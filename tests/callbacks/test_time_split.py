"""The time of training is split by a clock that the parts of the run advance."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable.callbacks import TimeSplit, time_split
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.models import linear
from tests.support.runs import make_trainer


class Clock:
    """A clock that stands still unless a part of the run takes time."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        stub = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(time_split, "time", stub)

    def takes(self, seconds, do):
        """Return a function that takes some seconds more."""

        def timed(*arguments, **options):
            self.now += seconds
            return do(*arguments, **options)

        return timed


class Loader(list):
    """A loader that takes a second for each batch, and for the end."""

    clock = None

    def __iter__(self):
        for batch in super().__iter__():
            self.clock.now += 1
            yield batch
        self.clock.now += 1


def build(clock, callback, **options):
    """Build a run of two epochs of three batches, whose parts take seconds."""
    loader, model = Loader(batches(12)), linear()
    loader.clock = clock
    model.forward = clock.takes(10, model.forward)

    def optimizer(parameters):
        built = torch.optim.SGD(parameters, lr=0.1)
        built.step = clock.takes(100, built.step)
        return built

    def loss(outputs, targets):
        if outputs.requires_grad:
            outputs.register_hook(clock.takes(1000, lambda gradient: gradient))
        return cross_entropy(outputs, targets)

    options = {"loss_fn": loss, "callbacks": callback, "optimizers": optimizer, **options}
    return make_trainer(model, loader, check_effects=False, **options)


def test_each_part_has_the_seconds_that_it_takes(monkeypatch):
    clock, memory = Clock(monkeypatch), InMemoryLogger()

    build(clock, TimeSplit(), loggers=memory).fit()

    split = {name.partition("/")[2]: s for name, s in memory.latest.items() if "split" in name}
    assert split == {
        "data": 8.0,  # with the ends of two epochs
        "forward": 60.0,
        "backward": 6000.0,
        "optimizer": 600.0,
        "evaluation": 0.0,
        "saving": 0.0,
        "other": 0.0,
    }
    assert sum(split.values()) == clock.now


def test_evaluation_saving_and_other_callbacks_have_their_parts(monkeypatch, tmp_path):
    clock, memory = Clock(monkeypatch), InMemoryLogger()

    def other(event, state, logger):
        clock.now += {"epoch_start": 3, "eval_batch_start": 7, "before_save": 0}.get(event.value, 0)

    trainer = build(
        clock,
        [TimeSplit(), other],
        loggers=memory,
        eval_dataloader=batches(4),
        save_folder=tmp_path,
        save_interval="1ep",
    )
    trainer.fit()

    evaluations = len(memory.series("metrics/eval/loss"))
    forward = memory.latest["time_split/evaluation"] - 7 * evaluations
    assert (evaluations, forward) == (2, 20.0)  # the model takes ten seconds here too
    assert memory.latest["time_split/other"] == 6.0


def test_the_times_are_logged_at_the_interval_and_at_the_end(monkeypatch):
    memory = InMemoryLogger()

    build(Clock(monkeypatch), TimeSplit(interval=4), loggers=memory).fit()

    assert memory.series("time_split/optimizer") == [400.0, 600.0]


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
def test_a_resumed_run_continues_the_times(monkeypatch, tmp_path):
    memory = InMemoryLogger()
    options = {"save_folder": tmp_path, "save_interval": "1ep", "autoresume": True}
    build(Clock(monkeypatch), TimeSplit(), max_duration="1ep", **options).fit()

    build(Clock(monkeypatch), TimeSplit(), loggers=memory, max_duration="2ep", **options).fit()

    assert memory.latest["time_split/optimizer"] == 600.0
