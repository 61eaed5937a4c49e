"""The result that selects the best checkpoint or stops training: its name, mode and patience."""

import pytest
import torch

from composable import Evaluator, Event, State
from composable.callbacks import CheckpointSaver, EarlyStopper, ThresholdStopper
from composable.checkpoint import find
from composable.core.control import Control
from composable.core.logger import Logger
from composable.core.time import Timestamp
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.models import linear
from tests.support.observers import Raise
from tests.support.runs import make_trainer

NAN = float("nan")
LOWER = ["loss", "nll_loss", "TopError", "perplexity", "rmse", "val_mae", "distance"]
HIGHER = ["accuracy", "acc", "f1", "top5", "mean_iou", "F1Score", "auroc", "bleu4"]
UNKNOWN = ["speed", "map_loss", "size", "matches", "ache"]


class Given:
    """A metric object that returns given values, one for each evaluation."""

    def __init__(self, higher_is_better, *values):
        self.higher_is_better, self._values = higher_is_better, iter(values)

    def reset(self):
        pass

    def update(self, outputs, targets):
        pass

    def compute(self):
        value = next(self._values, 0.0)
        return value if isinstance(value, dict) else torch.tensor(value)


WATCHERS = {
    ("metric", "mode"): lambda name, mode, folder: {
        "callbacks": CheckpointSaver(folder, metric=name, mode=mode)
    },
    ("monitor", "mode"): lambda name, mode, folder: {"callbacks": EarlyStopper(name, mode=mode)},
    ("save_best", "save_best_mode"): lambda name, mode, folder: {
        "save_folder": folder,
        "save_best": name,
        "save_best_mode": mode,
    },
}
"""What watches a result, by the names of its arguments."""
every_watcher = pytest.mark.parametrize("watcher", WATCHERS, ids="-".join)


def evaluated(watcher, result, mode, folder, metrics=None):
    """Build a Trainer that watches a result of an evaluation."""
    watching = WATCHERS[watcher](result, mode, folder)
    return make_trainer(eval_dataloader=batches([4]), metrics=metrics, **watching)


# --- the mode


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


@pytest.mark.parametrize(
    ("name", "declared"), [*((name, None) for name in UNKNOWN), ("speed", 1), ("speed", "yes")]
)
@every_watcher
def test_mode_is_required_where_neither_the_name_nor_the_metric_determines_it(
    watcher, name, declared, tmp_path
):
    argument, mode = watcher
    said = f"^{mode}=None requires .*higher_is_better.* {argument}='eval/{name}' does not; pass "
    with pytest.raises(ValueError, match=f"{said}{mode}='min' or {mode}='max'"):
        evaluated(watcher, f"eval/{name}", None, tmp_path, {name: Given(declared)})


def test_mode_is_required_without_an_evaluator_too(tmp_path):
    for watcher in [("metric", "mode"), ("monitor", "mode")]:
        with pytest.raises(ValueError, match=r"^mode=None requires .*='eval/foo' does not; pass"):
            make_trainer(**WATCHERS[watcher]("eval/foo", None, tmp_path))


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
    stopper = EarlyStopper(f"eval/{name}", mode=given, patience="9ep")
    watching = {
        "trainer": WATCHERS["save_best", "save_best_mode"](f"eval/{name}", given, tmp_path),
        "callback": WATCHERS["metric", "mode"](f"eval/{name}", given, tmp_path),
        "stopper": {"callbacks": stopper},
        "later": {},
    }[by]
    metrics = {name: Given(declared, 2.0, 3.0, 1.0)}
    options = {"eval_dataloader": batches([4]), "metrics": metrics, "max_duration": "3ep"}
    trainer = make_trainer(**options, **watching)
    if by == "later":
        trainer.add_callback(stopper)

    trainer.fit()

    savers = [one for one in trainer.plan.callbacks if isinstance(one, CheckpointSaver)]
    assert (savers[0].manager.best[1] if savers else stopper.best) == best


def test_one_stopper_follows_the_metric_of_each_trainer():
    stopper, modes = EarlyStopper("eval/speed"), []
    for declared in (True, False):
        metrics = {"speed": Given(declared)}
        make_trainer(eval_dataloader=batches([4]), metrics=metrics, callbacks=stopper)
        modes.append(stopper.mode)

    assert modes == ["max", "min"]


# --- the name


@pytest.mark.parametrize("monitor", ["test/loss", "metrics/test/loss"])
def test_names_with_labels(monitor):
    stopper = EarlyStopper(monitor)
    assert (stopper.dataloader_label, stopper.monitor) == ("test", "loss")
    assert CheckpointSaver("unused", metric=monitor).metric == "test/loss"


@every_watcher
@pytest.mark.parametrize("mode", ["max", None])
@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("acuracy", "eval/acuracy"),
        ("eval/acuracy", "eval/acuracy"),
        ("metrics/eval/acuracy", "eval/acuracy"),
        ("tset/loss", "tset/loss"),
    ],
)
def test_name_that_no_result_has_is_an_error_before_training(watcher, name, full, mode, tmp_path):
    said = f"{watcher[0]}='({full}|{name})' must be a result .*: one of .*'metrics/eval/loss'"
    with pytest.raises(ValueError, match=said):
        evaluated(watcher, name, mode, tmp_path)


@every_watcher
@pytest.mark.parametrize("name", ["eval/det/map", "eval/det/top"])
def test_result_of_an_object_is_known_after_its_first_evaluation(watcher, name, tmp_path):
    metrics = {"det": Given(True, {"top": 0.5}, {"top": 0.5})}
    trainer = evaluated(watcher, name, "max", tmp_path, metrics)
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
        metrics={"score": Given(None, 0.25, 0.5, 0.75)},
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


@pytest.mark.parametrize(
    ("watcher", "said"),
    [
        (("metric", "mode"), r"metric='eval/loss' .* evaluators: \[\]"),
        (("monitor", "mode"), "matches no evaluator that ran: none ran; pass an eval"),
    ],
)
def test_warns_if_the_evaluator_never_ran(watcher, said, tmp_path):
    with pytest.warns(UserWarning, match=said):
        make_trainer(**WATCHERS[watcher]("eval/loss", None, tmp_path)).fit()


# --- the best checkpoint


def kept(tmp_path, **changes):
    """Train for three epochs; return what the manifests of the kept checkpoints say of the best."""
    make_trainer(
        eval_dataloader=batches([4]),
        max_duration="3ep",
        save_folder=tmp_path,
        save_num_checkpoints_to_keep=1,
        **changes,
    ).fit()
    return {one.path.name: one.manifest.info.get("best") for one in find(tmp_path)[0]}


@pytest.mark.parametrize(
    ("name", "best"), [("top5", "ep2-ba6"), ("error", "ep1-ba3"), ("top/5", "ep2-ba6")]
)
def test_best_checkpoint_is_in_the_manifest(tmp_path, name, best):
    metrics = {name: Given(None, 0.25, 0.75, 0.5)}
    found = kept(tmp_path, metrics=metrics, save_best=f"metrics/eval/{name}")

    assert sorted(found) == [best, "ep3-ba9"]
    assert found["ep3-ba9"] == {
        "metric": f"eval/{name}",
        "mode": "min" if name == "error" else "max",
        "checkpoint": best,
        "value": 0.25 if name == "error" else 0.75,
    }


# --- a batch that is saved twice counts once among the checkpoints to keep

KEEP_TWO = {"save_interval": "1ba", "save_num_checkpoints_to_keep": 2}
AFTER_EPOCH = ["ep1-ba5", "ep2-ba6"]


def saved(folder, **options):
    """Return the checkpoints that a run leaves."""
    make_trainer(save_folder=folder, **KEEP_TWO, **options).fit()
    return sorted(path.name for path in folder.glob("ep*"))


@pytest.mark.parametrize("background", [False, True])
def test_two_batches_are_kept(background, tmp_path):
    assert saved(tmp_path, save_in_background=background) == AFTER_EPOCH


def test_two_batches_are_kept_after_resuming_between_the_two_saves(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, callbacks=[Raise(KeyboardInterrupt(), Event.EPOCH_END, batch=6)])

    assert saved(tmp_path, autoresume=True) == AFTER_EPOCH


def test_best_checkpoint_is_not_replaced(tmp_path):
    best = {"metrics": {"score": Given(True, 1.0)}, "save_best": "eval/score"}
    found = saved(tmp_path, eval_dataloader=batches([4]), eval_interval="6ba", **best)

    assert found == ["ep1-ba5", "ep1-ba6", "ep2-ba6"]


# --- stopping


def stop_of(stopper, values, *, name="loss", start=0):
    """Show the results of epochs to a stopper; return the epoch after which it stops, if any."""
    logger, earlier = Logger(), {"test": {"loss": 1.0}}
    state = State(linear(), epoch_length=3, max_duration="100ep", metrics=earlier)
    for epoch, value in enumerate(values, start + 1):
        state = state.evolve(timestamp=Timestamp(epoch=epoch, batch=3 * epoch))
        stopper.eval_before_all(state, logger)
        state = state.evolve(metrics={**state.metrics, "eval": {name: value}})
        if stopper.eval_after_all(state, logger) is Control.STOP:
            return epoch
    return None


@pytest.mark.parametrize(
    ("patience", "epoch"),
    [
        *(("1ep", 4), ("2ep", 5), (0, 3), ("3ba", 4), ("4ba", 4), ("0.02dur", 5)),
        *(("0eval", 3), ("1eval", 4), ("3eval", 6)),
    ],
)
def test_stops_at_the_first_evaluation_after_the_patience(patience, epoch):
    stopper = EarlyStopper("loss", patience=patience)

    assert stop_of(stopper, [3.0, 2.0, 2.0, 2.5, 2.0, 2.0]) == epoch
    assert stopper.best == 2.0


@pytest.mark.parametrize(
    ("options", "values", "epoch"),
    [
        ({}, [3.0, 4.0, 2.0, 2.0, 1.0, 1.0], None),  # a better result restarts the patience
        ({"min_delta": 0.25}, [1.0, 0.75, 0.75, 0.75], 3),
        ({"min_delta": 0.2}, [1.0, 0.75, 0.75, 0.75], 4),
        ({"mode": "max"}, [0.6, 0.7, 0.8, 0.9], None),
        ({"mode": "max"}, [0.9, 0.8, 0.7, 0.6], 3),
        ({}, [NAN, NAN, NAN], 3),
        ({}, [NAN, 1.0, NAN, 0.5], None),
    ],
)
def test_only_a_better_result_restarts_the_patience(options, values, epoch):
    assert stop_of(EarlyStopper("loss", **options), values) == epoch


@pytest.mark.parametrize("cut", range(1, 5))
@pytest.mark.parametrize("patience", ["2ep", "2eval"])
def test_the_patience_survives_a_resume(patience, cut):
    values = [3.0, 2.0, 2.5, 2.5, 2.5]
    before, after = (EarlyStopper("loss", patience=patience) for _ in range(2))
    assert stop_of(before, values[:cut]) is None
    after.load_state_dict(before.state_dict())

    assert stop_of(after, values[cut:], start=cut) == 5


def test_results_of_other_evaluators_do_not_count():
    stopper = EarlyStopper("loss", dataloader_label="test")

    assert stop_of(stopper, [5.0] * 8) is None
    assert stopper.best is None


def test_every_run_starts_without_the_state_of_the_last():
    stopper = EarlyStopper("loss", dataloader_label="test", min_delta=1e9, patience="2ep")
    stopper.load_state_dict({"best": -1e12, "since": 0, "evaluations": 3})
    evaluator = Evaluator("test", batches([4]))
    options = {"eval_dataloader": evaluator, "callbacks": stopper, "max_duration": "9ep"}

    assert [make_trainer(**options).fit().timestamp.epoch for _ in range(2)] == [4, 4]


@pytest.mark.parametrize(
    ("name", "options", "values", "stop"),
    [
        ("loss", {}, [0.9, 0.6, 0.5, 0.4], 3),
        ("accuracy", {}, [0.4, NAN, 0.5, 0.4], 3),
        ("accuracy", {"mode": "min"}, [0.6, 0.4], 2),
        ("loss", {}, [NAN, 0.6], None),
    ],
)
def test_reaching_the_threshold_stops_training(name, options, values, stop):
    assert stop_of(ThresholdStopper(name, 0.5, **options), values, name=name) == stop


def test_threshold_of_a_run():
    options = {"eval_dataloader": batches(4), "max_duration": "9ep"}
    trainer = make_trainer(callbacks=ThresholdStopper("eval/loss", 1e9), **options)
    assert trainer.fit().timestamp.epoch == 1

    with pytest.raises(ValueError, match="monitor='test/loss' must be a result of an evaluation"):
        make_trainer(callbacks=ThresholdStopper("test/loss", 0.0), **options)
