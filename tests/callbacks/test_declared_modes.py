"""A metric that declares `higher_is_better` determines what the best result is."""

import pytest
import torch

from composable import Evaluator
from composable.callbacks import CheckpointSaver, EarlyStopper
from tests.support.data import batches
from tests.support.runs import make_trainer


class Given:
    """A metric object that returns given values, one for each evaluation."""

    def __init__(self, higher_is_better, *values):
        self.higher_is_better, self._values = higher_is_better, iter(values)

    def reset(self):
        pass

    def update(self, outputs, targets):
        pass

    def compute(self):
        return torch.tensor(next(self._values, 0.0))


def trainer_of(metric, name="speed", **options):
    return make_trainer(
        eval_dataloader=Evaluator("test", batches([4]), metrics={name: metric}),
        max_duration="3ep",
        **options,
    )


@pytest.mark.parametrize(
    ("declared", "name", "given", "best"),
    [
        (True, "speed", None, 3.0),
        (False, "speed", None, 1.0),
        (True, "error", None, 3.0),
        (False, "score", None, 1.0),
        (True, "speed", "min", 1.0),
        (None, "accuracy", None, 3.0),
        (None, "error", None, 1.0),
    ],
)
@pytest.mark.parametrize("by", ["trainer", "callback", "stopper", "later"])
def test_best_result_is_the_declared_one(declared, name, given, best, by, tmp_path):
    metric, result = Given(declared, 2.0, 3.0, 1.0), f"test/{name}"
    if by == "trainer":
        trainer = trainer_of(
            metric, name, save_folder=tmp_path, save_best=result, save_best_mode=given
        )
        watcher = next(c for c in trainer.plan.callbacks if isinstance(c, CheckpointSaver))
    elif by == "callback":
        watcher = CheckpointSaver(tmp_path, metric=result, mode=given)
        trainer = trainer_of(metric, name, callbacks=[watcher])
    else:
        watcher = EarlyStopper(result, mode=given, patience="9ep")
        trainer = trainer_of(metric, name, callbacks=[watcher] if by == "stopper" else [])
    if by == "later":
        trainer.add_callback(watcher)

    trainer.fit()

    found = watcher.best if isinstance(watcher, EarlyStopper) else watcher.manager.best[1]
    assert found == best


@pytest.mark.parametrize("declared", [None, 1, "yes"])
def test_metric_that_declares_nothing_needs_a_mode(declared, tmp_path):
    metric = Given(declared)
    options = {"save_folder": tmp_path, "save_best": "test/speed"}
    with pytest.raises(ValueError, match=r"higher_is_better.*pass save_best_mode='min'"):
        trainer_of(metric, **options)
    with pytest.raises(ValueError, match=r"monitor='test/speed' does not; pass mode='min'"):
        trainer_of(metric, callbacks=[EarlyStopper("test/speed")])
    with pytest.raises(ValueError, match=r"metric='test/speed' does not; pass mode='min'"):
        trainer_of(metric, callbacks=[CheckpointSaver(tmp_path, metric="test/speed")])


def test_one_stopper_follows_the_metric_of_each_trainer():
    stopper = EarlyStopper("test/speed")

    modes = []
    for declared in (True, False):
        trainer_of(Given(declared), callbacks=[stopper])
        modes.append(stopper.mode)

    assert modes == ["max", "min"]
