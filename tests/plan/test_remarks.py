"""Methods with little effect or none, and schedulers that count something else: said once."""

from functools import partial

import pytest
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from composable import Event, IdleAlgorithmWarning, Stage, chain, during, every
from composable.algorithms import EMA, GradientClipping, LayerFreezing, MixUp, SelectiveBackprop
from composable.optim import linear
from tests.support.data import batches
from tests.support.models import FEATURES, mlp
from tests.support.observers import Watch
from tests.support.runs import make_trainer
from tests.support.stand_ins import stand_in


def train(**options):
    make_trainer(mlp(), batches(24, 4), **options).fit()


def deep():
    return nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(4)), mlp())


@pytest.mark.parametrize(
    ("model", "options", "ends"),
    [
        (mlp, {}, "1ep"),
        (deep, {"freeze_level": 0.1}, "1ep"),
        (deep, {"freeze_start": 0.9}, "6ba"),
        (deep, {"freeze_start": 0.9}, "1ep"),
    ],
)
def test_layer_freezing_that_freezes_nothing_warns(model, options, ends):
    frozen = Watch(Event.AFTER_TRAIN_BATCH, read=lambda state: state.frozen)
    loader = batches(24, 4)

    with pytest.warns(IdleAlgorithmWarning, match=r"LayerFreezing freezes no layer: of the \d lay"):
        make_trainer(
            model(),
            loader,
            algorithms=LayerFreezing(**options),
            callbacks=frozen,
            max_duration=ends,
        ).fit()

    assert not any(frozen.values)


@pytest.mark.parametrize("ends", ["6ba", "1ep", "24sp"])
def test_layer_freezing_that_freezes_a_layer_is_quiet(ends):
    frozen = Watch(Event.AFTER_TRAIN_BATCH, read=lambda state: state.frozen)
    trainer = make_trainer(
        deep(), batches(24, 4), algorithms=LayerFreezing(0.4), callbacks=frozen, max_duration=ends
    )

    trainer.fit()

    assert any(frozen.values)


@pytest.mark.parametrize(
    ("algorithm", "share"),
    [
        (EMA("8ba"), "0.27"),
        (EMA("2ep"), "0.4"),
        (EMA(smoothing=0.9), "0.22"),
        (during("0dur", "1dur", EMA("8ba")), "0.27"),
    ],
)
def test_long_half_life_is_a_line_of_the_plan_and_of_the_summary(algorithm, share, capsys):
    trainer = make_trainer(
        mlp(), batches(24, 4), algorithms=algorithm, max_duration="5ep", progress_bar=True
    )
    line = f"is a half-life of {share} times this run of 5ep"

    assert trainer.plan.explain(width=999).count(line) == 1
    trainer.fit()
    assert capsys.readouterr().err.count(line) == 1


@pytest.mark.parametrize("given", [{}, {"half_life": None}, {"half_life": "1000ba"}])
def test_default_half_life(given):
    assert str(EMA(**given).half_life) == "1000ba"
    assert (EMA(smoothing=0.999).half_life, EMA(smoothing=0.999).share_kept) == (None, 0.999)


def test_half_life_above_the_run_warns_once():
    trainer = make_trainer(mlp(), batches(24, 4), algorithms=EMA("7ba"), max_duration="1ep")

    with pytest.warns(IdleAlgorithmWarning, match="half-life of 1.2 times this run of 1ep") as told:
        trainer.fit()

    assert len(told) == 1
    trainer.fit(duration="1ep")


def test_half_life_of_the_whole_run_is_no_warning():
    for count in range(1, 12):
        train(algorithms=EMA(f"{count}ba"), max_duration=f"{count}ba")


@pytest.mark.parametrize(
    ("algorithm", "ends"), [(EMA("6ba"), "30ba"), (EMA("1ep"), "5ep"), (EMA("900ba"), "60sp")]
)
def test_short_half_life_and_an_unrelated_one_are_quiet(algorithm, ends):
    trainer = make_trainer(mlp(), batches(24, 4), algorithms=algorithm, max_duration=ends)

    assert "half-life" not in trainer.plan.explain()
    trainer.fit()


def in_parts(optimizer):
    parts = [LinearLR(optimizer, total_iters=1), CosineAnnealingLR(optimizer, T_max=12)]
    return SequentialLR(optimizer, parts, milestones=[1])


@pytest.mark.parametrize(
    ("scheduler", "named"),
    [
        (partial(OneCycleLR, max_lr=0.1, total_steps=12), "OneCycleLR has total_steps=12"),
        (partial(CosineAnnealingLR, T_max=12), "CosineAnnealingLR has T_max=12"),
        (in_parts, "SequentialLR has T_max=12"),
    ],
)
@pytest.mark.parametrize("ends", ["2ep", "12ba"])
def test_scheduler_that_counts_the_batches_of_the_run_and_steps_each_epoch(scheduler, named, ends):
    options = {"schedulers": scheduler, "max_duration": ends}
    with pytest.warns(UserWarning, match=f"{named}, the number of batches of the run, .*every_bat"):
        train(**options)

    train(**options, step_schedulers_every_batch=True)


def test_scheduler_that_counts_epochs_is_quiet():
    train(schedulers=partial(CosineAnnealingLR, T_max=2), max_duration="2ep")


# --- algorithms that can never act in a run ---


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
