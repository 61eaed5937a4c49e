"""Metrics in a file, one JSON object per line."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from composable import Timestamp
from composable.loggers import JSONLinesLogger
from tests.support.runs import make_trainer


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def lines(path):
    # Strictly: JSON has no NaN, though Python would read it.
    def refuse(constant):
        raise AssertionError(constant)

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def write(logger, *losses):
    for batch, loss in enumerate(losses):
        logger.log_metrics({"loss": loss}, Timestamp(batch=batch))
    logger.close()
    return [line["loss"] for line in lines(logger.path)]


def test_a_line_has_the_time_and_every_kind_of_number(path):
    values = {"a": np.float32(0.5), "b": np.int64(3), "c": np.float64(0.25), "d": Fraction(1, 4)}
    others = {"loss": torch.tensor(0.5), "n": torch.tensor(3), "by": "a", "e": True, "f": None}
    infinite = {"g": np.float32("inf"), "h": -math.inf, "i": math.nan, "j": torch.tensor(math.nan)}
    logger = JSONLinesLogger(path)

    now = Timestamp(epoch=1, batch=7, sample=28, total_wct=1.23456789)
    logger.log_metrics({**values, **others, **infinite}, now)
    logger.close()

    (line,) = lines(path)
    assert line == {
        **{"epoch": 1, "batch": 7, "sample": 28, "seconds": 1.234568},
        **{"a": 0.5, "b": 3, "c": 0.25, "d": 0.25},
        **{"loss": 0.5, "n": 3, "by": "a", "e": True, "f": None},
        **{"g": "Infinity", "h": "-Infinity", "i": "NaN", "j": "NaN"},
    }
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
def test_a_record_that_cannot_be_written_loses_no_other(path, bad, error):
    logger = JSONLinesLogger(path)

    with pytest.raises(error):
        write(logger, 0.0, torch.tensor(1.0), bad, torch.tensor(3.0))

    assert write(logger, 4.0) == [0.0, 1.0, 3.0, 4.0]


@pytest.mark.parametrize("name", ["epoch", "batch", "sample", "seconds"])
def test_rejects_a_metric_with_a_reserved_name(path, name):
    logger = JSONLinesLogger(path)

    with pytest.raises(ValueError, match=f"metric name '{name}' is reserved .*'metrics/{name}'"):
        logger.log_metrics({name: 1.0}, Timestamp())

    assert write(logger, 1.0) == [1.0]


def test_an_existing_file_is_replaced_only_on_request(path):
    path.write_text('{"loss": "old"}\n')
    trainer = make_trainer(loggers=[JSONLinesLogger(path)])

    with pytest.raises(FileExistsError, match=r"path='.*metrics.jsonl' exists; .*overwrite=True"):
        trainer.fit()
    with pytest.raises(FileExistsError, match="exists; pass another path, append=True"):
        write(JSONLinesLogger(path, flush_interval=1), 1.0)

    assert trainer.state.timestamp.batch == 0  # before any time is spent
    assert write(JSONLinesLogger(path, append=True), 1.0) == ["old", 1.0]
    assert write(JSONLinesLogger(path, overwrite=True), 2.0) == [2.0]


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"append": True}])
def test_a_logger_without_records_writes_nothing(path, options):
    path.write_text("old\n")

    for one in (path, path.parent / "new" / "metrics.jsonl"):
        logger = JSONLinesLogger(one, **options)
        logger.close()
        logger.close()

    assert path.read_text() == "old\n"
    assert not (path.parent / "new").exists()


def test_a_run_creates_the_folder(tmp_path):
    path = tmp_path / "runs" / "17" / "metrics.jsonl"

    make_trainer(loggers=[JSONLinesLogger(str(path))], log_interval="9ba").fit()

    assert path.read_text() == ""


def test_writes_lines_at_each_flush_interval(path):
    logger = JSONLinesLogger(path, flush_interval=3)
    written = []
    for batch in range(7):
        logger.log_metrics({"loss": float(batch)}, Timestamp(batch=batch))
        written.append(len(lines(path)) if path.exists() else 0)
    logger.close()

    assert written == [0, 0, 3, 3, 3, 6, 6]
    assert [line["batch"] for line in lines(path)] == list(range(7))


def test_a_loaded_state_truncates_the_file(path):
    logger = JSONLinesLogger(path)
    logger.log_metrics({"loss": 1}, Timestamp())
    then = logger.state_dict()
    logger.log_metrics({"loss": 2}, Timestamp())
    logger.flush()

    logger.load_state_dict(then)

    assert write(logger, 3) == [1, 3]
    with pytest.raises(
        ValueError, match=r"has .* bytes, but had 800 when the checkpoint was saved"
    ):
        logger.load_state_dict({"bytes": 800, "sha256": ""})
    logger.close()
