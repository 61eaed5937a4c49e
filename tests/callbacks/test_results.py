"""The metric that selects the best checkpoint or stops training: its name and its mode."""

import pytest
import torch

from composable import State
from composable.callbacks import CheckpointSaver, EarlyStopper
from composable.checkpoint import find
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.models import linear
from tests.support.runs import make_trainer

LOWER = ["loss", "nll_loss", "TopError", "perplexity", "rmse", "val_mae", "distance"]
HIGHER = ["accuracy", "acc", "f1", "top5", "mean_iou", "F1Score", "auroc", "bleu4"]
UNKNOWN = ["speed", "map_loss", "size", "matches", "ache"]


def modes(name, mode=None):
    saver = CheckpointSaver("unused", metric=f"eval/{name}", mode=mode)
    return {EarlyStopper(name, mode=mode).mode, saver.mode}


@pytest.mark.parametrize(
    ("name", "mode"), [*((n, "min") for n in LOWER), *((n, "max") for n in HIGHER)]
)
def test_name_determines_mode(name, mode):
    assert modes(name) == {mode}


@pytest.mark.parametrize("name", [*UNKNOWN, "loss", "accuracy"])
def test_given_mode_is_used(name):
    assert modes(name, "min") == {"min"}
    assert modes(name, "max") == {"max"}


@pytest.mark.parametrize("name", UNKNOWN)
def test_mode_is_required_where_the_name_does_not_determine_it(name, tmp_path):
    with pytest.raises(ValueError, match="pass mode='min' or mode='max'"):
        make_trainer(callbacks=EarlyStopper(name))
    evaluated = {"eval_dataloader": batches([4]), "metrics": {name: results()}}
    with pytest.raises(ValueError, match="pass save_best_mode='min'"):
        make_trainer(save_folder=tmp_path, save_best=f"eval/{name}", **evaluated)


@pytest.mark.parametrize("monitor", ["test/loss", "metrics/test/loss"])
def test_names_with_labels(monitor):
    stopper = EarlyStopper(monitor)
    assert (stopper.dataloader_label, stopper.monitor) == ("test", "loss")
    assert CheckpointSaver("unused", metric=monitor).metric == "test/loss"


def results(*values):
    """Build a metric that returns these values, one for each evaluation."""
    given = iter(values)
    return lambda outputs, targets: torch.full((len(targets),), next(given))


def train(tmp_path, **changes):
    trainer = make_trainer(
        eval_dataloader=batches([4]),
        max_duration="3ep",
        save_folder=tmp_path,
        save_num_checkpoints_to_keep=1,
        **changes,
    )
    trainer.fit()
    whole, _ = find(tmp_path)
    return {one.path.name: one.manifest.info.get("best") for one in whole}


@pytest.mark.parametrize(
    ("name", "best"), [("top5", "ep2-ba6"), ("error", "ep1-ba3"), ("top/5", "ep2-ba6")]
)
def test_best_checkpoint_is_in_the_manifest(tmp_path, name, best):
    kept = train(
        tmp_path, metrics={name: results(0.25, 0.75, 0.5)}, save_best=f"metrics/eval/{name}"
    )

    assert sorted(kept) == [best, "ep3-ba9"]
    assert kept["ep3-ba9"] == {
        "metric": f"eval/{name}",
        "mode": "min" if name == "error" else "max",
        "checkpoint": best,
        "value": 0.25 if name == "error" else 0.75,
    }


def test_lowest_loss_is_best(tmp_path):
    kept = train(tmp_path, save_best="eval/loss")
    assert kept["ep3-ba9"]["mode"] == "min"


def test_best_result_needs_an_evaluator(tmp_path):
    with pytest.raises(ValueError, match=r"save_best='eval/loss' must be .*pass an eval_da"):
        make_trainer(save_folder=tmp_path, save_best="loss")


class Several:
    """A metric that returns several results, whose names are known when it is computed."""

    higher_is_better = True

    def reset(self):
        pass

    def update(self, outputs, targets):
        pass

    def compute(self):
        return {"top": 0.5}


WATCHERS = [
    lambda name, tmp_path: {"callbacks": CheckpointSaver(tmp_path, metric=name, mode="max")},
    lambda name, tmp_path: {"callbacks": EarlyStopper(name, mode="max")},
    lambda name, tmp_path: {
        "save_folder": tmp_path,
        "save_best": name,
        "save_best_mode": "max",
    },
]


@pytest.mark.parametrize("watch", WATCHERS)
@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("acuracy", "eval/acuracy"),
        ("eval/acuracy", "eval/acuracy"),
        ("metrics/eval/acuracy", "eval/acuracy"),
        ("tset/loss", "tset/loss"),
    ],
)
def test_name_that_no_result_has_is_an_error_before_training(watch, name, full, tmp_path):
    argument, known = f"(metric|monitor|save_best)='({full}|{name})'", "'metrics/eval/loss'"
    with pytest.raises(ValueError, match=f"{argument} must be a result .*: one of .*{known}"):
        make_trainer(eval_dataloader=batches([4]), **watch(name, tmp_path))


@pytest.mark.parametrize("watch", WATCHERS)
@pytest.mark.parametrize("name", ["eval/det/map", "eval/det/top"])
def test_result_of_an_object_is_known_after_its_first_evaluation(watch, name, tmp_path):
    trainer = make_trainer(
        eval_dataloader=batches([4]), metrics={"det": Several()}, **watch(name, tmp_path)
    )
    if name == "eval/det/top":
        trainer.fit()
        return
    with pytest.raises(ValueError, match="det/map' must be a result"):
        trainer.fit()
    assert trainer.state.timestamp.epoch == 1


@pytest.mark.parametrize("name", ["score", "eval/score", "metrics/eval/score"])
def test_every_name_of_a_result_is_taken_everywhere(name, tmp_path):
    memory, stopper = InMemoryLogger(), EarlyStopper(name)
    trainer = make_trainer(
        eval_dataloader=batches([4]),
        metrics={"score": results(0.25, 0.5, 0.75)},
        callbacks=stopper,
        loggers=memory,
        save_folder=tmp_path,
        save_best=name,
    )
    state = trainer.fit()

    logged = memory.series("metrics/eval/score")
    assert logged == [0.25, 0.5]
    assert state.metrics["metrics/eval/score"] == state.metrics["eval/score"] == 0.5
    assert stopper.best == 0.5
    assert trainer.eval()["metrics/eval/score"] == 0.75
    assert {one.manifest.info["best"]["value"] for one in find(tmp_path)[0]} == {0.25, 0.5}


def test_state_finds_a_result_by_its_whole_name_only():
    state = State(linear(), metrics={"eval": {"score": 0.5}, "a/b": {"score": 0.25}})

    assert state.metrics["metrics/a/b/score"] == 0.25
    for name in ("score", "metrics/score", "test/score", "eval/", "val/score", 3):
        with pytest.raises(KeyError):
            state.metrics[name]


def test_warns_if_the_evaluator_of_a_saver_never_ran(tmp_path):
    saver = CheckpointSaver(tmp_path, metric="eval/accuracy")
    with pytest.warns(UserWarning, match=r"metric='eval/accuracy' .* evaluators: \[\]"):
        make_trainer(callbacks=saver).fit()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_trainer(callbacks=EarlyStopper("foo")),
            "^mode=None requires .* monitor='eval/foo' does not; pass mode=",
        ),
        (
            lambda: make_trainer(callbacks=CheckpointSaver("a", metric="eval/foo")),
            "^mode=None .* metric='eval/foo' does not",
        ),
        (
            lambda: make_trainer(
                save_folder="a",
                save_best="eval/foo",
                eval_dataloader=batches([4]),
                metrics={"foo": results()},
            ),
            "^save_best_mode=None .* save_best='eval/foo' does not; pass save_best_mode=",
        ),
    ],
)
def test_error_names_the_arguments_of_the_caller(make, message):
    with pytest.raises(ValueError, match=message):
        make()
