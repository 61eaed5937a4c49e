"""Which layers are frozen is a function of the structure of a model and of the time alone."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from composable.functional import frozen_layers


def chain(count):
    return nn.Sequential(*(nn.Linear(1, 1) for _ in range(count)))


def count(*args, **options):
    return len(frozen_layers(*args, **options).layers)


@pytest.mark.parametrize(
    ("elapsed", "start", "level", "expected"),
    [
        (0.0, 0.0, 1.0, 0),
        (0.5, 0.5, 1.0, 0),
        (0.55, 0.5, 1.0, 1),
        (0.5999, 0.5, 1.0, 1),
        (0.6, 0.5, 1.0, 2),
        (0.75, 0.5, 1.0, 5),
        (1.0, 0.5, 1.0, 10),
        (1.0, 0.0, 0.3, 3),
        (0.4, 0.0, 1.0, 4),
        (1.0, 0.5, 0.0, 0),
        (1.0, 1.0, 1.0, 0),
    ],
)
def test_number_of_frozen_layers_is_linear_in_time(elapsed, start, level, expected):
    found = frozen_layers(chain(11), elapsed=elapsed, freeze_start=start, freeze_level=level)

    assert found.layers == tuple(str(i) for i in range(expected))
    assert found.parameters == tuple(
        f"{i}.{name}" for i in range(expected) for name in ("weight", "bias")
    )


def test_whole_percentages_are_exact():
    model = chain(101)
    for percent in range(1, 101, 2):
        assert count(model, elapsed=1.0, freeze_start=0.0, freeze_level=percent / 100) == percent
        assert count(model, elapsed=percent / 100, freeze_start=0.0) == percent


@pytest.mark.parametrize("model", [nn.Linear(1, 1), nn.ReLU(), nn.Sequential(), chain(1)])
def test_single_layer_is_never_frozen(model):
    assert frozen_layers(model, elapsed=1.0) == ((), ())


def test_counts_modules_with_parameters_and_children():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)  # has in_proj_weight of its own
            self.head = nn.Linear(4, 1)
            self.token = nn.Parameter(torch.zeros(4))

    found = frozen_layers(Model(), elapsed=1.0, freeze_start=0.0)

    assert found.layers == ("", "attention", "attention.out_proj")
    assert found.parameters[:3] == ("token", "attention.in_proj_weight", "attention.in_proj_bias")


def test_shared_parameter_belongs_to_its_last_layer():
    embedding, output = nn.Embedding(4, 2), nn.Linear(2, 4, bias=False)
    output.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Linear(2, 2), output, nn.Linear(4, 1), nn.Linear(1, 1))

    found = [frozen_layers(model, elapsed=t, freeze_start=0.0) for t in (1 / 3, 2 / 3, 1.0)]

    assert [each.layers for each in found] == [("1",), ("1", "2"), ("1", "2", "3")]
    assert "0.weight" not in found[0].parameters
    assert "0.weight" in found[1].parameters  # by its name in named_parameters()
    assert set(found[2].parameters) <= {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("wrap", [lambda layer: layer, nn.Sequential])
def test_parametrization_belongs_to_its_layer(wrap):
    first = wrap(parametrizations.weight_norm(nn.Linear(2, 2)))
    model = nn.Sequential(first, nn.Linear(2, 2))

    found = frozen_layers(model, elapsed=1.0)

    assert len(found.layers) == 1
    assert len(found.parameters) == 3
    assert frozen_layers(first, elapsed=1.0).layers == ()


def test_layers_after_the_last_trainable_one_are_not_counted():
    model = chain(6)
    for layer in model[4:]:
        layer.requires_grad_(False)

    assert frozen_layers(model, elapsed=1.0).layers == ("0", "1", "2")
    model[4].bias.requires_grad_(True)
    assert frozen_layers(model, elapsed=1.0).layers == ("0", "1", "2", "3")
    assert frozen_layers(model.requires_grad_(False), elapsed=1.0).layers == ()
