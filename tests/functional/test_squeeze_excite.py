"""Squeeze-and-excitation."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.testing import assert_close

from composable.functional import SqueezeExcitation, squeeze_excite
from tests.support.tensors import randn, seeded

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def attended(u, layer):
    """Hu et al., equations 2 to 4."""
    z = u.flatten(2).mean(2)
    s = torch.sigmoid(linear(torch.relu(linear(z, layer.squeeze)), layer.excite))
    return u * s.reshape(*s.shape, *[1] * (u.ndim - 2))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_attention_follows_the_convolution(dims, mode):
    options = {"stride": 2, "padding": 1, "groups": 2, "padding_mode": mode, "bias": False}
    conv, x = CONVS[dims](4, 6, 3, **options), randn(2, 4, *[7] * dims)

    new = squeeze_excite(conv, latent_channels=3, min_channels=1, generator=seeded())

    assert isinstance(new, CONVS[dims])
    assert_close(new(x), attended(conv(x), new.squeeze_excite))
    assert_close(new(x[0]), new(x)[0])  # an example without a batch


@pytest.mark.parametrize(
    ("latent", "channels", "expected"),
    [(64, 8, 64), (1, 8, 1), (0.25, 8, 2), (0.3, 8, 2), (0.01, 8, 1), (3.0, 8, 3)],
)
def test_latent_size_is_a_number_or_a_fraction(latent, channels, expected):
    layer = SqueezeExcitation(channels, latent_channels=latent)

    assert layer.squeeze.shape == (expected, channels)
    assert layer.excite.shape == (channels, expected)


@pytest.mark.parametrize(("shape", "replaced"), [((4, 4), True), ((3, 4), False), ((4, 3), False)])
def test_narrow_convolutions_are_not_replaced(shape, replaced):
    model = nn.Sequential(nn.Conv2d(*shape, 3), nn.Conv2d(9, 9, 3))

    new = squeeze_excite(model, min_channels=4, generator=seeded())

    assert (type(new[0]) is not nn.Conv2d) == replaced


def test_new_weights_differ_between_layers_and_a_fraction_is_of_the_output_channels():
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(4, 8, 3))
    options = {"latent_channels": 0.5, "min_channels": 4, "generator": seeded()}

    one, other = (layer.squeeze_excite.squeeze for layer in squeeze_excite(model, **options))

    assert one.shape == (4, 8)
    assert not torch.equal(one, other)


def test_new_weights_are_distributed_as_in_a_linear_layer():
    layer, plain = SqueezeExcitation(400, latent_channels=100), nn.Linear(400, 100)

    assert layer.squeeze.abs().max() <= 1 / 20
    assert_close(layer.squeeze.std(), plain.weight.std(), rtol=0.02, atol=0)
    assert layer.excite.abs().max() <= 1 / 10


def test_layer_takes_inputs_of_any_rank():
    layer = SqueezeExcitation(6, latent_channels=2)
    for shape in [(2, 6), (2, 6, 5), (2, 6, 5, 4), (0, 6, 5, 4), (1, 6, 2, 3, 4)]:
        x = randn(*shape)
        assert_close(
            layer(x), attended(x, layer) if len(shape) > 2 else layer(x[..., None])[..., 0]
        )
