"""Of the global generators, those of a computation are restored, and no others are touched."""

import pytest
import torch

from composable._support.generators import preserving_generators


def test_generators_are_restored_after_an_error():
    def fail():
        with preserving_generators([torch.device("meta")]) as seed:
            seed(17)
            raise KeyError

    before = torch.get_rng_state()

    with pytest.raises(KeyError):
        fail()

    assert torch.equal(torch.get_rng_state(), before)
