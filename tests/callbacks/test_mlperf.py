"""The log of a result passes the checker of MLPerf, also after an interruption."""

import json
import sys

import pytest
import torch

from composable import Evaluator, Event
from composable.callbacks import MLPerfCallback
from composable.resume import ChangedRunWarning
from tests.support.campaign import drawn
from tests.support.data import batches
from tests.support.mlperf import problems
from tests.support.observers import Raise
from tests.support.runs import make_trainer


def lines(path):
    """Return the keys of a log, each with its value and its metadata."""
    records = [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]
    places = ("file", "lineno")
    return [
        (one["key"], one["value"], {k: v for k, v in one["metadata"].items() if k not in places})
        for one in records
    ]


def keys(path):
    return [key for key, _, _ in lines(path)]


def values(path):
    return {key: value for key, value, _ in lines(path)}


def rising(*given):
    """Return a metric that has these values, one for each evaluation."""
    rest = iter(given)
    return lambda outputs, targets: torch.full((len(targets),), next(rest))


def train(path, *others, results=(0.2, 0.4, 0.6), options=None, **log):
    """Train for as many epochs as there are results, and return the state."""
    log = {"target": 0.5, "submitter": "us", "platform": "one", **log}
    evaluator = Evaluator("eval", batches([4]), metrics={"accuracy": rising(*results)})
    trainer = make_trainer(
        callbacks=[MLPerfCallback(path, **log), *others],
        eval_dataloader=[evaluator, Evaluator("other", batches([2]))],
        **{"max_duration": f"{len(results)}ep", **(options or {})},
    )
    return trainer.fit()


def test_log_passes_the_checker(tmp_path):
    path = tmp_path / "results/result_0.txt"
    train(path, cache_cleared=True)

    assert problems(path) == []
    start = "cache_clear init_start submission_benchmark submission_division submission_org"
    start += " submission_platform submission_status seed init_stop run_start"
    first = "epoch_start global_batch_size train_samples epoch_stop"
    first += " eval_start eval_samples eval_accuracy eval_stop"
    later = "epoch_start epoch_stop eval_start eval_accuracy eval_stop"
    assert keys(path) == f"{start} {first} {later} {later} run_stop".split()
    found = values(path)
    assert (found["global_batch_size"], found["train_samples"], found["eval_samples"]) == (4, 12, 4)
    assert (found["cache_clear"], found["seed"], found["submission_org"]) == (True, 17, "us")


def test_further_values_are_those_of_the_rules(tmp_path):
    train(
        tmp_path / "log", values={"opt_name": "sgd", "eval_samples": 7, "seed": 3}, benchmark="bert"
    )

    found = lines(tmp_path / "log")
    assert problems(tmp_path / "log") == []
    for entry in [("opt_name", "sgd", {}), ("eval_samples", 7, {}), ("seed", 3, {})]:
        assert found.count(entry) == 1
    assert keys(tmp_path / "log").count("eval_samples") == 1


def test_epochs_are_numbered_from_one(tmp_path):
    train(
        tmp_path / "log", results=[0.1] * 6, options={"max_duration": "2ep", "eval_interval": "2ba"}
    )

    numbers = [
        (key, data["epoch_num"]) for key, _, data in lines(tmp_path / "log") if "epoch_num" in data
    ]
    of = {kind: [n for key, n in numbers if key == kind] for kind, _ in numbers}
    assert of["epoch_start"] == of["epoch_stop"] == [1, 2]
    assert of["eval_accuracy"] == of["eval_start"] == of["eval_stop"] == [1, 2, 2]


@pytest.mark.parametrize(
    ("target", "mode", "status"),
    [
        (0.6, None, "success"),
        (0.7, None, "aborted"),
        (0.7, "min", "success"),
        (0.5, "min", "aborted"),
    ],
)
def test_status_says_whether_the_target_is_reached(target, mode, status, tmp_path):
    result = torch.tensor(0.6).item()
    target = result if target == 0.6 else target
    state = train(tmp_path / "log", results=[result, result], target=target, mode=mode)

    (stop,) = [data for key, _, data in lines(tmp_path / "log") if key == "run_stop"]
    assert stop["status"] == status
    assert state.timestamp.epoch == 2


def test_training_stops_at_the_target_if_requested(tmp_path):
    state = train(tmp_path / "log", results=[0.6, 0.7], stop_at_target=True)

    assert state.timestamp.epoch == 1
    assert problems(tmp_path / "log") == []


@pytest.mark.parametrize("cut", drawn(range(1, 9), 3))
def test_log_of_a_resumed_run_is_that_of_a_whole_one(cut, tmp_path):
    save = {"save_folder": tmp_path / "runs", "save_interval": "1ba", "autoresume": True}
    train(tmp_path / "whole", results=[0.2] * 3)

    with pytest.raises(KeyboardInterrupt):
        train(
            tmp_path / "cut",
            Raise(KeyboardInterrupt(), Event.BATCH_START, batch=cut),
            results=[0.2] * 3,
            options=save,
        )
    train(tmp_path / "cut", results=[0.2] * 3, options=save)

    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    assert problems(tmp_path / "cut") == []


def test_existing_file_is_not_overwritten(tmp_path):
    (tmp_path / "log").write_text("mine")

    with pytest.raises(FileExistsError, match="pass the path of a new result"):
        train(tmp_path / "log")

    assert (tmp_path / "log").read_text() == "mine"


def test_resuming_without_the_log_is_an_error(tmp_path):
    save = {"save_folder": tmp_path / "runs", "autoresume": True}
    train(tmp_path / "log", results=[0.2], options=save)
    (tmp_path / "log").unlink()

    with (
        pytest.warns(ChangedRunWarning),
        pytest.raises(ValueError, match=r"has 0 bytes, but had \d+"),
    ):
        train(tmp_path / "log", results=[0.2, 0.2], options=save)


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("composable.distributed.Processes.is_main", False)

    train(tmp_path / "log")

    assert not (tmp_path / "log").exists()


def test_missing_package_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlperf_logging.mllog.mllog", None)

    with pytest.raises(ImportError, match=r'pip install "composable\[mlperf\]"'):
        MLPerfCallback("a", target=1, submitter="us", platform="one")


def test_rejects_invalid_states():
    callback = MLPerfCallback("a", target=1, submitter="us", platform="one")
    with pytest.raises(ValueError, match="bytes is -1, and must be a non-negative integer"):
        callback.load_state_dict({"bytes": -1, "once": []})
    with pytest.raises(ValueError, match=r"MLPerfCallback was given the state \['best'\]"):
        callback.load_state_dict({"best": 1})
