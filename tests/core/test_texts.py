"""The texts that a Trainer and a logger are shown by."""

from composable.algorithms import EMA
from composable.loggers import InMemoryLogger
from tests.support.runs import make_trainer


def test_texts():
    memory = InMemoryLogger()
    trainer = make_trainer(algorithms=EMA("1ba"), loggers=memory)
    assert repr(memory) == "<InMemoryLogger: 0 records of nothing>"
    trainer.fit()

    assert repr(trainer) == (
        "<Trainer of Linear: epoch 2, batch 6, max_duration 2ep, algorithms [EMA]>"
    )
    assert repr(memory) == "<InMemoryLogger: 6 records of loss/train, lr>"
