"""ALiBi: the biases of the paper, and attention of one's own that takes them."""

import math
from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

import composable.functional as F
from composable import AmbiguousOrderWarning, Event, chain
from composable.algorithms import Alibi, SeqLengthWarmup
from tests.support.folded import folded
from tests.support.models import WORDS, same
from tests.support.observers import Watch
from tests.support.runs import LANGUAGE


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


# --- the algorithm ---


def texts(tokens):
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(1, WORDS, (4, tokens), generator=draw) for _ in range(3)]
    return [{"input_ids": x, "labels": x.roll(-1, 1)} for x in ids]


@pytest.mark.parametrize("scaling", [0.01, 0.1, 0.25, 0.29, 0.3, 0.57, 0.7])
@folded("tokens", [1, 2, 3, 7, 10, 16, 50, 100, 200])
def test_length_is_exact_and_has_a_token_that_pieces_share(tokens, scaling):
    (batch, *_), algorithm = texts(tokens), Alibi(64, scaling)
    state = LANGUAGE.trainer().state.evolve(batch=batch)

    new = algorithm(Event.AFTER_DATALOADER, state)

    expected = min(tokens, int(Fraction(str(scaling)) * tokens) + 1)
    short = F.set_sequence_length(batch, expected, truncate=False)
    assert new.batch["input_ids"].shape[1] == expected
    assert same(new.batch, short)
    assert (new is state) == (expected == tokens)


def test_scaling_of_one_has_no_event_of_batches():
    assert Alibi(8, 1).events == {Event.INIT}
    assert Alibi(8).events == {Event.INIT, Event.AFTER_DATALOADER}


def test_warns_of_ambiguous_order_with_a_warm_up():
    warm_up = SeqLengthWarmup(duration=0, max_seq_length=5, min_seq_length=1)

    def shape(algorithms):
        seen = Watch(Event.BEFORE_FORWARD, read=lambda state: state.inputs.shape)
        LANGUAGE.trainer(
            loader=texts(16), algorithms=algorithms, callbacks=[seen], max_duration="1ba"
        ).fit()
        return seen.values[0]

    with pytest.warns(AmbiguousOrderWarning, match="only their names put Alibi first"):
        assert shape([warm_up, Alibi(64, 0.5)]) == (8, 5)
    assert shape(chain(Alibi(64, 0.5), warm_up)) == (8, 5)
    assert shape(chain(warm_up, Alibi(64, 0.5))) == (8, 3)
