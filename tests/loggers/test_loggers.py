"""Loggers on the screen and in memory show the metrics of a run."""

import io
import math
import re

import pytest
import torch

from composable import Timestamp
from composable.loggers import ConsoleLogger, InMemoryLogger, ProgressBarLogger
from composable.metrics import accuracy
from composable.testing import NoSync
from tests.support.data import batches, stream
from tests.support.runs import as_on_a_gpu, make_trainer

EVALUATED = {"eval_dataloader": batches([4]), "metrics": {"accuracy": accuracy}}


@pytest.fixture
def out():
    return io.StringIO()


def console(out, interval="1ep"):
    return ConsoleLogger(interval, stream=out)


def bar(out, refresh_seconds=0):
    return ProgressBarLogger(stream=out, refresh_seconds=refresh_seconds)


def shown(logger, out, **changes):
    """Return the text that a logger shows of a run."""
    make_trainer(loggers=[logger], **changes).fit()
    return out.getvalue()


# --- on the console


@pytest.mark.parametrize(
    ("interval", "starts"),
    [
        ("1ep", ["[epoch 0, batch 3]", "[epoch 1, batch 6]"]),
        ("2ba", ["[epoch 0, batch 2]", "[epoch 1, batch 4]", "[epoch 1, batch 6]"]),
        ("0.5dur", ["[epoch 0, batch 3]", "[epoch 1, batch 6]"]),
        (2, ["[epoch 1, batch 6]"]),
    ],
)
def test_console_prints_the_latest_metrics_at_each_interval(out, interval, starts):
    lines = shown(console(out, interval), out).splitlines()

    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts
    assert all("  loss/train " in line and "  lr 0.1" in line for line in lines)


def test_console_prints_every_evaluation(out):
    logger = console(out, "2ep")
    make_trainer(loggers=[logger]).eval(batches([4]))
    assert out.getvalue().startswith("[epoch 0, batch 0]  metrics/eval/loss ")

    lines = shown(logger, out, **EVALUATED).splitlines()
    found = [line.split("]")[0] for line in lines if "metrics/eval/accuracy" in line]
    assert found == ["[epoch 1, batch 3", "[epoch 2, batch 6"]


def test_console_prints_numbers_with_four_digits(out):
    def log(event, state, logger):
        if event.value == "batch_end":
            logger.log_metrics({"pi": math.pi, "n": 123456, "nan": math.nan, "text": "a"})

    text = shown(console(out, "1ba"), out, max_duration="1ba", callbacks=[log])

    assert "pi 3.142  n 123456  nan nan  text a" in text


def test_console_prints_to_standard_error_by_default(capsys):
    make_trainer(loggers=[ConsoleLogger()]).fit()

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2


def test_a_loader_without_a_length_has_epochs(out):
    assert len(shown(console(out), out, train_dataloader=stream(12)).splitlines()) == 2
    assert "2/2 ep" in shown(bar(out), out, train_dataloader=stream(12))


@pytest.mark.parametrize(
    ("interval", "error", "message"),
    [
        *((x, ValueError, "must be in epochs, batches or frac") for x in ("10sp", "3sec", "9tok")),
        ("often", ValueError, "invalid time 'often'"),
        (1.5, TypeError, r"got 1\.5"),
    ],
)
def test_console_rejects_an_invalid_interval(interval, error, message):
    with pytest.raises(error, match=f"log_interval={interval!r}.* {message}"):
        ConsoleLogger(interval)


# --- as a bar


def test_bar_shows_progress_remaining_time_loss_and_evaluation(out):
    frames = shown(bar(out), out, **EVALUATED).rstrip().split("\r")

    assert re.search(r"100%\|.*\| 6/6 ba \[\d\d:\d\d<\d\d:\d\d", frames[-1])
    for name in ("loss/train", "eval/loss", "eval/accuracy"):
        assert re.search(rf"{name}=[\d.]+", frames[-1])
    assert {f"{i}/6 ba" for i in range(7)} <= set(re.findall(r"\d/6 ba", out.getvalue()))


@pytest.mark.parametrize(
    ("max_duration", "end"), [("2ep", "6/6 ba"), ("4ba", "4/4 ba"), ("24sp", "24/24 sp")]
)
def test_bar_counts_in_the_unit_of_the_run(out, max_duration, end):
    assert end in shown(bar(out), out, max_duration=max_duration)


def test_bar_is_drawn_at_the_start_and_at_the_end_of_a_short_run(out):
    frames = re.findall(r"\d/6 ba", shown(bar(out, 1000), out))

    assert (frames[0], frames[-1]) == ("0/6 ba", "6/6 ba")
    assert len(frames) <= 3


def test_bar_reads_numbers_only_to_draw_them(out):
    def interrupt_before_the_last_drawing(event, state, logger):
        if event.value == "batch_end" and state.timestamp.batch == 5:
            raise KeyboardInterrupt

    trainer = make_trainer(loggers=[bar(out, 1000)], callbacks=[interrupt_before_the_last_drawing])
    with NoSync(), pytest.raises(KeyboardInterrupt):
        as_on_a_gpu(trainer).fit()


def test_bar_of_a_second_fit_starts_at_the_end_of_the_first(out):
    one = bar(out)
    trainer = make_trainer(loggers=[one], max_duration="1ep", **EVALUATED)
    trainer.fit()
    trainer.fit(duration="2ba")

    first, second = out.getvalue().rstrip("\n").split("\n")
    assert "3/3 ba" in first
    assert "eval/loss" in first
    assert "3/5 ba" in second
    assert "5/5 ba" in second
    assert not any("eval/loss" in frame for frame in second.split("\r") if "4/5" in frame)
    assert one.state_dict() == {}  # the state of the run suffices to resume it

    added, late = io.StringIO(), make_trainer(max_duration=None)
    late.fit(duration="4ba")
    late.add_callback(bar(added))
    late.fit(duration="2ba")
    assert "4/6 ba" in added.getvalue()
    assert "3/6 ba" not in added.getvalue()


def test_bar_is_on_by_default_and_only_in_fit(capsys):
    trainer = make_trainer(progress_bar=True)
    trainer.eval(batches([4]))
    trainer.predict(batches([4]))
    make_trainer(progress_bar=False).fit()
    assert capsys.readouterr() == ("", "")

    trainer.fit()
    assert "6/6 ba" in capsys.readouterr().err


def test_bar_shows_a_loss_that_is_not_a_number(out):
    def poison(event, state):
        if event.value == "after_loss":
            return state.evolve(loss=state.loss * torch.nan)
        return state

    assert "loss/train=nan" in shown(bar(out), out, algorithms=[poison], nonfinite_loss="ignore")


# --- in memory


def test_memory_keeps_every_record_with_its_time():
    logger = InMemoryLogger()
    logger.log_metrics({"loss": torch.tensor(0.5), "lr": 0.1}, Timestamp(batch=1))
    assert logger.series("loss") == [0.5]
    logger.log_metrics({"loss": 0.25}, Timestamp(batch=2))
    logger.records.clear()  # a copy

    assert logger.records == [
        (Timestamp(batch=1), {"loss": 0.5, "lr": 0.1}),
        (Timestamp(batch=2), {"loss": 0.25}),
    ]
    assert logger.series("loss") == [0.5, 0.25]
    assert logger.series("lr") == [0.1]
    assert logger.series("missing") == []
    assert logger.latest == {"loss": 0.25, "lr": 0.1}


def test_memory_converts_tensors_in_batches():
    logger = InMemoryLogger()
    for batch in range(2500):
        logger.log_metrics({"loss": torch.tensor(float(batch))}, Timestamp(batch=batch))

    assert len(logger._pending) < 1000
    assert logger.series("loss") == [float(batch) for batch in range(2500)]
