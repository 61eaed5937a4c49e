"""Logged metrics are kept in memory, and in checkpoints."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from composable import Timestamp, Trainer
from composable.checkpoint import pack, unpack
from composable.loggers import ConsoleLogger, InMemoryLogger
from tests.support.runs import make_trainer

VALUES = [
    0.5,
    math.inf,
    3,
    2**70,
    True,
    "warm",
    None,
    np.float32(0.25),
    np.int64(7),
    Fraction(1, 4),
]


def resumed(memory):
    """Return a logger with the state of another, as a checkpoint keeps it."""
    again = InMemoryLogger()
    again.load_state_dict(unpack(*pack(memory.state_dict())))
    return again


def test_every_metric_survives_a_checkpoint():
    memory = InMemoryLogger()
    stamp = Timestamp(epoch=1, batch=2, total_wct=0.1)
    for i, value in enumerate(VALUES):
        memory.log_metrics({"a": float(i), "b": value, f"c{i % 3}": torch.tensor(i)}, stamp)
        memory.log_metrics({"d": i > 5, "e": i if i % 2 else True}, stamp)

    again = resumed(memory)

    assert again.records == memory.records
    assert [type(one) for one in again.series("c0")] == [int] * 4
    for name in ("b", "d", "e"):
        expected = [bool if type(one) is bool else int for one in memory.series(name)]
        assert [bool if type(one) is bool else int for one in again.series(name)] == expected
    assert resumed(InMemoryLogger()).records == []


def test_records_logged_later_than_the_checkpoint_are_dropped():
    memory = InMemoryLogger()
    memory.log_metrics({"loss": 1.0}, Timestamp(batch=1))
    saved = memory.state_dict()
    memory.log_metrics({"loss": 0.5}, Timestamp(batch=2))

    memory.load_state_dict(saved)
    memory.log_metrics({"loss": 0.25}, Timestamp(batch=2))

    assert memory.series("loss") == [1.0, 0.25]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.clear(),
        lambda state: state.pop("metrics"),
        lambda state: state["timestamps"].pop("batch"),
        lambda state: state["timestamps"].update(batch=torch.ones(3, dtype=torch.int64)),
        lambda state: state["metrics"]["loss"].update(at=torch.tensor([5])),
        lambda state: state["metrics"]["loss"].update(values=[1.0, 2.0]),
        lambda state: state["metrics"].update(loss=3),
    ],
)
def test_state_of_something_else_is_an_error(change):
    memory = InMemoryLogger()
    memory.log_metrics({"loss": 1.0}, Timestamp(batch=1))
    state = memory.state_dict()
    change(state)

    with pytest.raises(ValueError, match="the state is not one of records"):
        memory.load_state_dict(state)
    assert memory.series("loss") == [1.0]


def test_the_history_of_a_trainer_is_its_logger_in_memory():
    memory = InMemoryLogger()
    assert make_trainer(loggers=[ConsoleLogger("99ep"), memory]).history is memory
    assert isinstance(make_trainer(loggers=InMemoryLogger).history, InMemoryLogger)


def test_trainer_without_a_history_says_how_to_keep_one():
    with pytest.raises(AttributeError, match=r"pass loggers=InMemoryLogger\(\) to the Trainer"):
        _ = make_trainer().history
    assert not hasattr(make_trainer(), "history")
    assert "history" in dir(Trainer)
