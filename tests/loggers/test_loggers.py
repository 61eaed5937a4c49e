"""Loggers on the screen and in memory show the metrics of a run."""

import io
import json
import math
import re

import numpy
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from composable import Logger, Timestamp
from composable.loggers import (
    ConsoleLogger,
    InMemoryLogger,
    JSONLinesLogger,
    ProgressBarLogger,
)
from composable.loggers._histograms import Histogram
from composable.loggers._images import png, to_pixels
from composable.metrics import accuracy
from tests.support.data import batches, stream
from tests.support.runs import make_trainer

EVALUATED = {"eval_dataloader": batches([4]), "metrics": {"accuracy": accuracy}}


@pytest.fixture
def out():
    return io.StringIO()


def console(out, interval="1ep"):
    return ConsoleLogger(interval, stream=out)


def bar(out, refresh_seconds=0):
    return ProgressBarLogger(style="bar", stream=out, refresh_seconds=refresh_seconds)


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


def test_bar_of_a_second_fit_starts_at_the_end_of_the_first(out):
    one = ProgressBarLogger(bars=["train"], style="bar", stream=out, refresh_seconds=0)
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


def test_progress_is_shown_by_default(capsys):
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


# --- everything that is not a metric


def log_everything(logger):
    """Log one of each kind, at batch 3."""
    now = Timestamp(epoch=1, batch=3)
    logger.log_images({"faces": torch.tensor([[[[0.0, 0.5], [1.0, 2.0]]]])}, now)
    logger.log_histograms({"weights": torch.tensor([0.0, 0.5, 1.0, torch.inf])}, now)
    logger.log_text({"story": "a first try"}, now)
    logger.log_table("errors", ["label", "count"], [["cat", 2], ["dog", 0.123456]], now)
    logger.log_figure("plot", drawn(), now)


def drawn():
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([1, 2])
    return figure


def test_memory_keeps_copies_of_everything():
    logger = InMemoryLogger()
    image = torch.zeros(1, 1, 1)
    logger.log_images({"faces": image}, Timestamp())
    image += 1
    assert logger.images == [(Timestamp(), {"faces": torch.zeros(1, 1, 1)})]

    log_everything(logger)
    logger.log_artifact("model", "model.pt")

    (when, found), *_ = logger.histograms
    assert when == Timestamp(epoch=1, batch=3)
    assert sum(found["weights"].counts) == 3
    assert found["weights"].num_nonfinite == 1
    assert logger.texts == [(when, {"story": "a first try"})]
    rows = [{"label": "cat", "count": 2}, {"label": "dog", "count": 0.123456}]
    assert logger.tables == [(when, {"errors": rows})]
    assert isinstance(logger.figures[0][1]["plot"], Figure)
    assert logger.artifacts == {"model": "model.pt"}


@pytest.mark.filterwarnings("ignore::composable.core.logger.UnsupportedLogWarning")
def test_console_prints_texts_and_tables(out):
    log_everything(Logger([console(out)]))

    assert out.getvalue().splitlines() == [
        *("[epoch 1, batch 3]  story:", "a first try", "[epoch 1, batch 3]  errors:"),
        *("label  count", "-----  ------", "cat    2", "dog    0.1235"),
    ]


def test_a_bar_drops_all_but_metrics_silently(out):
    log_everything(Logger([bar(out)]))

    assert out.getvalue() == ""


def test_lines_have_texts_and_objects_and_the_names_of_pictures(tmp_path):
    logger = JSONLinesLogger(tmp_path / "metrics.jsonl")
    log_everything(logger)
    logger.close()

    lines = [json.loads(line) for line in logger.path.read_text().splitlines()]
    faces, weights, story, errors, plot = lines
    assert {line["batch"] for line in lines} == {3}
    assert story["story"] == "a first try"
    table = {"columns": ["label", "count"], "rows": [["cat", 2], ["dog", 0.123456]]}
    assert errors["errors"] == table
    assert len(weights["weights"]["edges"]) == 65
    assert sum(weights["weights"]["counts"]) == 3
    (name,) = faces["faces"]["images"]
    with Image.open(tmp_path / name) as picture:
        assert picture.tobytes() == bytes([0, 128, 255, 255])
    with Image.open(tmp_path / plot["plot"]["figure"]) as picture:
        assert picture.size == (100, 100)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64])
def test_a_png_has_the_pixels_of_the_image(channels, dtype):
    values = torch.arange(channels * 6).reshape(channels, 2, 3)
    image = values.byte() if dtype is torch.uint8 else (values / 255).to(dtype)

    pixels = to_pixels(image)[0]
    read = Image.open(io.BytesIO(png(pixels)))

    assert read.size == (3, 2)
    assert torch.equal(torch.from_numpy(numpy.array(read)).reshape(2, 3, channels), pixels)
    assert torch.equal(pixels, values.byte().permute(1, 2, 0))


@pytest.mark.parametrize(
    ("values", "counts", "edges"),
    [
        (torch.tensor([0.0, 0.4, 0.5, 1.0]), (2, 2), (0.0, 0.5, 1.0)),
        (torch.tensor([3, 3]), (0, 2), (2.5, 3.0, 3.5)),
        (torch.tensor([True, False, True]), (1, 2), (0.0, 0.5, 1.0)),
        (torch.tensor([1.0, 2.0], dtype=torch.float16), (1, 1), (1.0, 1.5, 2.0)),
        (torch.tensor([torch.nan, -torch.inf]), (), ()),
        (torch.tensor([]), (), ()),
    ],
)
def test_a_histogram_counts_finite_values_in_equal_bins(values, counts, edges):
    found = Histogram.of(values, num_bins=2)

    assert found.counts == counts
    assert found.edges == edges
    assert found.num_values + found.num_nonfinite == values.numel()
    assert found.total == pytest.approx(values[values.isfinite()].double().sum())
