"""A run folder is read whatever is in it, and its metrics are a table."""

import json
import math
import os
import re
import time

import pytest
import torch

from composable.checkpoint import MissingCheckpointError
from composable.loggers import JSONLinesLogger
from composable.report import RecordedRun
from composable.report.recorded_run import find_runs
from composable.runs import records
from composable.runs.events import EVENTS
from composable.trainer.guards import NonFiniteLossError
from tests.report.folders import ended, write_lines, write_run
from tests.support.data import batches
from tests.support.runs import make_trainer


def trained(folder, **options):
    """Train two epochs of three batches, and read the run."""
    logger = JSONLinesLogger(folder / "metrics.jsonl")
    options = {"eval_dataloader": batches(4), "loggers": logger, **options}
    make_trainer(save_folder=folder, **options).fit()
    return RecordedRun(folder)


def test_the_curves_are_those_that_were_logged(tmp_path):
    run = trained(tmp_path, save_interval="1ep", max_duration="2ep")

    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for name in ("loss/train", "lr", "metrics/eval/loss"):
        logged = [(line["batch"], line[name]) for line in lines if name in line]
        assert list(run.curves[name]) == logged
    assert run.status == "finished"
    assert run.num_batches == lines[-1]["batch"]
    assert [one["batch"] for one in run.checkpoints] == [3, 6]
    assert run.num_seconds == pytest.approx(lines[-1]["seconds"], abs=1e-3)
    assert run.problems == []
    shown = r"<RecordedRun .*: finished, 6 batches, metrics \['loss/train', .*\]>"
    assert re.fullmatch(shown, repr(run))


def test_a_metrics_file_in_an_inner_folder_is_found_through_the_configuration(tmp_path):
    logger = JSONLinesLogger(tmp_path / "run" / "logs" / "metrics.jsonl")

    def norm(event, state, logger):
        if event.value == "batch_end":
            logger.log_metrics({"norm": 1.0})

    run = trained(tmp_path / "run", loggers=logger, callbacks=norm)

    assert set(run.curves["norm"].values) == {1.0}


@pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")
def test_a_resumed_run_has_each_batch_once(tmp_path):
    for duration in ("1ep", "3ep"):
        run = trained(tmp_path, max_duration=duration, save_interval="1ep", autoresume=True)

    assert list(run.curves["loss/train"].batches) == list(range(1, 10))
    assert list(run.clock.seconds.values) == sorted(run.clock.seconds.values)
    assert len(run.records) == 2


@pytest.mark.parametrize(
    ("events", "status"),
    [
        (ended(5, 1.0), "finished"),
        (ended(5, 1.0, "ValueError: no"), "failed"),
        (ended(5, 1.0, "Preempted: SIGTERM"), "interrupted"),
        (ended(5, 1.0) + ended(9, 1.0)[:-1], "running"),
        ([], "unknown"),
    ],
)
def test_the_status_is_that_of_the_last_start_or_end(tmp_path, events, status):
    run = write_run(tmp_path, [1.0] * 5, events=events)

    assert RecordedRun(run).status == status


def test_a_run_that_wrote_nothing_for_long_and_has_no_end_was_killed(tmp_path):
    write_run(tmp_path, [1.0], events=ended(5, 1.0)[:-1])
    for name in (EVENTS, records.STEPS):
        os.utime(tmp_path / name, (time.time() - 600,) * 2)

    assert RecordedRun(tmp_path).status == "not ended"


def test_a_run_records_its_error_and_its_warnings(tmp_path):
    class Wrong(torch.nn.Module):
        def forward(self, x):
            torch.warnings.warn("loss is odd", stacklevel=1)
            return x[:, :1].expand(-1, 3) * math.nan

    model = torch.nn.Sequential(torch.nn.Linear(2, 3), Wrong())
    shown = torch.warnings.showwarning
    with pytest.warns(UserWarning, match="odd"), pytest.raises(NonFiniteLossError):
        trained(tmp_path, model=model, train_dataloader=[(torch.ones(2, 2), torch.ones(2).long())])
    assert torch.warnings.showwarning is shown

    run = RecordedRun(tmp_path)
    assert run.status == "failed"
    assert run.error.startswith("NonFiniteLossError: ")
    assert [(one.category, one.message) for one in run.warnings] == [("UserWarning", "loss is odd")]


def test_broken_files_are_problems_and_the_rest_is_read(tmp_path):
    write_run(tmp_path, [3.0, 2.0, 1.0], events=["{", *ended(3, 1.0)], metrics=["[]", {"batch": 1}])
    (tmp_path / records.RUN).write_text("{}")
    lines = (tmp_path / records.STEPS).read_text().splitlines()
    lines[1] = "garbage"
    (tmp_path / records.STEPS).write_text("\n".join(lines) + '\n{"batch": 3, "lo')

    run = RecordedRun(tmp_path)

    assert list(run.curves["loss/train"]) == [(1, 3.0), (3, 1.0)]
    assert run.configuration == {}
    assert [problem.split(":")[0].split("/")[-1] for problem in run.problems] == [
        "run.json is not the record of a run.",
        "steps.jsonl, line 2",
        f"{EVENTS}, line 1",
        "metrics.jsonl, line 1",
    ]


@pytest.mark.parametrize("value", ["text", None, True, [1], {"columns": []}, 10**400, "0x", "face"])
def test_what_is_no_number_is_no_point(tmp_path, value):
    write_run(tmp_path, [1.0], metrics=[{"batch": 1, "x": value}, {"batch": -1, "x": 1.0}])

    assert sorted(RecordedRun(tmp_path).curves) == ["loss/train", "lr"]


def test_numbers_that_are_not_finite_are_read(tmp_path):
    metrics = [{"batch": i, "x": x} for i, x in enumerate(["NaN", "Infinity", "-Infinity", 1])]
    run = RecordedRun(write_run(tmp_path, [math.nan], metrics=metrics))

    assert run.curves["x"].nonfinite() == [0, 1, 2]
    assert run.curves["loss/train"].nonfinite() == [1]


def test_a_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(MissingCheckpointError, match=r"contains no run.json"):
        RecordedRun(tmp_path)
    with pytest.raises(MissingCheckpointError, match=r"neither does a folder in it"):
        find_runs([tmp_path])
    with pytest.raises(MissingCheckpointError, match=r"no does not exist; pass the save_folder"):
        RecordedRun(tmp_path / "no")
    (tmp_path / "file").touch()
    with pytest.raises(MissingCheckpointError, match=r"file is a file; pass the save_folder"):
        find_runs([tmp_path / "file"])
    with pytest.raises(TypeError, match="folder=3"):
        RecordedRun(3)


def test_a_folder_of_runs_stands_for_them_in_the_order_of_their_numbers(tmp_path):
    for name in ("run-10", "run-2"):
        write_run(tmp_path / name, [1.0])
    (tmp_path / "notes").mkdir()

    found = find_runs([tmp_path, tmp_path / "run-10"])

    assert [run.folder.name for run in found] == ["run-2", "run-10"]


def test_a_table_has_a_row_for_each_batch(tmp_path):
    results = [(1, {"eval/accuracy": 0.5})]
    write_run(tmp_path, [3.0, 2.0, math.inf], results=results, events=ended(3, 6.0))

    table = RecordedRun(tmp_path).to_pandas()

    assert list(table.index) == [1, 2, 3]
    assert table["seconds"].tolist() == pytest.approx([2.0, 4.0, 6.0])
    assert table["loss/train"].tolist() == [3.0, 2.0, math.inf]
    assert table["metrics/eval/accuracy"].dropna().to_dict() == {2: 0.5}
    assert RecordedRun(write_run(tmp_path / "empty")).to_pandas().empty


def test_lines_of_an_earlier_part_are_not_read(tmp_path):
    write_run(tmp_path, [1.0], metrics=[{"batch": 1, "x": 1.0}])
    write_lines(tmp_path / "metrics.1.jsonl", [{"batch": 1, "y": 1.0}])

    assert "y" not in RecordedRun(tmp_path).curves


def test_only_files_in_the_folder_of_the_run_are_read(tmp_path):
    other, run = tmp_path / "other", tmp_path / "run"
    other.mkdir()
    write_lines(other / "secret.jsonl", [{"batch": 1, "secret": 1.0}])
    paths = {"JSONLinesLogger": str(other / "secret.jsonl"), "2": "../other/secret.jsonl"}
    write_run(run, [1.0], metrics=[{"batch": 1, "own": 2.0}], metrics_paths=paths)
    (run / "link.jsonl").symlink_to(other / "secret.jsonl")
    (run / "up").symlink_to(other)
    through = {"3": str(run / "up" / "secret.jsonl"), "4": str(run / "metrics.jsonl")}
    write_run(run, [1.0], metrics=[{"batch": 1, "own": 2.0}], metrics_paths={**paths, **through})

    found = RecordedRun(run)

    assert sorted(found.curves) == ["loss/train", "lr", "own"]
    outside = [one for one in found.problems if "outside of the folder of the run" in one]
    assert len(outside) == 4
    assert any(str(other / "secret.jsonl") in one for one in outside)
