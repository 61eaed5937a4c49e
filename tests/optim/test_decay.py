"""Weight decay for weights only, through surgeries and resumed runs."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import Event, State
from composable.algorithms import (
    BlurPool,
    Factorize,
    GhostBatchNorm,
    LowPrecisionLayerNorm,
    SqueezeExcite,
    WeightStandardization,
)
from composable.checkpoint import MismatchError
from composable.optim import decay_groups
from composable.optim.building import update_param_groups
from composable.optim.roles import roles_of
from tests.support.data import batches
from tests.support.models import conv_net, mlp, weights
from tests.support.runs import make_trainer

adamw = partial(torch.optim.AdamW, lr=0.01, weight_decay=0.5)
LOADERS = {mlp: batches(12), conv_net: batches(12, images=True)}


class Tied(nn.Module):
    """A language model whose embedding is its last layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.RMSNorm(4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(()))


def names_of(model, groups):
    names = {id(p): name for name, p in model.named_parameters()}
    return [sorted(names[id(p)] for p in group["params"]) for group in groups]


def expected_names(model):
    """Return the names in both groups, by the rule for single parameters."""
    divided = [[], []]
    for role in roles_of(model):
        divided[role.name == "norms_and_biases"].append(role.names[0])
    return [sorted(names) for names in divided]


class CustomNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("model", "decayed", "rest"),
    [
        (Tied(), ["embedding.weight"], ["head.bias", "norm.weight", "scale"]),
        (nn.Sequential(nn.LayerNorm((2, 3))), [], ["0.bias", "0.weight"]),
        (nn.Sequential(CustomNorm()), [], ["0.weight"]),
        (nn.Sequential(nn.BatchNorm2d(2), nn.PReLU()), [], ["0.bias", "0.weight", "1.weight"]),
        (
            nn.MultiheadAttention(4, 2),
            ["in_proj_weight", "out_proj.weight"],
            ["in_proj_bias", "out_proj.bias"],
        ),
        (nn.Bilinear(2, 2, 2), ["weight"], ["bias"]),
        (nn.ReLU(), [], []),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_norms_biases_and_vectors_are_in_the_group_without_decay(model, decayed, rest):
    groups = decay_groups(model)

    assert names_of(model, groups) == [decayed, rest]
    assert [group.get("weight_decay") for group in groups] == [None, 0.0]


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("build", [conv_net, mlp])
def test_weights_equal_those_of_an_optimizer_of_two_groups(build, foreach):
    factory, loader = lambda params: adamw(params, foreach=foreach), LOADERS[build]
    by_hand = build()
    instance = factory(decay_groups(by_hand))
    expected = make_trainer(by_hand, loader, optimizers=instance).fit().model

    found = make_trainer(build(), loader, optimizers=factory, decay_norms_and_biases=False).fit()

    assert_close(weights(found.model), weights(expected), rtol=0, atol=0)
    assert [g["weight_decay"] for g in found.optimizers[0].param_groups] == [0.5, 0.0]


def test_biases_are_not_decayed():
    model = nn.Linear(2, 2)
    optimizer = adamw(decay_groups(model))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    optimizer.step()

    assert_close(model.weight.data, before["weight"] * (1 - 0.01 * 0.5))
    assert torch.equal(model.bias.data, before["bias"])


SURGERIES = {
    "squeeze-excite": (conv_net, SqueezeExcite(min_channels=1)),
    "factorize": (
        conv_net,
        Factorize(min_channels=2, latent_channels=1, min_features=2, latent_features=1),
    ),
    "weight standardization": (conv_net, WeightStandardization()),
    "ghost norm": (conv_net, GhostBatchNorm(ghost_batch_size=2)),
    "blurpool": (conv_net, BlurPool(min_channels=0)),
    "low precision": (partial(nn.LayerNorm, 4), LowPrecisionLayerNorm()),
}


@pytest.mark.parametrize("name", SURGERIES)
def test_groups_follow_a_surgery_before_and_after_the_optimizer_is_built(name):
    build, algorithm = SURGERIES[name]
    model = build()
    state = make_trainer(
        model,
        algorithms=algorithm,
        optimizers=adamw,
        decay_norms_and_biases=False,
        loss_fn=None,
    ).state
    (optimizer,) = state.optimizers
    assert names_of(state.model, optimizer.param_groups) == expected_names(state.model)

    later = adamw(decay_groups(model))
    update_param_groups([later], model, state.model)

    assert names_of(state.model, later.param_groups) == expected_names(state.model)


@pytest.mark.parametrize("divided", [True, False])
def test_new_parameters_join_the_group_where_they_belong(divided):
    before = nn.Sequential(nn.Linear(4, 4, bias=False))
    groups = decay_groups(before) if divided else [{"params": before[0].weight, "name": "weights"}]
    optimizer = adamw(groups)
    after = nn.Sequential(before[0], nn.LayerNorm(4), nn.Linear(4, 4))

    update_param_groups([optimizer], before, after)

    new = ["1.bias", "1.weight", "2.bias"]
    expected = [["0.weight", "2.weight"], new] if divided else [["0.weight", *new, "2.weight"]]
    found = names_of(after, optimizer.param_groups)
    assert [sorted(names) for names in found] == [sorted(names) for names in expected]


def test_resuming_with_other_groups_is_an_error(tmp_path):
    make_trainer(mlp(), optimizers=adamw, save_folder=tmp_path).fit()

    with pytest.raises(MismatchError, match=r"groups of \[4\] parameters there, and of \[2, 2\]"):
        make_trainer(
            mlp(), optimizers=adamw, decay_norms_and_biases=False, load_path=tmp_path / "ep1-ba3"
        )


def test_names_of_parameters_follow_a_surgery():
    before = conv_net()
    optimizer = torch.optim.AdamW(before.named_parameters())
    after = SURGERIES["squeeze-excite"][1].apply(Event.INIT, State(model=before)).model

    update_param_groups([optimizer], before, after)

    (group,) = optimizer.param_groups
    named = dict(after.named_parameters())
    assert len(group["params"]) == len(group["param_names"]) == len(named)
    pairs = zip(group["param_names"], group["params"], strict=True)
    assert all(named[name] is parameter for name, parameter in pairs)


def test_parameters_of_the_loss_are_divided_too():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))

        def forward(self, outputs, targets):
            return cross_entropy(outputs, targets) + self.weight.sum() + self.bias.sum()

    loss = Scaled()
    (optimizer,) = make_trainer(
        loss_fn=loss, optimizers=adamw, decay_norms_and_biases=False
    ).state.optimizers

    weights, rest = (group["params"] for group in optimizer.param_groups)
    assert (weights[-1] is loss.weight, rest[-1] is loss.bias) == (True, True)
