"""Metrics become numbers when they are written, and not before."""

import math

import pytest
import torch

from composable import Logger, Timestamp
from composable.core.logger import to_numbers
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
