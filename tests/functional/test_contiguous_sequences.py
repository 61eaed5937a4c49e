"""Shortened sequences are contiguous: models call `view` on them."""

import pytest
import torch

from composable.functional import set_sequence_length


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("preserve", [True, False])
def test_shortened_tensors_are_contiguous(truncate, preserve):
    names = ("input_ids", "labels", "attention_mask")
    batch = {name: torch.arange(14).reshape(2, 7) for name in names}
    short = set_sequence_length(
        batch, 3, truncate=truncate, preserve_end_of_sequence=preserve and truncate
    )
    assert all(tensor.is_contiguous() for tensor in short.values())
    assert short["labels"].view(-1).numel() == short["input_ids"].numel()
