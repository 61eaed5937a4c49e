"""The recipes for images compose without warnings, train, and check their arguments."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable import Event, Trainer
from composable.algorithms import TTA, AlternatingFlip, LabelSmoothing, RandomTranslation
from composable.data import Indexed
from composable.optim import Muon
from composable.plan.ordering import topological_sort
from composable.recipes import small_resnet, speedrun_vision
from tests.support.observers import Watch


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 4)
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("recipe", "share"),
    [(small_resnet, 0.5), (speedrun_vision, 0.7)],  # the loss of smoothed labels is never 0
)
def test_the_recipe_trains_a_network_that_learns(recipe, share):
    labels = torch.arange(32) % 4
    images = torch.randn(32, 3, 8, 8) + 2 * labels[:, None, None, None]
    losses = Watch(Event.BATCH_END, read=lambda state: float(state.loss))
    trainer = Trainer(
        network(),
        train_dataloader=[(images, labels)],
        loss_fn=cross_entropy,
        max_duration="30ba",
        callbacks=losses,
        progress_bar=False,
        **recipe(lr=0.02).arguments(),
    )

    model = trainer.fit().model

    assert losses.values[-1] < share * losses.values[0]
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("error")
def test_alternating_flips_join_the_speedrun_before_its_translations():
    images = Indexed(TensorDataset(torch.randn(8, 3, 8, 8), torch.arange(8) % 4))
    recipe = speedrun_vision(flip=True).arguments()
    trainer = Trainer(
        network(),
        train_dataloader=DataLoader(images, batch_size=4),
        loss_fn=cross_entropy,
        max_duration="1ep",
        progress_bar=False,
        **{**recipe, "algorithms": [*recipe["algorithms"], AlternatingFlip()]},
    )

    assert trainer.fit().timestamp.batch == 2
    names = [one.name for one in topological_sort([RandomTranslation(), AlternatingFlip()])]
    assert names == ["AlternatingFlip", "RandomTranslation"]


def test_muon_has_the_rates_of_the_recipe():
    optimizer = small_resnet(lr=0.02, adamw_lr=0.004).optimizers(network())

    assert isinstance(optimizer, Muon)
    assert {group["lr"] for group in optimizer.param_groups} == {0.02, 0.004}


def test_parts_of_the_speedrun_have_its_arguments():
    recipe = speedrun_vision(smoothing=0.1, max_shift=4, flip=True, lr=0.02)

    assert recipe.algorithms[1:] == (LabelSmoothing(0.1), RandomTranslation(4), TTA(flip=True))
    assert recipe.optimizers(network()).param_groups[0]["lr"] == 0.02
