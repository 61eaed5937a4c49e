"""A layer factorized for data: the error of the best approximation of its outputs."""

import pytest
import torch
from torch import nn

from composable.functional import factorize, factorize_layer
from tests.support.models import seeded, weights

DOUBLE = {"dtype": torch.float64}
LAYERS = {
    "linear": (lambda: nn.Linear(12, 8, **DOUBLE), (5, 9, 12)),
    "without bias": (lambda: nn.Linear(12, 8, bias=False, **DOUBLE), (40, 12)),
    "conv1d": (
        lambda: nn.Conv1d(6, 8, 3, padding="same", padding_mode="reflect", **DOUBLE),
        (4, 6, 11),
    ),
    "conv2d": (
        lambda: nn.Conv2d(4, 6, (3, 2), 2, (1, 2), (1, 2), groups=2, bias=False, **DOUBLE),
        (5, 4, 9, 8),
    ),
    "conv3d": (
        lambda: nn.Conv3d(3, 5, 2, padding=1, padding_mode="circular", **DOUBLE),
        (2, 3, 4, 3, 4),
    ),
    "image": (lambda: nn.Conv2d(3, 6, 3, **DOUBLE), (3, 9, 9)),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def case(name):
    """Return a layer, and inputs that are neither centered nor of full rank."""
    build, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(shape, generator=generator, **DOUBLE) + 0.5
    if isinstance(layer := seeded(build), nn.Linear):
        inputs[..., 7:] = inputs[..., :5] * 2
    return layer, inputs


def columns(layer, outputs):
    """Return the outputs as a matrix for each group, a column for each output of it."""
    if isinstance(layer, nn.Linear):
        return outputs.reshape(1, -1, layer.out_features)
    batched = outputs if outputs.ndim == 2 + len(layer.kernel_size) else outputs[None]
    flat = batched.movedim(1, -1).reshape(-1, layer.groups, layer.out_channels // layer.groups)
    return flat.transpose(0, 1)


def tail(matrices, rank, *, has_bias):
    """Return the squared error of the best approximation of a rank, by Eckart and Young."""
    centered = matrices - matrices.mean(1, keepdim=True) * has_bias
    return torch.linalg.svdvals(centered)[:, rank:].square().sum()


@every_layer
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_outputs_are_the_nearest_of_their_rank(name, rank):
    layer, inputs = case(name)
    outputs = layer(inputs)

    pair = factorize_layer(layer, inputs, rank=rank)

    error = (pair(inputs) - outputs).square().sum()
    least = tail(columns(layer, outputs), rank, has_bias=layer.bias is not None)
    torch.testing.assert_close(error, least, atol=1e-9, rtol=1e-9)
    assert (pair.bias is None) == (layer.bias is None)
    assert pair.reduce.weight.shape[0] == rank * getattr(layer, "groups", 1)


@every_layer
def test_targets_are_approximated_as_well_as_any_weight_of_the_rank_can(name):
    layer, inputs = case(name)
    targets = layer(inputs).sin() + layer(inputs).square()

    full = factorize_layer(layer, inputs, targets, rank=min(3, *layer.weight.shape[:2]))
    pair = factorize_layer(layer, inputs, targets, rank=2)

    if isinstance(layer, nn.Linear):
        rows, wanted = inputs.flatten(0, -2), targets.flatten(0, -2)
        if layer.bias is not None:
            rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
        nearest = rows @ torch.linalg.pinv(rows) @ wanted
        rest = (nearest - wanted).square().sum()
        least = rest + tail(nearest[None], 2, has_bias=layer.bias is not None)
        torch.testing.assert_close((pair(inputs) - targets).square().sum(), least)
    errors = [(one(inputs) - targets).square().sum() for one in (full, pair)]
    errors.append((factorize_layer(layer, inputs, rank=2)(inputs) - targets).square().sum())
    assert sorted(errors) == errors
    # A minimum: no change of a weight or of the bias reduces the error.
    errors[1].backward()
    gradients = torch.cat([one.grad.flatten() for one in pair.parameters()])
    assert gradients.abs().max() < 1e-8 * errors[1]


def test_rank_goes_to_the_directions_of_the_inputs():
    layer = seeded(lambda: nn.Linear(16, 16))
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) @ torch.eye(16)[:3]
    kept = weights(layer)

    pair = factorize_layer(layer, inputs, rank=3)

    torch.testing.assert_close(pair(inputs), layer(inputs))
    by_weight = factorize(layer, min_features=0, latent_features=3)
    assert (by_weight(inputs) - layer(inputs)).abs().max() > 0.01
    assert all(torch.equal(kept[name], one) for name, one in weights(layer).items())


def test_pair_becomes_one_of_a_lower_rank():
    layer, inputs = case("linear")
    first = factorize_layer(layer, inputs, rank=4)

    second = factorize_layer(first, inputs, rank=2)

    error = (second(inputs) - layer(inputs)).square().sum()
    least = tail(columns(layer, layer(inputs)), 2, has_bias=True)
    torch.testing.assert_close(error, least)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_are_fitted_in_float32(dtype):
    layer = seeded(lambda: nn.Linear(12, 8)).to(dtype).requires_grad_(False)
    inputs = torch.randn(2, 12, generator=torch.Generator().manual_seed(0)).to(dtype)

    pair = factorize_layer(layer, inputs, rank=2)  # more parameters than numbers to fit

    torch.testing.assert_close(pair(inputs), layer(inputs), atol=0.02, rtol=0.02)
    assert {one.dtype for one in pair.parameters()} == {dtype}
    assert not any(one.requires_grad for one in pair.parameters())
