"""Batches of Hugging Face's tokenizers, which are mappings of their own."""

import pytest
import torch
from transformers import BatchEncoding

from composable.functional import set_sequence_length


@pytest.mark.parametrize("options", [{}, {"truncate": False}, {"preserve_end_of_sequence": True}])
def test_encodings_keep_their_type(options):
    ids = torch.arange(14).reshape(2, 7)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    encoding = BatchEncoding({"input_ids": ids, "attention_mask": mask})

    short = set_sequence_length(encoding, 3, **options)

    assert type(short) is BatchEncoding
    plain = set_sequence_length(dict(encoding), 3, **options)
    assert torch.equal(short.input_ids, plain["input_ids"])
    assert torch.equal(short.attention_mask, plain["attention_mask"])
    assert encoding.input_ids is ids
