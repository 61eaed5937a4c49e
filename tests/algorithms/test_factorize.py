"""Factorization in the loop does what the function does, once, before other surgeries."""

import torch
from torch import nn

from composable.algorithms import Factorize
from composable.functional import FactorizedLayer, factorize
from tests.support.runs import make_trainer
from tests.support.surgery import convolutional, images

OPTIONS = {"min_channels": 4, "latent_channels": 2, "min_features": 3, "latent_features": 1}


def test_defaults_match_those_of_the_function():
    wide = nn.Sequential(nn.Linear(512, 512), nn.Conv1d(512, 512, 3), nn.Linear(511, 512))
    trainer = make_trainer(wide, algorithms=[Factorize()])

    assert repr(trainer.state.model) == repr(factorize(wide))


def test_optimizer_keeps_the_options_of_the_layer():
    model = convolutional()
    groups = [
        {"params": [*model[4].parameters()], "lr": 0.3},
        {"params": [p for i in (0, 1, 6, 7) for p in model[i].parameters()]},
    ]
    trainer = make_trainer(
        model,
        algorithms=[Factorize(**OPTIONS)],
        train_dataloader=images(),
        optimizers=torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    )
    before = [p.detach().clone() for p in trainer.state.model[4].parameters()]
    held = {
        id(p): group["lr"]
        for group in trainer.state.optimizers[0].param_groups
        for p in group["params"]
    }

    after = trainer.fit().model

    assert isinstance(after[4], FactorizedLayer)
    assert {held[id(p)] for p in after[4].parameters()} == {0.3}
    assert {held[id(p)] for p in after[7].parameters()} == {0.1}
    assert not any(map(torch.equal, before, after[4].parameters()))
