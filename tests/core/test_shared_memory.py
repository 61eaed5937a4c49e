"""`State.remember` converts the new value only, and keeps the memory read-only."""

import pytest
import torch
from torch import nn

from composable import State


def test_earlier_values_are_kept_and_all_are_read_only():
    first = State(nn.Linear(1, 1)).remember("a", {"x": {"y": 1}})
    second = first.remember("b", {"z": torch.ones(1)})

    assert second.memory["a"] is first.memory["a"]
    assert "b" not in first.memory
    for mapping in (second.memory, second.memory["a"]["x"], second.memory["b"]):
        with pytest.raises(TypeError, match="item assignment"):
            mapping["new"] = 1
