"""Skip connections: the sum by hand, their sources, and stacks of blocks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, rms_norm
from torch.testing import assert_close

import composable.functional as F
from tests.functional.test_stochastic_depth import FAMILIES, batch_of
from tests.support.hugging_face import build, build_class, recompute_layers, tokens
from tests.support.models import seeded
from tests.support.surgery import filled


class Block(nn.Linear):
    def forward(self, x):
        return x + torch.tanh(super().forward(x))


def stack(count=4):
    return seeded(lambda: nn.Sequential(*(Block(6, 6) for _ in range(count)))).double()


def skipping(model, **options):
    """Add skips whose scales are drawn."""
    return filled(F.skip_connections(model, **options), ".skip_")


SOURCES = {
    "embedding": [(), (0,), (0,), (0,)],
    "mirrored": [(), (), (1,), (0,)],
    "all": [(), (0,), (0, 1), (0, 1, 2)],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sources", SOURCES)
def test_blocks_are_called_on_the_sums_of_the_formula(sources, dynamic):
    new = skipping(stack(), target=Block, sources=sources, dynamic=dynamic)
    h, seen, x = seeded(lambda: torch.randn(2, 3, 6)).double(), [], None
    assert [block.skips.sources for block in new] == SOURCES[sources]
    for block, plain in zip(new, stack(), strict=True):
        skips, x = block.skips, h
        seen.append(h)
        if skips.sources and dynamic:
            hidden = gelu(rms_norm(h, (6,)) @ block.skip_down.T)
            c = 0.1 * (hidden @ block.skip_up.T + block.skip_bias)
            x = (1 + c[..., :1]) * h
            x = x + sum(c[..., [i + 1]] * seen[j] for i, j in enumerate(skips.sources))
        elif skips.sources:
            x = block.skip_scales[0] * h
            x = x + sum(block.skip_scales[i + 1] * seen[j] for i, j in enumerate(skips.sources))
        h = plain(x)

    assert_close(new(seeded(lambda: torch.randn(2, 3, 6)).double()), h)


@pytest.mark.parametrize("dynamic", [False, True])
def test_all_scales_train(dynamic):
    new = skipping(stack(), target=Block, sources="all", dynamic=dynamic)

    new(torch.randn(2, 3, 6).double()).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in new.parameters())


def test_last_blocks_alone_have_skips():
    new = F.skip_connections(stack(), target=Block, sources="all", last=1)

    assert [block.skips.sources for block in new] == [(), (), (), (0, 1, 2)]
    assert [name for name, _ in new.named_parameters() if "skip" in name] == ["3.skip_scales"]


def test_stacks_are_apart_and_nothing_is_kept_between_calls():
    model = nn.ModuleDict({"a": stack(2), "b": stack(3)})
    new = skipping(model, target=Block)
    alone = skipping(nn.ModuleDict({"a": stack(2)}), target=Block)
    x = torch.randn(2, 6).double()

    assert_close(new["a"](x), alone["a"](x))
    trace = new["a"][0].skips.trace
    assert trace is new["a"][1].skips.trace is not new["b"][0].skips.trace
    assert trace.kept is None
    assert copy.deepcopy(new)["a"][1].skips.trace is not trace


def test_refuses_a_block_alone_other_settings_and_other_shapes():
    new = F.skip_connections(stack(), target=Block)
    with pytest.raises(RuntimeError, match="skip_connections needs what an earlier layer"):
        new[1](torch.randn(2, 6).double())
    with pytest.raises(ValueError, match=r"0 has skip connections of the setting \('embedding'"):
        F.skip_connections(new, target=Block, sources="all")
    shapes = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    with pytest.raises(ValueError, match=r"one shape, but an earlier one has \(1, 2\)"):
        F.skip_connections(shapes, target=nn.Linear)(torch.ones(1, 2))
    with pytest.warns(F.NoEffectWarning, match="skip_connections found nothing to replace"):
        F.skip_connections(stack(1), target=Block)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "bert", "roberta", "llama"])
def test_models_of_hugging_face_train_with_checkpointed_layers(family, dynamic):
    pytest.importorskip("transformers")
    model = build(family)
    assert torch.equal(
        F.skip_connections(model, dynamic=dynamic)(tokens(6)).logits, model(tokens(6)).logits
    )
    new = skipping(model, dynamic=dynamic).train()
    for part in new.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0

    def gradients():
        new.zero_grad()
        new(tokens(6)).logits.square().sum().backward()
        return {name: p.grad.clone() for name, p in new.named_parameters() if p.grad is not None}

    plain = gradients()
    recompute_layers(new)
    if hasattr(new, "activation_checkpointing_enable"):
        assert_close(gradients(), plain)
    else:  # before this method, Transformers recomputed the hooks of a layer as well
        with pytest.raises(RuntimeError, match="don't recompute its layers"):
            gradients()
    assert sum(".skip_" in name for name in plain) == (3 if dynamic else 1)


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_of_more_families_get_skips(name):
    pytest.importorskip("transformers")
    options, inputs, count = FAMILIES[name]
    model, batch = build_class(name, **options), batch_of(inputs)

    new = F.skip_connections(model)
    stacks = 1 if count == 2 else 2
    assert sum("skip_scales" in key for key in new.state_dict()) == count - stacks
    assert_close(new(**batch)[0], model(**batch)[0])
