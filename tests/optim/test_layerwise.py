"""Learning rates by layer."""

import pytest
import torch
from torch import nn

from composable.optim import layerwise_groups
from tests.support.models import language_model, mlp
from tests.support.runs import VISION


class Encoder(nn.Module):
    """An encoder in the layout of transformer libraries."""

    def __init__(self):
        super().__init__()
        self.first_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.patches = nn.Linear(3, 4)
        self.body = nn.Module()
        self.body.places = nn.Parameter(torch.zeros(1, 5, 4))
        self.body.blocks = nn.ModuleList(
            nn.ModuleDict({"mix": nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))}) for _ in "ab"
        )
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)


def names_of(model, **options):
    names = {id(p): name for name, p in model.named_parameters()}
    groups = layerwise_groups(model, 1.0, **options)
    assert sorted(id(p) for g in groups for p in g["params"]) == sorted(names)
    return [[names[id(p)] for p in group["params"]] for group in groups]


@pytest.mark.parametrize(
    ("build", "modules"),
    [
        (mlp, [{"0"}, {"3"}]),
        (VISION.model, [{"0", "1", "5.1"}, {"6"}]),
        (
            Encoder,
            [
                {"first_token", "patches", "body.places"},
                {"body.blocks.0.mix.0", "body.blocks.0.mix.1"},
                {"body.blocks.1.mix.0", "body.blocks.1.mix.1", "norm"},
                {"head"},
            ],
        ),
        (
            language_model,
            [
                {"words"}, {"places", "attention_norm"}, {"attention", "hidden_norm"},
                {"hidden1.0"}, {"hidden1.2"}, {"hidden2.0"}, {"hidden2.2"}, {"score"},
            ],
        ),
        (lambda: nn.Linear(2, 2), [{"weight", "bias"}]),
        (lambda: nn.LayerNorm(2), [{"weight", "bias"}]),
    ],
)  # fmt: skip
def test_layers_are_found_in_the_order_of_registration(build, modules):
    found = names_of(build())

    def owner(name):
        path, _, own = name.rpartition(".")
        return path if own in ("weight", "bias") and path else name

    assert [set(map(owner, layer)) for layer in found] == modules


def test_rates_decay_from_the_last_layer_to_the_first():
    groups = layerwise_groups(Encoder(), 0.8, 0.5)

    assert [group["lr"] for group in groups] == [0.1, 0.2, 0.4, 0.8]
    assert [group["name"] for group in groups] == ["layer0", "layer1", "layer2", "layer3"]
    assert {group["lr"] for group in layerwise_groups(Encoder(), 0.8, 1.0)} == {0.8}


def test_layers_can_be_given():
    layers = [["first_token", "patches", "body.places"], "body.blocks.*", ["norm", "head"]]

    assert [len(names) for names in names_of(Encoder(), layers=layers)] == [4, 8, 4]
    assert len(names_of(mlp(), layers=["0", ["3", "0.bias"]])[0]) == 2
