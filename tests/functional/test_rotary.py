"""Rotary position embeddings: the paper's formula, the layouts of others, and conversions."""

import pytest
import torch
from torch.testing import assert_close

import composable.functional as F
from tests.support.models import language_model

LAYOUTS = pytest.mark.parametrize("interleaved", [False, True])


def heads(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@LAYOUTS
@pytest.mark.parametrize(("base", "past"), [(10000.0, 0), (50.0, 7)])
def test_pairs_are_multiplied_by_complex_numbers_of_the_paper(interleaved, base, past):
    x = heads(2, 3, 5, 8)
    pairs = x.unflatten(-1, (4, 2)) if interleaved else x.unflatten(-1, (2, 4)).mT
    turned = torch.empty_like(pairs)
    for p in range(5):
        for i in range(4):
            angle = torch.tensor((p + past) * base ** (-2 * i / 8), dtype=torch.float64)
            factor = torch.polar(torch.ones_like(angle), angle)
            turned[:, :, p, i] = torch.view_as_real(
                torch.view_as_complex(pairs[:, :, p, i].contiguous()) * factor
            )
    expected = turned.flatten(-2) if interleaved else turned.mT.flatten(-2)

    assert_close(F.rotary_embedding(x, base=base, past=past, interleaved=interleaved), expected)


@LAYOUTS
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_scores_depend_on_distances_alone(interleaved, fraction):
    how = {"interleaved": interleaved, "fraction": fraction}
    query, key = heads(2, 6, 8), heads(2, 6, 8, seed=1)

    def scores(past):
        return (
            F.rotary_embedding(query, past=past, **how)
            @ F.rotary_embedding(key, past=past, **how).mT
        )

    assert_close(scores(0), scores(1000))
    assert not torch.allclose(scores(0), query @ key.mT)


def test_first_position_and_no_fraction_change_nothing():
    x = heads(2, 1, 8)

    assert torch.equal(F.rotary_embedding(x), x)
    assert F.rotary_embedding(heads(2, 3, 8), fraction=0.0).shape == (2, 3, 8)
    assert F.rotary_embedding(x, fraction=0) is x


@pytest.mark.parametrize(("size", "fraction", "rotated"), [(8, 0.5, 4), (10, 0.29, 2), (7, 1, 6)])
def test_features_after_the_fraction_do_not_change(size, fraction, rotated):
    x = heads(2, 3, size)
    new = F.rotary_embedding(x, fraction=fraction, past=1)

    assert torch.equal(new[..., rotated:], x[..., rotated:])
    assert (new[..., :rotated] != x[..., :rotated]).all()


def test_positions_restart_with_each_document():
    x = heads(2, 3, 5, 8)
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])

    new = F.rotary_embedding(x, positions=positions.unsqueeze(1))

    assert_close(new[0, :, 3:], F.rotary_embedding(x[0, :, 3:]))
    assert_close(new[1], F.rotary_embedding(x[1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_rounds_the_result_once(dtype):
    x = heads(1, 4, 8).to(dtype)
    new = F.rotary_embedding(x, past=4000)

    assert torch.equal(new, F.rotary_embedding(x.float(), past=4000).to(dtype))


@LAYOUTS
def test_equals_the_models_of_hugging_face(interleaved):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers.models.gptj import modeling_gptj as gptj

    query, key = heads(2, 3, 6, 8).float(), heads(2, 3, 6, 8, seed=1).float()
    cos, sin = F.rotary_tables(torch.arange(6), 8)
    if interleaved:
        theirs = [gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin[None], cos[None]).transpose(1, 2)
                  for x in (query, key)]  # fmt: skip
    else:
        config = llama.LlamaConfig(hidden_size=24, num_attention_heads=3)
        embedding = llama.LlamaRotaryEmbedding(config)
        theirs = llama.apply_rotary_pos_emb(query, key, *embedding(query, torch.arange(6)[None]))

    for x, their in zip((query, key), theirs, strict=True):
        assert_close(F.rotary_embedding(x, interleaved=interleaved), their)
        assert_close(F.rotate_pairs(x, cos, sin, interleaved=interleaved), their)


@pytest.mark.parametrize(
    ("earlier", "then", "message"),
    [
        (F.rotary, lambda m: F.rotary(m, base=50), r"base=50.* must be Rotation\(base=10000.0"),
        (lambda m: F.alibi(m, max_sequence_length=9), F.rotary, "must not be converted by alibi"),
        (F.rotary, lambda m: F.alibi(m, max_sequence_length=9), "must not be converted by rotary"),
    ],
)
def test_rejects_model_that_is_converted_otherwise(earlier, then, message):
    with pytest.raises(ValueError, match=message):
        then(earlier(language_model(one_by_one=True)))
