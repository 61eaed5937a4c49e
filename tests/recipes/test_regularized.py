"""The recipe of strong regularization trains models of several kinds, and checks its arguments."""

import pytest
import torch
from torch import nn

from composable.algorithms import Dropout, StochasticDepth
from composable.optim import linear
from composable.recipes import strong_regularization
from tests.support.data import batches
from tests.support.hub_models import HEADS
from tests.support.runs import make_trainer


class Block(nn.Module):
    """A residual block of a user's own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.Dropout(0.0))

    def forward(self, x):
        return x + self.inner(x)


def trained(model, loader, recipe, **options):
    trainer = make_trainer(model, loader, **{**recipe.arguments(), **options})
    trainer.fit()
    return trainer


@pytest.mark.filterwarnings("error")
def test_the_rates_grow_with_depth_and_norms_and_biases_do_not_decay():
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 3))

    trainer = trained(model, batches(12), strong_regularization(blocks=Block, layer_drop=0.5))

    one, two, _ = trainer.state.model
    assert [one.dropping.rate, two.dropping.rate] == [0.25, 0.5]
    assert [one.inner[2].p, two.inner[2].p] == [0.1, 0.1]
    (optimizer,) = trainer.state.optimizers
    decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decays.pop("norms_and_biases") == 0
    assert set(decays.values()) == {1.0}


def test_a_model_of_transformers_needs_no_blocks():
    loader = [HEADS["causal"].batch([2, 6, 3, 5])]

    model = trained(
        HEADS["causal"].build(), loader, strong_regularization(), loss_fn=None
    ).state.model

    assert model.transformer.h[0].dropping.rate == 0.05
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.1}


def test_each_part_can_be_left_out():
    assert strong_regularization(layer_drop=0).algorithms == (Dropout(0.1),)
    assert strong_regularization(dropout=0).algorithms == (StochasticDepth(drop_rate=0.05),)
    assert strong_regularization(warmup="1ep").schedulers == linear(warmup="1ep")


def test_decay_shrinks_weights_by_the_product_with_the_rate():
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    optimizer = strong_regularization(lr=0.1, weight_decay=2.0).optimizers(model)
    model.weight.grad, model.bias.grad = torch.zeros(3, 4), torch.zeros(3)

    optimizer.step()

    torch.testing.assert_close(model.weight.detach(), before * 0.8)
