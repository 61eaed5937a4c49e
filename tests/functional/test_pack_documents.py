"""Sequence packing: the rows of first-fit decreasing, and documents that don't see each other."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.testing import assert_close

import composable.functional as F
from composable.utils.reproducibility import seed_context

WORDS, WIDTH, LENGTH = 7, 8, 9
lengths = st.lists(st.integers(1, LENGTH), min_size=1, max_size=12)


def documents_of(sizes, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(1, WORDS, (size,), generator=draw) for size in sizes]


def first_fit_decreasing(sizes, length):
    rows = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        for row in rows:
            if sum(sizes[i] for i in row) + sizes[index] <= length:
                row.append(index)
                break
        else:
            rows.append([index])
    return rows


@given(lengths)
def test_rows_are_those_of_first_fit_decreasing(sizes):
    assert F.pack_lengths(sizes, LENGTH) == first_fit_decreasing(sizes, LENGTH)


@given(lengths, st.booleans())
def test_every_token_is_once_in_the_rows_with_its_position_and_label(sizes, shift):
    documents = documents_of(sizes)
    packed = F.pack_documents(documents, LENGTH, shift_labels=shift, pad_id=99)

    found = []
    for row in range(len(packed["input_ids"])):
        ids, labels, positions, numbers = (tensor[row] for tensor in packed.values())
        for number in range(1, int(numbers.max()) + 1):
            at = numbers == number
            inside = labels[at]
            assert positions[at].tolist() == list(range(int(at.sum())))
            assert (inside[:-1] if shift else inside[1:]).tolist() == ids[at][1:].tolist()
            assert inside[-1 if shift else 0] == -100
            found.append(ids[at].tolist())
        padding = numbers == 0
        assert set(ids[padding].tolist()) <= {99}
        assert set(labels[padding].tolist()) <= {-100}
    assert sorted(found) == sorted(document.tolist() for document in documents)


class Model(nn.Module):
    """Two layers of attention with rotary positions, on packed rows or on one document."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids, position_ids, document_ids, *, causal):
        x, mask = self.words(input_ids), F.document_mask(document_ids, causal=causal)
        for layer in self.parts:
            heads = layer(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
            query, key = (
                F.rotary_embedding(part, positions=position_ids.unsqueeze(1)) for part in heads[:2]
            )
            attended = scaled_dot_product_attention(query, key, heads[2], mask)
            x = x + attended.transpose(1, 2).flatten(2)
        return self.head(x)


def loss_and_gradients(model, batches, causal):
    total = 0
    for packed in batches:
        ids, labels, positions, numbers = packed.values()
        outputs = model(ids, positions, numbers, causal=causal)
        total = total + cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum")
    return total, torch.autograd.grad(total, list(model.parameters()))


@pytest.mark.parametrize("causal", [True, False])
@given(sizes=lengths)
@settings(max_examples=15)
def test_loss_of_the_rows_is_that_of_the_documents(causal, sizes):
    with seed_context(0):
        model = Model().double()
    documents = documents_of(sizes)

    together = F.pack_documents(documents, LENGTH, shift_labels=True)
    apart = [F.pack_documents([one], len(one), shift_labels=True) for one in documents]

    assert_close(
        loss_and_gradients(model, [together], causal), loss_and_gradients(model, apart, causal)
    )


def test_masks_and_bounds_agree():
    numbers = torch.tensor([[1, 1, 2, 0], [1, 2, 2, 2]])
    bounds = F.cumulative_lengths(numbers).tolist()
    expected = torch.zeros(8, 8, dtype=torch.bool)
    for start, end in pairwise(bounds):
        expected[start:end, start:end] = True

    whole = F.document_mask(numbers, causal=False)
    assert bounds == [0, 2, 3, 4, 5, 8]
    assert torch.equal(torch.block_diag(*whole[:, 0].int()).bool(), expected)
    assert torch.equal(F.document_mask(numbers), whole.tril())


def test_equals_the_collator_of_hugging_face():
    transformers = pytest.importorskip("transformers")
    documents = sorted(documents_of([4, 3, 2]), key=len, reverse=True)
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    theirs = collate([{"input_ids": one.tolist()} for one in documents])

    ours = F.pack_documents(documents, sum(map(len, documents)))

    for name in ("input_ids", "labels", "position_ids"):
        assert torch.equal(ours[name], theirs[name])
    bounds = F.cumulative_lengths(ours["document_ids"])
    assert torch.equal(bounds, theirs["cu_seq_lens_q"].flatten())


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_gpt2_has_the_loss_of_the_documents(positions):
    pytest.importorskip("transformers")
    from tests.support.hugging_face import build

    model = build("gpt2") if positions == "learned" else F.rotary(build("gpt2"))
    documents = documents_of([5, 3, 4, 2])
    packed = F.pack_documents(documents, 8)
    outputs = model(
        packed["input_ids"],
        attention_mask=F.document_mask(packed["document_ids"]),
        position_ids=packed["position_ids"],
    ).logits

    ours = cross_entropy(outputs[:, :-1].flatten(0, 1), packed["labels"][:, 1:].flatten())

    apart = [
        cross_entropy(model(d[None]).logits[0, :-1], d[1:], reduction="sum") for d in documents
    ]
    assert_close(ours, sum(apart) / sum(len(d) - 1 for d in documents))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_documents_of_a_narrow_dtype_are_packed_like_those_of_int64(dtype):
    # More tokens than a position of 8 bits can number, and more documents than it can count.
    documents = [torch.arange(300).remainder(100), *torch.ones(300, 1).long()]
    narrow = [document.to(dtype) for document in documents]

    packed = F.pack_documents(narrow, 600, shift_labels=True)

    wide = F.pack_documents(documents, 600, shift_labels=True)
    assert all(torch.equal(packed[name], wide[name]) for name in wide)
    assert {one.dtype for one in packed.values()} == {torch.int64}
