"""Laws of the methods that replace layers."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from composable.utils.reproducibility import seed_context
from tests.functional.test_surgeries import OWN, Block, FeedForward
from tests.support.models import WORDS, Hidden, language_model

dims = st.integers(1, 3)
seeds = st.integers(0, 2**32 - 1)
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def drawn(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@given(dims, seeds, st.integers(1, 20), st.integers(1, 8), st.integers(0, 19))
def test_a_ghost_norm_depends_on_no_other_slice(d, seed, batch, size, other):
    x = drawn(seed, batch, 2, *[2] * d)
    norm = F.ghost_batchnorm(NORMS[d](2).double(), ghost_batch_size=size)
    changed = x.clone()
    changed[other % batch] += 1

    same = [i for i in range(batch) if i // size != other % batch // size]

    assert_close(norm(changed)[same], norm(x)[same])


@given(dims, seeds, st.integers(2, 20), st.integers(1, 8))
def test_the_running_mean_of_ghosts_is_that_of_the_batch(d, seed, batch, size):
    x, plain = drawn(seed, batch, 2, *[2] * d), NORMS[d](2).double()
    ghost = F.ghost_batchnorm(plain, ghost_batch_size=size)

    ghost(x), plain(x)

    assert_close(ghost.running_mean, plain.running_mean)


@given(dims, seeds, st.floats(0.1, 10), st.floats(-5, 5))
def test_standardized_weights_know_neither_scale_nor_shift(d, seed, scale, shift):
    weight = drawn(seed, 3, 2, *[3] * d)

    moved = F.standardize_weight(scale * weight + shift)

    assert_close(moved, F.standardize_weight(weight), rtol=1e-6, atol=1e-6)


@given(dims, seeds, st.sampled_from([1, 3, 0.5]))
def test_attention_only_scales_channels_and_never_up(d, seed, latent):
    conv, x = CONVS[d](4, 4, 1).double(), drawn(seed, 2, 4, *[3] * d)
    new = F.squeeze_excite(
        conv,
        latent_channels=latent,
        min_channels=1,
        generator=torch.Generator().manual_seed(seed),
    )

    scale = (new(x) / conv(x)).flatten(2)

    assert_close(scale, scale[..., :1].expand_as(scale))
    assert ((scale > 0) & (scale < 1)).all()


@given(
    seeds,
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(0, 9),
    st.lists(st.integers(0, 3), max_size=3),
)
def test_gyro_dropout_is_a_function_of_seed_and_step(seed, sigma, tau, stay, steps, rest):
    options = {"sigma": max(sigma, tau), "tau": tau, "stay": stay}
    first, later = (
        F.GyroDropoutLayer(**options, generator=torch.Generator().manual_seed(seed))
        for _ in range(2)
    )
    x = torch.ones(5, *rest)
    for _ in range(steps):
        first(x)

    later.steps.fill_(steps)

    assert torch.equal(first(x), later(x))


class Residual(nn.Linear):
    """A residual block."""

    def forward(self, x):
        return x + super().forward(x)


@given(seeds, st.floats(0, 1), st.integers(0, 6), st.sampled_from(["block", "sample"]))
def test_an_example_goes_through_a_block_or_past_it(seed, rate, batch, method):
    block, x = Residual(3, 3).double(), drawn(seed, batch, 3)
    new = F.stochastic_depth(block, target=Residual, method=method, drop_rate=rate)

    outputs = new(x)

    kept = torch.isclose(outputs, block(x)).all(1)
    assert (kept | (outputs == x).all(1)).all()
    assert method == "sample" or len(set(kept.tolist())) <= 1
    assert_close(new.eval()(x), torch.lerp(x, block(x), 1 - rate))


sizes = st.integers(1, 6)


@given(dims, seeds, st.integers(1, 3), sizes, sizes, st.integers(1, 12))
def test_no_pair_of_thin_layers_is_nearer_to_a_weight(d, seed, groups, inputs, outputs, latent):
    conv = CONVS[d](groups * inputs, groups * outputs, 2, groups=groups).double()
    with torch.no_grad():
        conv.weight.copy_(drawn(seed, *conv.weight.shape))
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
        # The best expansion of some other reduction, and of one that is near the fitted one.
        for near in (0, 1):
            noise = drawn(seed + 1 + i, rank, fan_in)
            other = near * new.reduce.weight.detach().flatten(1).chunk(groups)[i] + 0.1 * noise
            best = part.flatten(1) @ torch.linalg.pinv(other) @ other
            assert torch.linalg.matrix_norm(part.flatten(1) - best) >= error - 1e-9


@given(st.integers(1, 40), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_linear_biases_depend_on_the_distance_alone(heads, length, past, more):
    bias = F.alibi_bias(heads, length, past=past)

    whole = F.alibi_bias(heads, past + length + more)
    assert torch.equal(bias, whole[:, past : past + length, : past + length])
    assert torch.equal(whole, whole.mT)
    assert torch.equal(whole[:, more:, more:], whole[:, : past + length, : past + length])
    assert (whole.diff(dim=2).tril(-1) >= 0).all()


@given(st.integers(1, 300))
def test_slopes_are_all_different_and_between_zero_and_one(heads):
    slopes = F.alibi_slopes(heads)

    assert len(slopes) == len(set(slopes.tolist())) == heads
    assert ((slopes > 0) & (slopes < 1)).all()


@given(seeds, st.integers(1, 5), st.integers(1, 9), st.floats(-3, 3))
def test_what_is_gated_is_linear_in_the_new_weights(seed, batch, longer, factor):
    block, x = Hidden(4).double(), drawn(seed, batch, longer, 4)
    new = F.gated_linear_units(block, generator=torch.Generator().manual_seed(seed))
    before, rest = new(x), block[2].bias

    with torch.no_grad():
        new[0].non_gated.weight.mul_(factor)

    assert_close(new(x) - rest, factor * (before - rest))


@given(seeds, st.integers(1, 8), st.integers(1, 30))
@settings(max_examples=15)
def test_what_a_biased_decoder_has_read_stays_as_it_reads_on(seed, first, more):
    model = F.alibi(language_model(one_by_one=True), max_sequence_length=4)
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (2, first + more), generator=draw)

    assert_close(model(ids)[..., :first], model(ids[:, :first]))


TOGETHER = {name: one.operate for name, one in OWN.items() if name != "alibi"}
TOGETHER |= {"channels_last": F.channels_last}
del TOGETHER["stochastic_depth by sample"]


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
            Block(),
            FeedForward(),
        )


@pytest.mark.filterwarnings("ignore:factorize found nothing")  # if another surgery comes first
@given(st.permutations(sorted(TOGETHER)))
@settings(max_examples=10)
def test_surgeries_go_together_in_any_order_and_leave_the_model_alone(order):
    x, plain = drawn(0, 6, 4, 17, 17).float(), net()
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
