"""Rows of documents that are packed again in each epoch."""

import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import composable.functional as F
from composable import Key
from composable.data import GlobalBatchSampler, PackedDocuments, seeded_batches
from tests.support.models import same, weights
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer

SIZES = [3, 0, 5, 9, 1, 4, 4]


def documents(sizes=SIZES):
    """Return documents whose tokens are all different."""
    return list(torch.arange(1, 1 + sum(sizes)).split(sizes))


def read(rows, epoch=0, **options):
    """Return the rows of an epoch."""
    loader = DataLoader(rows, batch_size=None, **options)
    return list(seeded_batches(loader, 17, epoch=epoch))


def stacked(rows):
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def lists(row):
    return {name: values.tolist() for name, values in row.items()}


def test_documents_are_cut_at_the_ends_of_rows():
    cut = [torch.tensor([5, 6, 7, 8, 9, 10]), torch.tensor([], dtype=torch.int64)]
    rows = PackedDocuments([*cut, torch.tensor([3])], 4, seed=17, shuffle=False, pad_id=99)

    assert [lists(row) for row in read(rows)] == [
        {
            "input_ids": [5, 6, 7, 8],
            "labels": [-100, 6, 7, 8],
            "position_ids": [0, 1, 2, 3],
            "document_ids": [1, 1, 1, 1],
        },
        {
            "input_ids": [9, 10, 3, 99],
            "labels": [-100, 10, -100, -100],
            "position_ids": [0, 1, 0, 0],
            "document_ids": [1, 1, 2, 0],
        },
    ]


@pytest.mark.parametrize("packing", ["concatenate", "first_fit"])
def test_shifted_labels_are_the_next_tokens_also_across_a_cut(packing):
    rows = stacked(
        read(PackedDocuments(documents(), 4, seed=3, packing=packing, shift_labels=True))
    )
    ids, labels = rows["input_ids"], rows["labels"]
    last = {int(document[-1]) for document in documents() if len(document)}

    assert torch.equal(labels, torch.where(labels == -100, -100, ids + 1))
    assert set(ids[(labels == -100) & (ids != 0)].tolist()) == last


@pytest.mark.parametrize("shift", [True, False])
def test_planned_rows_are_those_of_the_function_for_the_order_of_the_epoch(shift):
    sizes = [3, 5, 5, 9, 1, 4, 4, 4]
    given = documents(sizes)
    order = torch.randperm(8, generator=Key(3).fold("documents", 2).generator()).tolist()
    options = {"shift_labels": shift, "pad_id": 7, "ignore_index": -1}
    rows = PackedDocuments(given, 9, seed=3, packing="first_fit", **options)

    ours, expected = (
        stacked(read(rows, 2)),
        F.pack_documents([given[i] for i in order], 9, **options),
    )

    assert same(ours, expected)


def test_only_documents_that_are_longer_than_a_row_are_cut_in_planned_rows():
    rows = stacked(read(PackedDocuments(documents(), 4, seed=3, packing="first_fit")))
    parts = [
        ids[numbers == number].tolist()
        for ids, numbers in zip(rows["input_ids"], rows["document_ids"], strict=True)
        for number in range(1, int(numbers.max()) + 1)
    ]

    expected = [part.tolist() for document in documents() for part in document.split(4)]
    assert sorted(parts) == sorted(filter(None, expected))


def test_documents_have_other_neighbours_in_each_epoch():
    rows = PackedDocuments(documents([2] * 40), 10, seed=3)
    epochs = [stacked(read(rows, epoch))["input_ids"] for epoch in range(3)]
    neighbours = [{frozenset(row.tolist()) for row in epoch} for epoch in epochs]

    assert not neighbours[0] & neighbours[1]
    assert not neighbours[1] & neighbours[2]
    assert torch.equal(stacked(read(rows, 1))["input_ids"], epochs[1])
    fixed = PackedDocuments(documents([2] * 40), 10, seed=3, shuffle=False)
    for first, second in zip(read(fixed), read(fixed, 1), strict=True):
        assert same(first, second)


def test_rows_count_from_the_end_and_survive_a_copy():
    rows = PackedDocuments(documents(), 4, seed=3)

    assert same(rows[-1], rows[len(rows) - 1])
    assert same(pickle.loads(pickle.dumps(rows))[1], rows[1])
    with pytest.raises(IndexError):
        rows[len(rows)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_rows_are_int64_for_every_dtype_of_the_documents(dtype):
    narrow = [document.to(dtype) for document in documents()]

    for packing in ("concatenate", "first_fit"):
        ours = read(PackedDocuments(narrow, 4, seed=3, packing=packing, shift_labels=True))
        wide = read(PackedDocuments(documents(), 4, seed=3, packing=packing, shift_labels=True))
        assert same(stacked(ours), stacked(wide))
        assert all(values.dtype is torch.int64 for values in ours[0].values())


# --- runs ---


class Bigram(nn.Module):
    """Predicts each token from the one before."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1 + sum(SIZES), 1 + sum(SIZES))

    def forward(self, ids):
        return self.table(ids).movedim(-1, 1)


def pair(rows):
    """Collate to inputs and targets."""
    return torch.stack([r["input_ids"] for r in rows]), torch.stack([r["labels"] for r in rows])


@pytest.mark.parametrize("packing", ["concatenate", "first_fit"])
def test_run_resumes_bit_for_bit_in_mid_epoch_with_workers(packing, tmp_path):
    def run(workers=0, **options):
        rows = PackedDocuments(documents(), 4, seed=5, packing=packing, shift_labels=True)
        sampler = GlobalBatchSampler(rows, batch_size=3, seed=6)
        loader = DataLoader(
            rows,
            batch_sampler=sampler,
            collate_fn=pair,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        torch.manual_seed(0)
        return make_trainer(Bigram(), loader, max_duration="3ep", **options).fit()

    for workers in (0, 2):
        whole, _ = resumes_exactly(run, tmp_path / str(workers), 4, workers=workers)
    assert same(weights(whole.model), weights(run(workers=2).model))
