"""Algorithms that can never act in a run are reported when the Trainer is built."""

from functools import partial

import pytest
from torch.optim.lr_scheduler import StepLR

from composable import Event, IdleAlgorithmWarning, Stage, chain, during, every
from composable.algorithms import EMA, GradientClipping, MixUp, SelectiveBackprop
from composable.optim import linear
from tests.support.data import batches
from tests.support.runs import make_trainer
from tests.support.stand_ins import stand_in

Evaluates = stand_in("Evaluates", Stage.OTHER, Event.EVAL_START, Event.EVAL_END, writes=())
Schedules = stand_in("Schedules", Stage.OTHER, Event.AFTER_SCHEDULER_STEP, writes=())


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (during("2ep", "3ep", MixUp()), "MixUp can never act: its window lies outside of a run of"),
        (during("6ba", "9ba", MixUp()), "its window lies outside of a run of 2ep"),
        (during("3ep", "2ep", MixUp()), "MixUp"),  # the plan warns, and the Trainer not again
        (during("0ep", "1ep", during("1ep", "2ep", MixUp())), "its window lies outside"),
        (every("2ep", during("1ep", "2ep", MixUp())), "MixUp can never act: its window lies outsi"),
        (during("0.6dur", "1dur", SelectiveBackprop(end=0.6)), "SelectiveBackprop can never act"),
        (EMA(ema_start="3ep"), "EMA can never act: its window lies outside of a run of 2ep"),
        (Evaluates(), "only at eval_start, eval_end, and there is no eval_dataloader. Drop it, or"),
        (chain(MixUp(), Schedules()), "Schedules can never act: .* there are no schedulers"),
    ],
)
def test_algorithm_that_can_never_act_warns_once(algorithm, message):
    with pytest.warns(IdleAlgorithmWarning, match=message) as said:
        make_trainer(algorithms=algorithm)

    assert len(said) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"algorithms": Evaluates(), "eval_dataloader": batches(12)},
        {"algorithms": Evaluates(), "train_dataloader": None},  # for eval(dataloader) alone
        {"algorithms": Schedules(), "schedulers": linear(1.0, 0.0)},
        {"algorithms": Schedules(), "schedulers": partial(StepLR, step_size=1)},
        {"algorithms": during("20ep", "30ep", MixUp()), "max_duration": None},
        {"algorithms": during("5ba", "9ba", MixUp())},
        {"algorithms": EMA(ema_start="2ep")},  # after the very last batch
        {"algorithms": during("5tok", "9tok", MixUp()), "count_tokens": lambda batch: 1},
        {"algorithms": during("1iter", "2iter", MixUp()), "iteration_length": "1ep"},
        {"algorithms": during("5sp", "9sp", MixUp())},  # not known beforehand
        {"algorithms": GradientClipping("norm", 1.0)},
    ],
)
def test_algorithm_that_can_act_does_not_warn(options):
    make_trainer(**options)


def test_average_that_starts_with_the_last_batch_acts():
    assert "EMA" in make_trainer(algorithms=EMA("1ba", ema_start="2ep")).fit().averages
