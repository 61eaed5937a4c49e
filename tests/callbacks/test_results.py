"""The metric that selects the best checkpoint or stops training: its name and its mode."""

import pytest
import torch

from composable.callbacks import CheckpointSaver, EarlyStopper
from composable.checkpoint import find
from tests.support.data import batches
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
    with pytest.raises(ValueError, match="pass save_best_mode='min'"):
        make_trainer(save_folder=tmp_path, save_best=f"eval/{name}")


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


@pytest.mark.parametrize(
    "options", [{"eval_dataloader": None}, {"eval_dataloader": batches([4])}], ids=["none", "eval"]
)
def test_unknown_result_is_an_error_before_training(tmp_path, options):
    with pytest.raises(ValueError, match="save_best='eval/acuracy' must be a result of an eval"):
        make_trainer(
            save_folder=tmp_path, save_best="eval/acuracy", save_best_mode="max", **options
        )


def test_unknown_result_of_a_saver(tmp_path):
    saver = CheckpointSaver(tmp_path, metric="eval/accuracy")
    with pytest.raises(ValueError, match=r"metric='eval/accuracy' must be .* \['eval/loss'\]"):
        make_trainer(eval_dataloader=batches([4]), callbacks=saver).fit()


def test_warns_if_the_evaluator_of_a_saver_never_ran(tmp_path):
    saver = CheckpointSaver(tmp_path, metric="tset/accuracy")
    with pytest.warns(UserWarning, match=r"metric='tset/accuracy' .* evaluators: \['eval'\]"):
        make_trainer(eval_dataloader=batches([4]), callbacks=saver).fit()


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
        (lambda: EarlyStopper("loss", mode="low"), "^mode='low' must be"),
        (lambda: CheckpointSaver("a", mode="low"), "^mode='low' must be"),
        (
            lambda: make_trainer(save_folder="a", save_best="eval/foo"),
            "^save_best_mode=None .* save_best='eval/foo' does not; pass save_best_mode=",
        ),
    ],
)
def test_error_names_the_arguments_of_the_caller(make, message):
    with pytest.raises(ValueError, match=message):
        make()
