"""Batches that are mappings of other kinds than dictionaries."""

from collections import Counter, OrderedDict, UserDict, defaultdict

import pytest
import torch

from composable._support.tree import map_tensors
from composable.batches.batch import split_batch
from composable.batches.spec import BatchSpec

SPEC = BatchSpec("image", "label")
KINDS = [dict, Counter, OrderedDict, UserDict, lambda items: defaultdict(int, items)]


@pytest.mark.parametrize("kind", KINDS)
def test_replaces_one_value_of_a_mapping(kind):
    batch = kind({"image": 2, "label": 3})

    new = SPEC.replace(batch, targets=5)

    assert type(new) is type(batch)
    assert dict(new) == {"image": 2, "label": 5}
    assert dict(batch) == {"image": 2, "label": 3}


@pytest.mark.parametrize("kind", KINDS)
def test_rejects_unknown_key(kind):
    batch = kind({"image": 2})

    for use in (SPEC.targets, lambda batch: SPEC.replace(batch, targets=5)):
        with pytest.raises(ValueError, match="target_key='label' is not in the batch"):
            use(batch)
    assert dict(batch) == {"image": 2}


def test_maps_and_splits_outputs_of_transformers():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    batch = outputs.CausalLMOutput(logits=torch.arange(4.0).reshape(2, 2))

    new = map_tensors(lambda tensor: tensor + 1, batch)
    first, second = split_batch(batch, [1, 1])

    assert {type(one) for one in (new, first, second)} == {type(batch)}
    assert new.logits is new["logits"]
    assert torch.equal(new.to_tuple()[0], batch.logits + 1)
    assert (first.logits.tolist(), second.logits.tolist()) == ([[0, 1]], [[2, 3]])
    assert batch.logits.sum() == 6
