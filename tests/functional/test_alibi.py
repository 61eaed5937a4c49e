"""ALiBi: the biases of the paper, and attention of one's own that takes them."""

import math

import pytest
import torch
from torch.testing import assert_close

import composable.functional as F


def slopes_of_the_paper(heads):
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    power = 2 ** math.floor(math.log2(heads))
    return slopes_of_the_paper(power) + slopes_of_the_paper(2 * power)[0::2][: heads - power]


@pytest.mark.parametrize("heads", [*range(1, 18), 32, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_match_the_paper(heads, dtype):
    expected = torch.tensor(slopes_of_the_paper(heads), dtype=dtype)

    assert_close(F.alibi_slopes(heads, dtype=dtype), expected)


def test_slopes_of_eight_heads_are_powers_of_two():
    assert F.alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]


def test_bias_is_slope_times_distance():
    bias, slopes = F.alibi_bias(6, 3, past=2), F.alibi_slopes(6)

    assert bias.shape == (6, 3, 5)
    for head, query, key in torch.cartesian_prod(*map(torch.arange, bias.shape)):
        expected = -slopes[head] * abs(query + 2 - key)
        assert bias[head, query, key] == expected
