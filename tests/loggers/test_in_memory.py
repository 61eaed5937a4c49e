"""Metrics kept in memory."""

import torch

from composable import Timestamp
from composable.loggers import InMemoryLogger
from tests.support.tiny import batches, make_trainer


def at(batch):
    return Timestamp(batch=batch)


def test_every_record_is_kept_with_its_time():
    logger = InMemoryLogger()
    logger.log_metrics({"loss": torch.tensor(0.5), "lr": 0.1}, at(1))
    logger.log_metrics({"loss": 0.25}, at(2))

    assert logger.records == [(at(1), {"loss": 0.5, "lr": 0.1}), (at(2), {"loss": 0.25})]
    assert logger.series("loss") == [0.5, 0.25]
    assert logger.series("lr") == [0.1]
    assert logger.series("missing") == []
    assert logger.latest == {"loss": 0.25, "lr": 0.1}


def test_it_can_be_read_while_it_is_written():
    logger = InMemoryLogger()
    for batch in range(3):
        logger.log_metrics({"loss": torch.tensor(float(batch))}, at(batch))
        assert logger.series("loss") == [float(b) for b in range(batch + 1)]


def test_what_is_read_is_not_what_is_kept():
    logger = InMemoryLogger()
    logger.log_metrics({"loss": 0.5}, at(1))

    logger.records.clear()

    assert len(logger.records) == 1


def test_tensors_become_numbers_after_a_while():
    logger = InMemoryLogger()
    for batch in range(2500):
        logger.log_metrics({"loss": torch.tensor(float(batch))}, at(batch))

    assert len(logger._pending) < 1000
    assert logger.series("loss") == [float(batch) for batch in range(2500)]


def test_a_run_leaves_its_metrics_and_hyperparameters():
    logger = InMemoryLogger()
    make_trainer(loggers=[logger], eval_dataloader=batches([4])).fit()

    assert logger.latest.keys() == {"loss/train", "lr", "metrics/eval/loss"}
    assert len(logger.series("metrics/eval/loss")) == 2
    assert logger.hyperparameters["seed"] == 17
