"""Metrics become numbers when they are written, and not before."""

import math

import pytest
import torch

from composable import Logger, Timestamp
from composable.core.logger import to_numbers
from composable.loggers import InMemoryLogger


def test_tensors_become_numbers_of_their_kind():
    (record,) = to_numbers(
        [
            {
                "float": torch.tensor(0.5),
                "row": torch.tensor([[0.25]]),
                "half": torch.tensor(0.125, dtype=torch.bfloat16),
                "int": torch.tensor(2**40 + 1),
                "bool": torch.tensor(True),
                "number": 3,
                "text": "a",
                "none": None,
            }
        ]
    )

    assert record == {
        "float": 0.5,
        "row": 0.25,
        "half": 0.125,
        "int": 2**40 + 1,
        "bool": 1,
        "number": 3,
        "text": "a",
        "none": None,
    }
    assert type(record["int"]) is int
    assert type(record["float"]) is float


def test_a_float32_is_read_exactly():
    (record,) = to_numbers([{"loss": torch.tensor(0.1)}])

    assert record["loss"] == torch.tensor(0.1).item()


def test_what_is_not_finite_is_read_too():
    (record,) = to_numbers([{"nan": torch.tensor(math.nan), "inf": torch.tensor(-math.inf)}])

    assert math.isnan(record["nan"])
    assert record["inf"] == -math.inf


def test_many_records_are_read_in_order_and_the_given_ones_stay():
    given = [{"loss": torch.tensor(float(i))} for i in range(5)]

    records = to_numbers(given)

    assert [record["loss"] for record in records] == [0, 1, 2, 3, 4]
    assert isinstance(given[0]["loss"], torch.Tensor)
    assert to_numbers([]) == []


def test_a_tensor_with_a_gradient_can_be_logged():
    loss = torch.tensor(1.0, requires_grad=True) * 2

    assert to_numbers([{"loss": loss}]) == [{"loss": 2.0}]


def test_a_tensor_of_several_elements_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"metric 'grad' has 2 elements .*: log its mean, or each"):
        to_numbers([{"grad": torch.zeros(2)}])


@pytest.mark.parametrize("value", [[1], {"a": 1}, object()])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match=r"metric 'x' is .*; it must be a number"):
        to_numbers([{"x": value}])


def test_a_logger_hands_metrics_to_every_destination():
    first, second = InMemoryLogger(), InMemoryLogger()
    logger = Logger([first, second])

    logger.log_metrics({"a": 1}, Timestamp(batch=2))
    logger.log_hyperparameters({"lr": 0.1})

    for destination in (first, second):
        assert destination.records == [(Timestamp(batch=2), {"a": 1})]
        assert destination.hyperparameters == {"lr": 0.1}


def test_a_metric_has_the_time_of_the_event_by_default():
    memory = InMemoryLogger()
    logger = Logger([memory])
    logger.timestamp = Timestamp(batch=5)

    logger.log_metrics({"a": 1})

    assert memory.records[0][0].batch == 5
