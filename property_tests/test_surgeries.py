"""Laws of the methods that replace layers."""

import copy
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from composable.utils.reproducibility import seed_context
from tests.functional.test_surgeries import OWN, factorize
from tests.support.arguments import Block
from tests.support.models import WORDS, language_model
from tests.support.strategies import few, seeds
from tests.support.surgery import FeedForward
from tests.support.tensors import randn

dims = st.integers(1, 3)
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


sizes = st.integers(1, 6)


@given(dims, seeds, st.integers(1, 3), sizes, sizes, st.integers(1, 12))
def test_error_of_each_group_matches_eckart_and_young(d, seed, groups, inputs, outputs, latent):
    conv = CONVS[d](groups * inputs, groups * outputs, 2, groups=groups).double()
    with torch.no_grad():
        conv.weight.copy_(randn(*conv.weight.shape, seed=seed))
    rank, fan_in = max(1, latent // groups), inputs * 2**d
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", F.NoEffectWarning)
        new = F.factorize(conv, min_channels=0, latent_channels=latent)

    assert (new is not conv) == (rank * (fan_in + outputs) < fan_in * outputs)
    if new is conv:
        return
    assert sum(p.numel() for p in new.parameters()) < sum(p.numel() for p in conv.parameters())
    for i, part in enumerate(conv.weight.detach().chunk(groups)):
        fitted = new.weight.detach().chunk(groups)[i]
        error = torch.linalg.vector_norm(part - fitted)
        tail = torch.linalg.svdvals(part.flatten(1))[rank:].square().sum().sqrt()
        assert_close(error, tail)


@given(seeds, st.integers(1, 8), st.integers(1, 30))
@few
def test_longer_input_does_not_change_earlier_outputs_of_a_biased_decoder(seed, first, more):
    model = F.alibi(language_model(one_by_one=True), max_sequence_length=4)
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (2, first + more), generator=draw)

    assert_close(model(ids)[..., :first], model(ids[:, :first]))


ON_TEXTS = ("skip_connections(dynamic=True)", "value_residual")
ON_IMAGES = [n for n, one in OWN.items() if one.inputs().is_floating_point() and n not in ON_TEXTS]
TOGETHER = {name: OWN[name].operate for name in [*ON_IMAGES, "softcap_head"]}
TOGETHER |= {"channels_last": F.channels_last, "factorize": factorize}
del TOGETHER['stochastic_depth(method="sample")']
del TOGETHER["checkpoint_activations"]  # the last of all: its blocks have another class


def net():
    with seed_context(0):
        return nn.Sequential(
            nn.Conv2d(4, 4, 3, stride=2),
            nn.BatchNorm2d(4),
            nn.MaxPool2d(2),
            nn.GroupNorm(2, 4),
            nn.LayerNorm(4),
            nn.Dropout(),
            nn.Conv2d(4, 4, 1),
            Block(4),
            FeedForward(),
        )


@pytest.mark.filterwarnings("ignore:factorize found nothing")  # if another surgery comes first
@given(st.permutations(sorted(TOGETHER)))
@few
def test_surgeries_combine_in_any_order_and_change_no_argument(order):
    """Law of methods: Model surgery is idempotent."""
    x, plain = randn(6, 4, 17, 17), net()
    text, before = repr(plain), copy.deepcopy(plain.state_dict())
    model = plain
    for name in order:
        model = TOGETHER[name](model)

    again = model
    for name in order:
        again = TOGETHER[name](again)
    with seed_context(1):  # which drops no block
        outputs = model(x)
    outputs.sum().backward()

    assert again is model
    assert outputs.shape == net()(x).shape
    assert all(p.grad is not None for p in model.parameters())
    assert repr(plain) == text
    assert all(torch.equal(before[name], tensor) for name, tensor in plain.state_dict().items())
