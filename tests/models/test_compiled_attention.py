"""Changed attention of torchvision's blocks, compiled; Dynamo can't trace the checks of shapes."""

import pytest
import torch
from torch.testing import assert_close

from composable.functional import qk_norm
from tests.functional.test_blocks_of_timm import EncoderBlock, ShiftedWindowAttention, tokens


@pytest.mark.compile
@pytest.mark.parametrize("kind", [ShiftedWindowAttention, EncoderBlock])
def test_attention_of_torchvision_compiles_into_one_graph(kind):
    new, x = qk_norm(kind()), tokens()

    assert_close(torch.compile(new, backend="eager", fullgraph=True)(x), new(x))
