"""Laws of the layout of a batch: the side of its padding, its containers and its names."""

from collections import namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from composable.algorithms import SeqLengthWarmup
from composable.functional import orthogonalize
from composable.optim import Muon, muon_groups
from tests.support.models import seeded, weights
from tests.support.runs import make_trainer

KINDS = ("bool", "int", "float", "added", "padding", "pairs", "added pairs", "pairs of heads")
OPTIONS = ({}, {"truncate": False}, {"preserve_end_of_sequence": True})
Text = namedtuple("Text", ["size", "prompt"])
texts = st.integers(1, 9).flatmap(
    lambda size: st.builds(Text, st.just(size), st.integers(0, size - 1))
)


def mask_of(kind, kept):
    """Return a mask of the tokens that are kept, in one of its layouts, by its name."""
    added = torch.zeros(kept.shape).masked_fill(~kept, -torch.inf)
    pairs = (kept[:, None, :] & kept[:, :, None]).tril()
    masks = {
        "bool": kept,
        "int": kept.long(),
        "float": kept.float(),
        "added": added,
        "pairs": pairs[:, None],
        "added pairs": torch.zeros(pairs.shape).masked_fill(~pairs, -torch.inf),
        "pairs of heads": pairs[:, None].long().expand(-1, 2, -1, -1),
    }
    return {"src_key_padding_mask": ~kept} if kind == "padding" else {"attention_mask": masks[kind]}


def padded(sizes, tokens, side, kind):
    """Pad texts on one side: the tokens of each are 1, 2, ..., and its prompt has no labels."""
    at = torch.arange(tokens) - torch.tensor(
        [[tokens - text.size if side == "left" else 0] for text in sizes]
    )
    size, prompt = torch.tensor([[*text] for text in sizes]).split(1, dim=1)
    kept = (at >= 0) & (at < size)
    return {
        "input_ids": torch.where(kept, at + 1, 0),
        "labels": torch.where(kept & (at >= prompt), at + 1, -100),
        "position_ids": torch.where(kept, at, 0),
        **mask_of(kind, kept),
    }


def rows_of(batch):
    """Return the tokens, labels and positions of each row, without padding."""
    columns = (batch["input_ids"], batch["labels"], batch["position_ids"])
    return [
        [triple for triple in zip(*row, strict=True) if triple[0]]
        for row in zip(*(column.tolist() for column in columns), strict=True)
    ]


@given(
    st.lists(texts, min_size=1, max_size=4),
    st.integers(1, 8),
    st.sampled_from(KINDS),
    st.sampled_from(OPTIONS),
)
def test_padding_on_either_side_is_cut_to_the_same_tokens(sizes, length, kind, options):
    right, left = (padded(sizes, 9, side, kind) for side in ("right", "left"))

    short = [F.set_sequence_length(batch, length, **options) for batch in (right, left)]

    assert rows_of(short[0]) == rows_of(short[1])
    assert all(token == position + 1 for row in rows_of(short[0]) for token, _, position in row)
    for batch in short:
        expected = mask_of(kind, batch["input_ids"] > 0)
        for name, mask in expected.items():
            assert torch.equal(batch[name], mask)
    if options.get("truncate", True):
        for text, row in zip(sizes, rows_of(short[0]), strict=True):
            assert len(row) == min(text.size, length)
            learned = [label for _, label, _ in row if label >= 0]
            assert learned or length == 1


@given(st.lists(texts, min_size=1, max_size=4), st.integers(2, 8), st.sampled_from(KINDS))
def test_segments_have_each_label_once_whether_a_model_shifts_labels_or_not(sizes, length, kind):
    for side in ("right", "left"):
        short = F.set_sequence_length(padded(sizes, 9, side, kind), length, truncate=False)
        count = len(short["labels"]) // len(sizes)
        for i, text in enumerate(sizes):
            labels = short["labels"][i * count : (i + 1) * count]
            learned = labels[labels >= 0].tolist()
            shifted = labels[:, 1:][labels[:, 1:] >= 0].tolist()

            assert learned == [*range(text.prompt + 1, text.size + 1)]
            first = 1 if text.prompt == 0 and text.size >= length else None
            if text.size >= length:  # otherwise padding may come before a text
                assert shifted == [one for one in learned if one != first]


def test_positions_and_masks_of_all_layouts_are_cut():
    ids = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 0, 0]])
    at = torch.arange(5)
    pairs = torch.ones(5, 5, dtype=torch.bool).tril()
    batch = {
        "position_ids": at.expand(3, 2, 5),  # before the tokens
        "attention_mask": ids > 0,
        "input_ids": ids,
        "positions": at[None],
        "causal": pairs,
        "shared": pairs[None, None],
        "each": (pairs & (ids > 0)[:, None])[:, None],
        "image": torch.zeros(2, 3, 5, 5),
        "classes": torch.zeros(2),
        "relative": {"positions": at},
    }

    short = F.set_sequence_length(batch, 2)

    assert short["input_ids"].tolist() == [[5, 6], [1, 2]]
    assert short["position_ids"].tolist() == [[[2, 3], [0, 1]]] * 3
    for one in (short["positions"], short["relative"]["positions"]):
        assert one.tolist() == [[2, 3], [0, 1]]
    assert torch.equal(short["causal"], pairs[:2, :2])
    assert torch.equal(short["shared"], pairs[None, None, :2, :2])
    assert torch.equal(short["each"], pairs[None, None, :2, :2].expand(2, 1, 2, 2))
    assert short["image"] is batch["image"]
    assert short["classes"] is batch["classes"]


class Bigrams(nn.Module):
    """A model without positions, whose loss is the same for padding on either side."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(12, 4), nn.Linear(4, 12)

    def forward(self, ids):
        return self.head(self.words(ids)).transpose(1, 2)


TEXTS = [[Text(9, 6), Text(5, 0)], [Text(7, 6), Text(8, 7)]]
WARMUPS = {
    "first tokens": SeqLengthWarmup(1.0, 3, 8, 1),
    "segments": SeqLengthWarmup(1.0, 3, 8, 1, truncate=False),
    "last token": SeqLengthWarmup(1.0, 3, 8, 1, preserve_end_of_sequence=True),
}
FORMS = {
    "padding on the left": ("left", lambda ids, labels, mask: None),
    "names": ("right", lambda ids, labels, mask: {"text": ids, "goal": labels}),
    "a tuple": ("right", lambda ids, labels, mask: (ids, labels)),
    "a tuple in another order": ("right", lambda ids, labels, mask: (labels, mask, ids)),
}


def trained(side, algorithm, form=lambda ids, labels, mask: None, **keys):
    loader = []
    for sizes in TEXTS:
        batch = padded(sizes, 9, side, "int")
        given = form(batch["input_ids"], batch["labels"], batch["attention_mask"])
        loader.append(batch if given is None else given)
    keys = keys or {"input_key": "input_ids", "target_key": "labels"}
    trainer = make_trainer(
        seeded(Bigrams), loader, algorithms=[algorithm], loss_mean_over="tokens", **keys
    )
    return weights(trainer.fit().model)


KEYS = {
    "names": {"input_key": "text", "target_key": "goal"},
    "a tuple": {"input_key": 0, "target_key": 1},
    "a tuple in another order": {"input_key": 2, "target_key": 0},
}


@pytest.mark.parametrize("name", WARMUPS)
@pytest.mark.parametrize("form", FORMS)
def test_training_is_the_same_for_each_layout_of_a_batch(name, form):
    side, build = FORMS[form]
    expected = trained("right", WARMUPS[name])

    if name == "last token" and form in KEYS:
        with pytest.raises(ValueError, match="must come with an attention_mask"):
            trained(side, WARMUPS[name], build, **KEYS[form])
    else:
        assert_close(trained(side, WARMUPS[name], build, **KEYS.get(form, {})), expected)


# --- the dimensions of a weight ---


class Experts(nn.Module):
    """Three experts in one parameter."""

    def __init__(self, weights):
        super().__init__()
        self.weight = nn.Parameter(torch.stack(weights))
        self.head = nn.Linear(1, 1, bias=False)


OPTIONS_OF_MUON = (
    {},
    {"adjust_lr_fn": "match_rms_adamw"},
    {"equalize_rows": True},
    {"slow_momentum": 0.9},
    {"neuron_beta2": 0.9},
    {"update_floor": 0.5},
    {"neuron_beta2": 0.9, "update_floor": 0.5, "weight_decay": 0.0},
    {"soap_beta2": 0.9},
)


@pytest.mark.parametrize(
    ("rows", "stacked", "options"),
    [*((rows, 1, options) for rows in (4, 9) for options in OPTIONS_OF_MUON), (8, 2, {})],
)
def test_muon_updates_experts_in_one_parameter_as_parameters_of_their_own(rows, stacked, options):
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(rows, 6, generator=draw, dtype=torch.float64) for _ in range(3)]
    together = Experts(weights)
    apart = [nn.Parameter(half) for one in weights for half in one.clone().chunk(stacked)]
    groups = muon_groups(together, stacked={"weight": stacked})
    exact = {"lr": 0.1, "dtype": torch.float64, **options}
    optimizers = Muon(groups, **exact), Muon(apart, **exact)
    for _ in range(3):
        together.weight.grad = torch.randn(together.weight.shape, generator=draw).double()
        for one, grad in zip(
            apart, together.weight.grad.flatten(0, 1).chunk(3 * stacked), strict=True
        ):
            one.grad = grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert_close(together.weight, torch.stack(apart).view_as(together.weight))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Conv1d(4, 6, 3), (6, 12)), (nn.Bilinear(2, 3, 5), (5, 6))],
    ids=["convolution", "bilinear"],
)
def test_muon_updates_filters_and_bilinear_forms_as_one_matrix(layer, shape):
    model = nn.Sequential(layer, nn.Linear(1, 1))
    layer.weight.grad = seeded(lambda: torch.randn_like(layer.weight))
    before = layer.weight.detach().clone()

    Muon(model, lr=1.0, weight_decay=0.0, dtype=torch.float64).step()

    change = (before - layer.weight.detach()).reshape(shape)
    assert_close(change, orthogonalize(layer.weight.grad.reshape(shape), dtype=torch.float64))


def test_muon_refuses_a_weight_of_three_dimensions_whose_layout_it_does_not_know():
    weight = nn.Parameter(torch.zeros(3, 4, 5))

    with pytest.raises(ValueError, match=r"batched=None.*pass the model"):
        Muon([weight])

    for batched in (False, True):
        assert Muon([{"params": [weight], "batched": batched}]).param_groups
