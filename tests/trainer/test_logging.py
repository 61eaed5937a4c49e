"""What a run logs: the loss, the learning rates, and what it was started with."""

import torch

from composable.algorithms import EMA
from composable.loggers import InMemoryLogger
from tests.support.models import linear
from tests.support.runs import make_trainer


def test_learning_rates_of_all_optimizers_and_groups_are_logged():
    memory, model = InMemoryLogger(), linear()
    optimizers = [
        torch.optim.SGD([{"params": [model.weight], "lr": 0.1}], lr=0.5),
        torch.optim.SGD([model.bias], lr=0.2),
    ]
    optimizers[0].add_param_group({"params": [], "lr": 0.3})

    make_trainer(model, optimizers=optimizers, loggers=[memory], max_duration="1ba").fit()

    _, metrics = memory.records[0]
    del metrics["loss/train"]
    assert metrics == {"lr": 0.1, "lr/group1": 0.3, "lr/optimizer1": 0.2}


def test_every_fit_logs_its_hyperparameters():
    memory = InMemoryLogger()
    trainer = make_trainer(loggers=[memory], algorithms=[EMA("10ba")], schedulers=lambda c: 1.0)
    trainer.fit()

    given = memory.hyperparameters
    assert given["seed"] == 17
    assert given["max_duration"] == "2ep"
    assert given["optimizers"] == ["SGD"]
    assert given["algorithms"]["EMA"].startswith("EMA(half_life=Time('10ba')")
    assert given["torch"] == torch.__version__

    trainer.fit(duration="1ep")
    assert memory.hyperparameters["max_duration"] == "3ep"


def test_seed_is_drawn_and_logged_if_none_is_given():
    memory = InMemoryLogger()
    trainer = make_trainer(seed=None, loggers=[memory])
    trainer.fit()

    assert memory.hyperparameters["seed"] == trainer.state.key.seed
    assert trainer.state.key != make_trainer(seed=None).state.key
    assert [make_trainer(seed=n).state.key.seed for n in (0, 2**64 - 1)] == [0, 2**64 - 1]
