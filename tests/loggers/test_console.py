"""Metrics as lines on the screen."""

import io
import math

import pytest

from composable.loggers import ConsoleLogger
from composable.metrics import accuracy
from tests.support.tiny import batches, make_trainer


def printed(interval="1ep", **changes):
    stream = io.StringIO()
    make_trainer(loggers=[ConsoleLogger(interval, stream=stream)], **changes).fit()
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("interval", "starts"),
    [
        ("1ep", ["[epoch 0, batch 3]", "[epoch 1, batch 6]"]),
        ("2ba", ["[epoch 0, batch 2]", "[epoch 1, batch 4]", "[epoch 1, batch 6]"]),
        ("0.5dur", ["[epoch 0, batch 3]", "[epoch 1, batch 6]"]),
        (2, ["[epoch 1, batch 6]"]),
    ],
)
def test_the_latest_metrics_are_printed_each_interval(interval, starts):
    lines = printed(interval)

    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts
    assert all("  loss/train " in line and "  lr 0.1" in line for line in lines)


def test_every_evaluation_is_printed():
    lines = printed("2ep", eval_dataloader=batches([4]), metrics={"accuracy": accuracy})

    assert [line.split("]")[0] for line in lines if "metrics/eval/accuracy" in line] == [
        "[epoch 1, batch 3",
        "[epoch 2, batch 6",
    ]


def test_a_direct_evaluation_is_printed():
    stream = io.StringIO()
    make_trainer(loggers=[ConsoleLogger(stream=stream)]).eval(batches([4]))

    assert stream.getvalue().startswith("[epoch 0, batch 0]  metrics/eval/loss ")


def test_numbers_are_short():
    stream = io.StringIO()

    def log(event, state, logger):
        if event.value == "batch_end":
            logger.log_metrics({"pi": math.pi, "n": 123456, "nan": math.nan, "text": "a"})

    make_trainer(
        max_duration="1ba", loggers=[ConsoleLogger("1ba", stream=stream)], callbacks=[log]
    ).fit()

    assert "pi 3.142  n 123456  nan nan  text a" in stream.getvalue()


def test_it_prints_to_standard_error_by_default(capsys):
    make_trainer(loggers=[ConsoleLogger()]).fit()

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2


@pytest.mark.parametrize("interval", ["10sp", "30sec", "1000tok"])
def test_an_interval_it_can_not_follow_is_refused(interval):
    with pytest.raises(ValueError, match=r"log_interval='.*' must be in epochs, batches or fract"):
        ConsoleLogger(interval)


def test_an_unreadable_interval_is_refused():
    with pytest.raises(ValueError, match="log_interval='often': invalid time 'often'"):
        ConsoleLogger("often")
    with pytest.raises(TypeError, match=r"log_interval=1\.5: .* got 1\.5"):
        ConsoleLogger(1.5)


def test_a_loader_without_a_length_has_epochs_too():
    class Stream:
        def __iter__(self):
            return iter(batches())

    assert len(printed("1ep", train_dataloader=Stream())) == 2
