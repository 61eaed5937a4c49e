"""The best checkpoint of a run, and a run that ends with its weights."""

import shutil

import pytest
import torch

from composable import Callback, Evaluator, Event
from composable.algorithms import EMA, SWA
from composable.callbacks import CheckpointSaver
from composable.checkpoint import find
from composable.checkpoint.errors import MissingCheckpointError
from composable.loggers import InMemoryLogger
from composable.resume import ChangedRunWarning, NoBestCheckpointWarning
from tests.support.data import batches
from tests.support.models import linear, same, weights
from tests.support.observers import Raise
from tests.support.runs import make_trainer

SCORES = (0.3, 0.9, 0.1, 0.5, 0.4)


class Keeps(Callback):
    """Keeps the weights with which the model is evaluated, and those at the end."""

    def __init__(self):
        self.evaluated, self.at_end = {}, None

    def eval_end(self, state, logger):
        self.evaluated[state.timestamp.batch] = weights(state.model)

    def fit_end(self, state, logger):
        self.at_end = weights(state.model)


class Scores(Callback):
    """A metric whose result is given for each epoch."""

    def __init__(self, scores):
        self.scores, self.epoch = scores, 0

    def eval_start(self, state, logger):
        self.epoch = state.timestamp.epoch

    def __call__(self, outputs, targets):
        given = dict(enumerate(self.scores, 1))
        return torch.full((len(targets),), given.get(self.epoch, 0.0))


def trainer_of(folder, *callbacks, scores=SCORES, **options):
    score = Scores(scores)
    defaults = {
        "eval_dataloader": batches([4]),
        "metrics": {"score": score},
        "max_duration": f"{len(scores)}ep",
        "save_folder": folder,
        "save_best": "score",
        "load_best_at_end": True,
        "callbacks": [score, *callbacks],
    }
    return make_trainer(**{**defaults, **options})


@pytest.mark.parametrize("interval", ["1ep", None, "2ba"])
@pytest.mark.parametrize(("scores", "at"), [(SCORES, 6), ((0.1, 0.2, 0.3), 9), ((0.3, 0.2), 3)])
def test_run_ends_with_the_weights_of_the_best_result(scores, at, interval, tmp_path):
    keeps = Keeps()
    trainer = trainer_of(
        tmp_path, keeps, scores=scores, save_interval=interval, save_num_checkpoints_to_keep=1
    )

    state = trainer.fit()

    assert state.timestamp.batch == 3 * len(scores)
    assert same(weights(state.model), keeps.evaluated[at])
    assert same(keeps.at_end, keeps.evaluated[3 * len(scores)])  # the training weights
    assert trainer.best.metric == "metrics/eval/score"
    assert trainer.best.mode == "max"
    assert trainer.best.value == pytest.approx(max(scores))
    assert trainer.best.checkpoint.name == f"ep{at // 3}-ba{at}"
    names = [one.path.name for one in find(tmp_path)[0]]
    assert trainer.best.checkpoint.name in names
    assert len(names) <= 2  # the best, and the latest beside it
    assert interval is None or f"ep{len(scores)}-ba{3 * len(scores)}" in names
    latest = find(tmp_path)[0][0].manifest.info["best"]
    assert latest["checkpoint"] == trainer.best.checkpoint.name


@pytest.mark.parametrize("interval", ["1ep", None])
def test_evaluation_at_the_end_may_have_the_best_result(interval, tmp_path):
    trainer = trainer_of(
        tmp_path,
        max_duration="5ba",
        metrics=None,
        save_best="loss",
        save_best_mode="max",
        save_interval=interval,
    )
    trainer.fit()

    assert trainer.best.checkpoint.name == "ep1-ba5"
    assert trainer.eval()["eval/loss"] == trainer.best.value


@pytest.mark.parametrize(
    "algorithm",
    [EMA("1ba"), SWA(swa_start="1ba", update_interval="1ba"), EMA("1ba", ema_start="4ep")],
)
def test_evaluation_after_the_run_uses_the_averages_of_the_best_checkpoint(algorithm, tmp_path):
    keeps = Keeps()
    trainer = trainer_of(tmp_path, keeps, algorithms=algorithm)

    trainer.fit()
    best = keeps.evaluated[6]
    trainer.eval()

    assert same(keeps.evaluated[15], best)


def test_best_weights_of_the_loss_are_loaded(tmp_path):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, outputs, targets):
            return torch.nn.functional.cross_entropy(outputs * self.scale, targets)

    loss, seen = Scaled(), {}

    class Sees(Callback):
        def eval_end(self, state, logger):
            seen[state.timestamp.batch] = loss.scale.item()

    trainer_of(tmp_path, Sees(), loss_fn=loss).fit()

    assert loss.scale.item() == seen[6]
    assert len(set(seen.values())) == len(SCORES)


def test_run_without_the_option_ends_with_its_last_weights(tmp_path):
    keeps = Keeps()
    trainer = trainer_of(tmp_path, keeps, load_best_at_end=False)

    assert same(weights(trainer.fit().model), keeps.evaluated[15])
    assert trainer.best.value == pytest.approx(0.9)
    assert make_trainer().best is None


@pytest.mark.parametrize("stop", [2, 5, 6, 8, 15])
def test_resumed_script_ends_with_the_same_weights(stop, tmp_path):
    def script(folder, *callbacks):
        trainer = trainer_of(folder, *callbacks, save_interval="1ba", autoresume=True)
        trainer.fit()
        ended = weights(trainer.state.model)
        trainer.fit(duration="2ba")
        return ended, weights(trainer.state.model)

    whole = script(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        script(tmp_path / "run", Raise(KeyboardInterrupt(), Event.AFTER_SAVE, stop))
    resumed = script(tmp_path / "run")

    assert all(map(same, resumed, whole))


def test_best_checkpoint_of_the_folder_that_is_resumed_from_is_found(tmp_path):
    first = trainer_of(tmp_path / "a", max_duration="3ep", load_best_at_end=False)
    first.fit()
    options = {"load_path": tmp_path / "a"}
    with pytest.warns(ChangedRunWarning, match="requested_duration: 3ep -> 5ep"):
        second = trainer_of(tmp_path / "b", **options)

    second.fit()

    assert second.best.checkpoint == tmp_path / "a" / "ep2-ba6"
    shutil.rmtree(tmp_path / "a" / "ep2-ba6")
    with (
        pytest.warns(ChangedRunWarning, match="requested_duration"),
        pytest.raises(MissingCheckpointError, match=r"there is no .*ep2-ba6; copy it there"),
    ):
        trainer_of(tmp_path / "c", **options)


def test_saver_among_the_callbacks_selects_the_best(tmp_path):
    keeps, saver = Keeps(), CheckpointSaver(tmp_path, metric="eval/score", background=True)
    trainer = trainer_of(None, keeps, saver, save_best=None)

    assert same(weights(trainer.fit().model), keeps.evaluated[6])


def test_results_that_are_never_numbers_are_a_warning(tmp_path):
    trainer = trainer_of(tmp_path, scores=[float("nan")] * 2)

    with pytest.warns(NoBestCheckpointWarning, match="the model keeps its last weights"):
        trainer.fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"save_best": None},
            "pass save_folder=... and save_best=..., such as 'metrics/eval/loss'",
        ),
        ({"save_best": None, "save_folder": None}, "load_best_at_end=True needs the result"),
        ({"eval_dataloader": None}, "save_best='eval/score' must be .*pass an eval_dataloader"),
        ({"save_best": "sore", "save_best_mode": "max"}, "save_best='eval/sore' must be a result"),
        ({"eval_interval": None}, "eval_interval=None for the evaluator of 'eval/score'"),
        (
            {"save_weights_only": True, "loss_fn": torch.nn.CrossEntropyLoss()},
            "save_weights_only=True with load_best_at_end=True: evaluations depend on loss_fn",
        ),
        ({"load_best_at_end": 1}, "load_best_at_end=1 must be True or False"),
    ],
)
def test_invalid_combinations_are_errors_before_training(options, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        trainer_of(tmp_path, **options)


def test_weights_alone_are_enough_without_averages(tmp_path):
    keeps = Keeps()
    trainer = trainer_of(tmp_path, keeps, save_weights_only=True)

    assert same(weights(trainer.fit().model), keeps.evaluated[6])


def test_evaluator_with_an_interval_of_its_own_selects_the_best(tmp_path):
    evaluators = [
        Evaluator("val", batches([4]), eval_interval="1ep"),
        Evaluator("test", batches([4]), eval_interval="2ep"),
    ]
    memory = InMemoryLogger()
    trainer = trainer_of(
        tmp_path,
        eval_dataloader=evaluators,
        eval_interval=None,
        metrics=None,
        save_best="metrics/test/loss",
        loggers=memory,
    )
    trainer.fit()

    assert trainer.best.value == min(memory.series("metrics/test/loss"))
    assert isinstance(trainer.state.model, type(linear()))
