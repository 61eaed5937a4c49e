"""No step makes the host wait for the device, whatever is logged."""

import re
from contextlib import ExitStack

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Callback, Control
from composable.algorithms import (
    EMA,
    SWA,
    AugMix,
    CutMix,
    CutOut,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    ProgressiveResizing,
)
from composable.loggers import InMemoryLogger, JSONLinesLogger
from composable.optim import cosine
from composable.testing import NoSync
from tests.support.algorithm_cases import cases_on
from tests.support.runs import LANGUAGE, PROBLEMS, VISION, as_on_a_gpu, make_trainer


class Guard(Callback):
    """Forbids operations that wait, from the second batch to the last of the only epoch.

    Targets of the first batch are read once in a run, to warn of labels that are ignored. At the
    end of an epoch, algorithms may wait.
    """

    def __init__(self, batches=None):
        self.mode = None
        self.batches = batches
        self.guarded = 0

    def after_dataloader(self, state, logger):
        if self.mode is None and state.timestamp.batch:
            self.mode = ExitStack()
            self.mode.enter_context(NoSync())

    def batch_end(self, state, logger):
        self.guarded += 1
        logger.log_metrics({"norm": state.loss.norm()})
        return Control.LOG

    def batch_checkpoint(self, state, logger):
        if self.guarded == self.batches:
            self.close()

    def epoch_end(self, state, logger):
        self.close()

    def close(self):
        if self.mode is not None:
            self.mode.close()
            self.mode = None


def two_means(outputs, targets):
    losses = cross_entropy(outputs, targets, reduction="none")
    labeled = (targets >= 0).float()
    return cross_entropy(outputs, targets) + (losses.square() * labeled).sum() / labeled.sum()


OPTIONS = [
    {},
    {"grad_accum": 2},
    {"grad_accum": 2, "loss_mean_over": "tokens"},
    {"grad_accum": 2, "loss_fn": two_means},
    {"grad_accum": 2, "algorithms": [MixUp(interpolate_loss=True)]},
    {"algorithms": [LabelSmoothing(), EMA("2ba")]},
    {"precision": "amp_bf16"},
    {"precision": "bf16"},
    {"algorithms": [MixUp(per_sample=True, interpolate_loss=True)]},
    {"algorithms": [CutMix(per_sample=True, interpolate_loss=True), CutOut(per_sample=False)]},
    {"algorithms": [GradientClipping("adaptive", 0.1)]},
    {"algorithms": [AugMix(mean=(0.5, 0.5), std=(0.25, 0.25), augmentations="safe")]},
    {"algorithms": [ProgressiveResizing(initial_scale=1.0)]},
    {"algorithms": [SWA("0dur", "4ba", "1ba", True, swa_lr=0.01)]},
    {"schedulers": cosine(warmup="2ba")},
]
RUNS = [(VISION, options) for options in OPTIONS] + [
    (problem, {"algorithms": [case.example]})
    for problem in PROBLEMS
    for case in cases_on(problem, extras=False)
]


def without_addresses(value):
    """Return a text that is the same in every process."""
    return re.sub(r" at 0x\w+", "", str(value))


@pytest.mark.parametrize(("problem", "changes"), RUNS, ids=without_addresses)
@pytest.mark.filterwarnings("ignore")
def test_a_step_reads_no_number_from_the_device(problem, changes, tmp_path):
    guard, memory = Guard(batches=6), InMemoryLogger()
    file = JSONLinesLogger(tmp_path / "metrics.jsonl", flush_interval=1000)

    trainer = problem.trainer(
        loader=problem.batches(24, 4),
        max_duration="1ep",
        callbacks=[guard],
        loggers=[file, memory],
        **({"count_tokens": len} if problem is LANGUAGE else {}),  # its own reads a number
        **changes,
    )
    as_on_a_gpu(trainer).fit()

    assert guard.guarded == 6
    assert len(memory.series("loss/train")) == 6
    assert len(file.path.read_text().splitlines()) == 12


@pytest.mark.parametrize("read", [float, torch.Tensor.nonzero])
def test_the_guard_finds_a_step_that_reads_a_number(read):
    class Reads(Callback):
        def batch_end(self, state, logger):
            read(state.loss)

    with pytest.raises(AssertionError, match="would make the host wait"):
        as_on_a_gpu(make_trainer(callbacks=[Guard(), Reads()])).fit()

    as_on_a_gpu(make_trainer(callbacks=[Guard()])).fit()
    assert read(torch.tensor(1.0)) is not None  # it is off after a run
