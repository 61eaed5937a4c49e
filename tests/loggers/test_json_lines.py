"""Metrics in a file, one JSON object a line."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from composable import Callback, Timestamp
from composable.loggers import JSONLinesLogger
from composable.testing import NoSync
from tests.support.tiny import NoRead, batches, make_trainer


def lines(path):
    # Strictly: JSON has no NaN, though Python would read it.
    def refuse(constant):
        raise AssertionError(constant)

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_a_line_holds_the_time_and_the_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logger = JSONLinesLogger(path)
    now = Timestamp(epoch=1, batch=7, sample=28, total_wct=1.23456789)

    logger.log_metrics({"loss": torch.tensor(0.5), "n": torch.tensor(3), "by": "a"}, now)
    logger.close()

    assert lines(path) == [
        {
            "epoch": 1,
            "batch": 7,
            "sample": 28,
            "seconds": 1.234568,
            "loss": 0.5,
            "n": 3,
            "by": "a",
        }
    ]


@pytest.mark.parametrize("wrap", [float, torch.tensor])
def test_what_is_not_finite_is_a_string(tmp_path, wrap):
    path = tmp_path / "metrics.jsonl"
    logger = JSONLinesLogger(path)

    values = {"a": wrap(math.nan), "b": wrap(math.inf), "c": wrap(-math.inf)}
    logger.log_metrics(values, Timestamp())
    logger.close()

    (line,) = lines(path)
    assert (line["a"], line["b"], line["c"]) == ("NaN", "Infinity", "-Infinity")


def test_every_number_is_written(tmp_path):
    logger = JSONLinesLogger(tmp_path / "metrics.jsonl")

    values = {"a": np.float32(0.5), "b": np.int64(3), "c": np.float64(0.25), "d": Fraction(1, 4)}
    logger.log_metrics({**values, "e": True, "f": None, "g": np.float32("inf")}, Timestamp())
    logger.close()

    (line,) = lines(logger.path)
    written = {"a": 0.5, "b": 3, "c": 0.25, "d": 0.25, "e": True, "f": None, "g": "Infinity"}
    assert {name: line[name] for name in written} == written
    assert isinstance(line["b"], int)
    assert line["e"] is True


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (torch.zeros(3), ValueError),
        ([1.0], ValueError),
        (torch.empty((), device="meta"), NotImplementedError),
        (10**400 * Fraction(1, 3), OverflowError),
    ],
)
def test_a_record_that_can_not_be_written_loses_no_other(tmp_path, bad, error):
    logger = JSONLinesLogger(tmp_path / "metrics.jsonl")
    for batch in range(5):
        loss = bad if batch == 2 else torch.tensor(float(batch))
        logger.log_metrics({"loss": loss}, Timestamp(batch=batch))

    with pytest.raises(error):
        logger.close()
    logger.log_metrics({"loss": 5.0}, Timestamp(batch=5))
    logger.close()

    assert [line["loss"] for line in lines(logger.path)] == [0.0, 1.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("name", ["epoch", "batch", "sample", "seconds"])
def test_a_metric_does_not_hide_the_time(tmp_path, name):
    logger = JSONLinesLogger(tmp_path / "metrics.jsonl")
    logger.log_metrics({"loss": 1.0}, Timestamp())

    with pytest.raises(ValueError, match=f"metric name '{name}' is reserved .*'metrics/{name}'"):
        logger.log_metrics({name: 1.0}, Timestamp())
    logger.close()

    assert [line["loss"] for line in lines(logger.path)] == [1.0]


def test_an_existing_file_is_not_touched(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("old\n")

    trainer = make_trainer(loggers=[JSONLinesLogger(path)])
    with pytest.raises(FileExistsError, match=r"path='.*metrics.jsonl' exists; .*overwrite=True"):
        trainer.fit()

    assert trainer.state.timestamp.batch == 0  # before any time is spent
    assert path.read_text() == "old\n"


def test_an_existing_file_is_not_touched_by_a_first_record(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("old\n")
    logger = JSONLinesLogger(path, flush_interval=1)

    with pytest.raises(FileExistsError, match="exists; pass another path, append=True"):
        logger.log_metrics({"loss": 1.0}, Timestamp())

    assert path.read_text() == "old\n"


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"append": True}])
def test_constructing_and_closing_write_nothing(tmp_path, options):
    path, folder = tmp_path / "metrics.jsonl", tmp_path / "new"
    path.write_text("old\n")

    JSONLinesLogger(path, **options).close()
    JSONLinesLogger(folder / "metrics.jsonl", **options).close()

    assert path.read_text() == "old\n"
    assert not folder.exists()


def test_an_existing_file_is_replaced_where_asked(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("old\n")

    logger = JSONLinesLogger(path, overwrite=True)
    logger.log_metrics({"loss": 1.0}, Timestamp())
    logger.close()

    assert [line["loss"] for line in lines(path)] == [1.0]


def test_the_folder_is_made(tmp_path):
    path = tmp_path / "runs" / "17" / "metrics.jsonl"

    make_trainer(loggers=[JSONLinesLogger(str(path))], log_interval="9ba").fit()

    assert path.read_text() == ""


@pytest.mark.parametrize("interval", [0, -1, 1.5, "100", None])
def test_the_flush_interval_is_checked(tmp_path, interval):
    with pytest.raises(ValueError, match=r"flush_interval=.* must be a positive integer"):
        JSONLinesLogger(tmp_path / "metrics.jsonl", flush_interval=interval)


def test_lines_are_written_each_flush_interval(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logger = JSONLinesLogger(path, flush_interval=3)
    written = []
    for batch in range(7):
        logger.log_metrics({"loss": float(batch)}, Timestamp(batch=batch))
        written.append(len(lines(path)) if path.exists() else 0)
    logger.close()

    assert written == [0, 0, 3, 3, 3, 6, 6]
    assert [line["batch"] for line in lines(path)] == list(range(7))


def test_a_second_fit_appends(tmp_path):
    path = tmp_path / "metrics.jsonl"
    trainer = make_trainer(loggers=[JSONLinesLogger(path)], max_duration="1ep")
    trainer.fit()
    assert len(lines(path)) == 3
    trainer.fit(duration="1ep")

    assert [line["batch"] for line in lines(path)] == [1, 2, 3, 4, 5, 6]


def test_closing_twice_is_closing_once(tmp_path):
    logger = JSONLinesLogger(tmp_path / "metrics.jsonl")
    logger.close()
    logger.close()


def test_a_run_leaves_its_losses_exactly(tmp_path):
    path = tmp_path / "metrics.jsonl"
    losses = []

    def watch(event, state, logger):
        if event.value == "batch_end":
            losses.append(state.loss)

    make_trainer(
        loggers=[JSONLinesLogger(path)], callbacks=[watch], eval_dataloader=batches([4])
    ).fit()

    assert [x["loss/train"] for x in lines(path) if "lr" in x] == [x.item() for x in losses]
    assert [x["batch"] for x in lines(path) if "metrics/eval/loss" in x] == [3, 6]


def test_nothing_is_read_from_the_device_before_it_is_written(tmp_path):
    logger = JSONLinesLogger(tmp_path / "metrics.jsonl", flush_interval=100)

    with NoSync(), NoRead():
        for batch in range(99):
            logger.log_metrics({"loss": torch.tensor(1.0)}, Timestamp(batch=batch))
    logger.close()

    assert len(lines(logger.path)) == 99


# Appending


class Stop(Callback):
    def __init__(self, batch):
        self.batch = batch

    def batch_end(self, state, logger):
        if state.timestamp.batch == self.batch:
            raise KeyboardInterrupt


def test_a_run_that_goes_on_leaves_the_lines_of_one_that_was_never_stopped(tmp_path):
    def run(folder, stop, **more):
        trainer = make_trainer(
            loggers=[JSONLinesLogger(tmp_path / folder / "metrics.jsonl", **more)],
            callbacks=[Stop(stop)],
            save_folder=tmp_path / folder / "checkpoints",
            save_interval="2ba",
            eval_dataloader=batches([4]),
            autoresume=True,
        )
        try:
            trainer.fit()
        except KeyboardInterrupt:
            return
        assert trainer.state.timestamp.batch == 6

    def told(folder):
        found = lines(tmp_path / folder / "metrics.jsonl")
        return [{k: v for k, v in line.items() if k != "seconds"} for line in found]

    run("whole", None)
    run("stopped", 6)  # saved at batch 4, and at 5 batches were logged
    assert len(told("stopped")) > 4
    run("stopped", None, append=True)

    assert told("stopped") == told("whole")


def test_what_is_taken_back_in_the_middle_of_a_run_is_written_where_it_was(tmp_path):
    logger = JSONLinesLogger(tmp_path / "metrics.jsonl")
    logger.log_metrics({"n": 1}, Timestamp())
    then = logger.state_dict()
    logger.log_metrics({"n": 2}, Timestamp())
    logger.flush()

    logger.load_state_dict(then)
    logger.log_metrics({"n": 3}, Timestamp())
    logger.close()

    assert [line["n"] for line in lines(logger.path)] == [1, 3]


def test_a_file_that_is_shorter_than_it_was_is_an_error(tmp_path):
    logger = JSONLinesLogger(tmp_path / "metrics.jsonl")

    with pytest.raises(ValueError, match="has 0 bytes, but had 80 when the checkpoint was saved"):
        logger.load_state_dict({"bytes": 80, "sha256": ""})
    logger.close()


def test_a_file_is_gone_on_with_or_replaced():
    with pytest.raises(ValueError, match="overwrite=True and append=True"):
        JSONLinesLogger("metrics.jsonl", overwrite=True, append=True)
