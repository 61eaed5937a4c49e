"""Initialization of projections: its values, by hand, and on models of Hugging Face."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from tests.support.calls import unchanged_registries
from tests.support.hugging_face import HEADS, WIDTH, build, layers, llama, tokens
from tests.support.models import Hidden
from tests.support.tensors import seeded as generator

transformers = pytest.importorskip("transformers")


def test_blocks_at_zero_are_the_identity_of_the_residual_stream():
    for model in (build("gpt2"), llama()):
        new = F.initialize_projections(model)
        states = new(tokens(6), output_hidden_states=True).hidden_states

        assert_close(states[1], states[0])
        assert new.get_input_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_every_output_projection_of_an_encoder_is_found(family):
    new = F.initialize_projections(build(family))
    zero = [name for name, p in new.named_parameters() if "dense.weight" in name and not p.any()]

    assert len(zero) == 4
    assert all("output.dense" in name for name in zero)


def test_standard_deviation_follows_the_inputs():
    block = Hidden(300)
    new = F.initialize_projections(block, attention="fan_in", scale=0.6, generator=generator())

    assert new[2].weight.std().item() == pytest.approx(0.6 / 12**0.5, rel=0.03)
    assert not new[2].bias.any()
    assert new[0].weight is block[0].weight


def products(model):
    """Return the product of the output projection and that of the values of the first block."""
    if isinstance(model, nn.MultiheadAttention):
        return model.out_proj.weight @ model.in_proj_weight[2 * WIDTH :]
    block = model.model.layers[0].self_attn if hasattr(model, "model") else layers(model)[0]
    if hasattr(block, "v_proj"):
        heads = block.v_proj.weight.unflatten(0, (-1, block.head_dim))
        repeats = block.o_proj.in_features // len(block.v_proj.weight)
        return block.o_proj.weight @ heads.repeat_interleave(repeats, 0).flatten(0, 1)
    if hasattr(block, "attn"):
        return (block.attn.c_attn.weight[:, 2 * WIDTH :] @ block.attn.c_proj.weight).T
    return block.attention.output.dense.weight @ block.attention.self.value.weight


@pytest.mark.parametrize(
    ("build_model", "known"),
    [
        (lambda: build("gpt2"), WIDTH),
        (lambda: build("bert"), WIDTH),
        (llama, WIDTH),
        (lambda: llama(num_key_value_heads=1), WIDTH // HEADS),
        (lambda: nn.MultiheadAttention(WIDTH, HEADS), WIDTH),
    ],
)
def test_values_and_outputs_have_a_product_near_minus_beta(build_model, known):
    options = {"attention": "mimetic", "feed_forward": "keep", "beta": 0.3}
    exact = F.initialize_projections(build_model(), noise=0.0, **options)
    near = F.initialize_projections(build_model(), generator=generator(), **options)
    expected = -0.3 * torch.eye(WIDTH) * (torch.arange(WIDTH) < known)

    assert_close(products(exact), expected)
    assert_close(products(near), expected, atol=0.05, rtol=0)
    assert not torch.equal(products(near), products(exact))


def test_queries_and_keys_of_a_fused_projection_stay():
    model = build("gpt2")
    new = F.initialize_projections(model, attention="mimetic")
    before, after = (layers(one)[0].attn.c_attn for one in (model, new))

    assert torch.equal(before.weight[:, : 2 * WIDTH], after.weight[:, : 2 * WIDTH])
    assert not torch.equal(before.weight[:, 2 * WIDTH :], after.weight[:, 2 * WIDTH :])


def test_rejects_what_it_cannot_initialize():
    kind = type("Mine", (nn.Module,), {})
    F.register_projections(kind, output="out")
    with pytest.raises(ValueError, match=r"Mine has no out\.weight, .* register_projections"):
        F.initialize_projections(kind())
    with pytest.raises(ValueError, match=r"out_proj\.weight of MultiheadAttention .* on the meta"):
        F.initialize_projections(nn.MultiheadAttention(4, 2, device="meta"))
    odd = type("Odd", (Hidden,), {})
    F.register_projections(odd, value="0", output="2", fused=True)
    with pytest.raises(ValueError, match=r"attention='mimetic' does not fit Odd"):
        F.initialize_projections(odd(8), attention="mimetic")
    with pytest.warns(F.NoEffectWarning, match="initialize_projections found nothing"):
        F.initialize_projections(nn.Linear(2, 2))
    keep, model = {"attention": "keep", "feed_forward": "keep"}, Hidden(4)
    assert F.initialize_projections(model, **keep) is model


class Residual(nn.Module):
    """A block of a residual network."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 300, 3, padding=1), nn.BatchNorm2d(300)

    def forward(self, x):
        return x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).mean(1, keepdim=True)


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_blocks_of_residual_networks_start_as_the_identity(package):
    kind = type("BasicBlock", (Residual,), {"__module__": f"{package}.models.resnet"})
    model = nn.Sequential(kind(), kind())
    new = F.initialize_projections(model)
    images = torch.randn(2, 4, 5, 5)

    assert torch.equal(new(images), images)
    assert new[0].bn1.weight is model[0].bn1.weight
    assert F.initialize_projections(model, attention="keep", feed_forward="keep") is model
    with pytest.raises(ValueError, match="'fan_in' does not fit bn2 of BasicBlock, a BatchNorm2d"):
        F.initialize_projections(model, feed_forward="fan_in")


def test_standard_deviation_of_a_convolution_follows_all_its_inputs():
    with unchanged_registries():
        F.register_projections(Residual, output="conv2")
        new = F.initialize_projections(Residual(), feed_forward="fan_in", generator=generator())

    assert new.conv2.weight.std().item() == pytest.approx(0.5 / 36**0.5, rel=0.03)


def test_a_frozen_block_stays_and_a_computed_weight_is_refused():
    model = nn.Sequential(Hidden(8), Hidden(8))
    model[0].requires_grad_(False)
    new = F.initialize_projections(model)

    assert torch.equal(new[0][2].weight, model[0][2].weight)
    assert not new[1][2].weight.any()
    with pytest.warns(F.NoEffectWarning, match="found nothing"):
        assert F.initialize_projections(model[0]) is model[0]
    nn.utils.parametrizations.weight_norm(model[1][2])
    with pytest.raises(ValueError, match=r"2\.weight of Hidden is computed by a parametrization"):
        F.initialize_projections(model)
