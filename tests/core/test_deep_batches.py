"""A batch that is too deep to be visited is refused with a clear error."""

import pytest
import torch

from composable._support.tree import map_tensors
from composable.batches.batch import count_examples, select_examples, split_batch

CALLS = {
    "map_tensors": lambda batch: map_tensors(torch.neg, batch),
    "count_examples": count_examples,
    "split_batch": lambda batch: split_batch(batch, [2, 2]),
    "select_examples": lambda batch: select_examples(batch, torch.tensor([0]), 4),
}


def nested(depth):
    batch = torch.zeros(4)
    for _ in range(depth):
        batch = [batch]
    return batch


def within_itself():
    batch = []
    batch.append(batch)
    return batch


@pytest.mark.parametrize("name", CALLS)
def test_refuses_deep_batches(name):
    CALLS[name](nested(100))

    for batch in (nested(2000), within_itself()):
        with pytest.raises(ValueError, match=r"recursion limit of .* contains itself"):
            CALLS[name](batch)
