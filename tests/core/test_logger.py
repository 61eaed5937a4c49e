"""Metrics become numbers when they are written, and not before."""

import math
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from composable import Logger, LoggerDestination, Timestamp
from composable.core.logger import UnsupportedLogWarning, to_numbers
from composable.loggers import InMemoryLogger


def test_many_records_are_read_in_order_and_the_given_ones_stay():
    given = [{"loss": torch.tensor(float(i))} for i in range(5)]

    records = to_numbers(given)

    assert [record["loss"] for record in records] == [0, 1, 2, 3, 4]
    assert isinstance(given[0]["loss"], torch.Tensor)
    assert to_numbers([]) == []


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (torch.tensor(0.5), 0.5),
        (torch.tensor(0.1), torch.tensor(0.1).item()),  # exactly
        (torch.tensor([[0.25]]), 0.25),
        (torch.tensor(0.125, dtype=torch.bfloat16), 0.125),
        (torch.tensor(2**40 + 1), 2**40 + 1),
        (torch.tensor(True), 1),
        (torch.tensor(-math.inf), -math.inf),
        (torch.tensor(1.0, requires_grad=True) * 2, 2.0),
        (3, 3),
        ("a", "a"),
        (None, None),
    ],
)
def test_tensors_become_numbers_of_their_kind(value, number):
    (record,) = to_numbers([{"nan": torch.tensor(math.nan), "x": value}])

    assert record["x"] == number
    assert type(record["x"]) in (type(number), bool)
    assert math.isnan(record["nan"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2), "has 2 elements .*: log its mean, or each"),
        (torch.tensor(1 + 2j), r"is complex, of torch\.complex64"),
        *((value, "is .*; it must be a number") for value in ([1], {"a": 1}, object())),
    ],
)
def test_rejects_what_is_not_a_number(value, message):
    with pytest.raises(ValueError, match=rf"metric 'x' {message}"):
        to_numbers([{"x": value}])


def test_a_logger_hands_metrics_to_every_destination():
    first, second = InMemoryLogger(), InMemoryLogger()
    logger = Logger([first, second])

    logger.timestamp = Timestamp(batch=5)
    logger.log_metrics({"b": 2})
    logger.log_metrics({"a": 1}, Timestamp(batch=2))
    logger.log_hyperparameters({"lr": 0.1})

    for destination in (first, second):
        assert destination.records == [
            (Timestamp(batch=5), {"b": 2}),
            (Timestamp(batch=2), {"a": 1}),
        ]
        assert destination.hyperparameters == {"lr": 0.1}


PICTURE = torch.zeros(1, 2, 2)
CALLS = {
    "log_images": ({"x": PICTURE},),
    "log_histograms": ({"x": torch.ones(3)},),
    "log_text": ({"x": "words"},),
    "log_table": ("x", ["a", "b"], [[1, 2]]),
    "log_figure": ("x", Figure()),
    "log_artifact": ("x", Path("model.pt")),
}


class Everything(LoggerDestination):
    """Records every call."""

    def __init__(self):
        self.calls = []


for _method in CALLS:
    setattr(
        Everything,
        _method,
        lambda self, *given, _method=_method: self.calls.append((_method, *given)),
    )


@pytest.mark.parametrize("method", CALLS)
def test_everything_reaches_each_destination_with_the_time_of_the_event(method):
    first, second = Everything(), Everything()
    logger = Logger([first, second])
    logger.timestamp = Timestamp(batch=3)

    getattr(logger, method)(*CALLS[method])

    end = ("x", "model.pt") if method == "log_artifact" else (*CALLS[method], Timestamp(batch=3))
    assert first.calls == second.calls == [(method, *end)]


@pytest.mark.parametrize("method", CALLS)
def test_a_destination_that_does_not_support_a_kind_is_named_once(method):
    class Metrics(LoggerDestination):
        """Records metrics only."""

    class Plain:
        """Not a subclass of the library's."""

    everything = Everything()
    logger = Logger([Metrics(), Plain(), Metrics(), everything])

    def log():
        getattr(logger, method)(*CALLS[method])

    with pytest.warns(UnsupportedLogWarning) as caught:
        log()
    log()  # warnings are errors here
    log()

    assert [str(one.message).partition(",")[0] for one in caught] == [
        f"Metrics does not support {method}",
        f"Plain does not support {method}",
    ]
    assert len(everything.calls) == 3


INVALID = [
    ("log_images", ({"x": [1]},), TypeError, "must be a tensor of torch.uint8 .* not list"),
    ("log_images", ({"x": PICTURE.int()},), TypeError, "not one of torch.int32"),
    ("log_images", ({"x": torch.zeros(5, 2, 2)},), ValueError, r"\(5, 2, 2\) .* 1, 3 or 4"),
    ("log_images", ({"x": torch.zeros(2, 2)},), ValueError, r"\(2, 2\) and must have \[C, H, W\]"),
    ("log_histograms", ({"x": 1.0},), TypeError, "real tensor, not float"),
    ("log_histograms", ({"x": torch.zeros(2) * 1j},), TypeError, "not one of torch.complex64"),
    ("log_text", ({"x": 1},), TypeError, "must be a string"),
    ("log_table", ("x", ["a"], [[1], [1, 2]]), ValueError, r"rows\[1\] .* has 2 values"),
    ("log_figure", ("x", None), TypeError, "must be a matplotlib.figure.Figure, not NoneType"),
    ("log_artifact", ("x", None), TypeError, "PathLike"),
]


@pytest.mark.parametrize(("method", "values", "error", "message"), INVALID)
def test_rejects_invalid_values_unless_nothing_is_logged(method, values, error, message):
    with pytest.raises(error, match=message):
        getattr(Logger([Everything()]), method)(*values)

    getattr(Logger(), method)(*values)


def test_an_error_names_the_destination():
    class Broken(Everything):
        def log_text(self, *values):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full") as caught:
        Logger([Broken()]).log_text({"x": "words"})

    assert "raised by Broken at log_text" in str([*caught.value.__notes__])
