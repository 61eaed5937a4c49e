"""The recipe for residual networks composes without warnings, trains, and checks its arguments."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Trainer
from composable.optim import Muon
from composable.recipes import small_resnet


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 4)
    )


@pytest.mark.filterwarnings("error")
def test_the_recipe_trains_a_network_that_learns():
    images, labels = torch.randn(32, 3, 8, 8), torch.arange(32) % 4
    losses = []
    trainer = Trainer(
        network(),
        train_dataloader=[(images, labels)],
        loss_fn=cross_entropy,
        max_duration="30ba",
        callbacks=lambda event, state, logger: (
            losses.append(float(state.loss)) if event.value == "batch_end" else None
        ),
        progress_bar=False,
        **small_resnet(lr=0.02).arguments(),
    )

    model = trainer.fit().model

    assert losses[-1] < 0.5 * losses[0]
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_muon_has_the_rates_of_the_recipe():
    optimizer = small_resnet(lr=0.02, adamw_lr=0.004).optimizers(network())

    assert isinstance(optimizer, Muon)
    assert {group["lr"] for group in optimizer.param_groups} == {0.02, 0.004}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"lr": -1.0}, "lr"), ({"momentum": 1.0}, "momentum"), ({"warmup": "soon"}, "soon")],
)
def test_arguments_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        small_resnet(**wrong)
