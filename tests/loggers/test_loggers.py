"""Loggers keep and show metrics, and pictures, histograms, texts and tables."""

import io
import json

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
def test_console_prints_texts_and_tables():
    out = io.StringIO()
    log_everything(Logger([ConsoleLogger(stream=out)]))

    assert out.getvalue().splitlines() == [
        *("[epoch 1, batch 3]  story:", "a first try", "[epoch 1, batch 3]  errors:"),
        *("label  count", "-----  ------", "cat    2", "dog    0.1235"),
    ]


def test_a_bar_drops_all_but_metrics_silently():
    out = io.StringIO()
    log_everything(Logger([ProgressBarLogger(style="bar", stream=out, refresh_seconds=0)]))

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
