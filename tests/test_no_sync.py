"""No step makes the host wait for the device, whatever is logged."""

from contextlib import ExitStack

import pytest
import torch
from torch import nn

from composable import Callback, Control
from composable.algorithms import (
    EMA,
    SAM,
    SWA,
    AugMix,
    BlurPool,
    ColOut,
    CutMix,
    CutOut,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    ProgressiveResizing,
    RandAugment,
    SelectiveBackprop,
)
from composable.loggers import InMemoryLogger, JSONLinesLogger
from composable.optim import cosine
from composable.testing import NoSync
from tests.support.tiny import CLASSES, as_on_a_gpu, batches, make_trainer, seeded


class Guard(Callback):
    """Refuses operations that wait, from the first batch to the last."""

    def __init__(self):
        self.mode = None
        self.guarded = 0

    def epoch_start(self, state, logger):
        if self.mode is None:
            self.mode = ExitStack()
            self.mode.enter_context(NoSync())

    def batch_end(self, state, logger):
        self.guarded += 1
        logger.log_metrics({"norm": state.loss.norm()})
        return Control.LOG

    def epoch_end(self, state, logger):
        self.close()

    def close(self):
        if self.mode is not None:
            self.mode.close()
            self.mode = None


def images():
    return [(x.reshape(4, 1, 6, 6), y) for x, y in batches([4] * 6, features=36)]


def model():
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=2),
            nn.BatchNorm2d(2),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(8, CLASSES),
        )
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"grad_accum": 2},
        {"grad_accum": 2, "loss_mean_over": "tokens"},
        {"algorithms": [LabelSmoothing(), BlurPool(min_channels=1), EMA("2ba")]},
        {"algorithms": [MixUp(), GradientClipping("norm", 0.1)]},
        {"algorithms": [MixUp(per_sample=True, interpolate_loss=True)]},
        {"algorithms": [CutMix(), CutOut(per_sample=False)]},
        {"algorithms": [CutMix(per_sample=True, interpolate_loss=True), CutOut()]},
        {"algorithms": [ColOut(0.01, 0.01), ProgressiveResizing(initial_scale=1.0)]},
        {"algorithms": [GradientClipping("adaptive", 0.1)]},
        {"algorithms": [RandAugment()]},
        {"algorithms": [AugMix(mean=(0.5,), std=(0.25,))]},
        {"algorithms": [SAM(), GradientClipping("norm", 0.1)]},
        {"algorithms": [SWA("0dur", "4ba", "1ba", True, swa_lr=0.01)]},
        {"algorithms": [SelectiveBackprop(start=0.0, end=1.0, interrupt=0)]},
        {"schedulers": cosine(warmup="2ba")},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())) or "nothing",
)
def test_a_step_reads_no_number_from_the_device(changes, tmp_path):
    guard, memory = Guard(), InMemoryLogger()
    file = JSONLinesLogger(tmp_path / "metrics.jsonl", flush_interval=1000)

    trainer = make_trainer(
        model(),
        train_dataloader=images(),
        max_duration="1ep",
        callbacks=[guard],
        loggers=[file, memory],
        **changes,
    )
    as_on_a_gpu(trainer).fit()

    assert guard.guarded == 6
    assert len(memory.series("loss/train")) == 6
    assert len(file.path.read_text().splitlines()) == 12


@pytest.mark.parametrize("read", [float, bool, torch.Tensor.tolist, torch.Tensor.nonzero])
def test_the_guard_sees_a_step_that_reads_a_number(read):
    class Reads(Callback):
        def batch_end(self, state, logger):
            read(state.loss)

    with pytest.raises(AssertionError, match="would make the host wait"):
        as_on_a_gpu(make_trainer(callbacks=[Guard(), Reads()])).fit()


def test_the_guard_is_off_after_a_run():
    as_on_a_gpu(make_trainer(callbacks=[Guard()])).fit()

    assert torch.tensor(1.0).item() == 1.0
