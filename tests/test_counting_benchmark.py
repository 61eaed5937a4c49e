"""The tables of n-grams that the language comparison is held against."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import counting


def test_ngrams_are_indexed_by_their_bytes():
    text = counting.to_bytes("abca")

    assert counting.ngrams(text, 2).tolist() == [
        256 * ord(a) + ord(b) for a, b in ("ab", "bc", "ca")
    ]
    assert counting.ngrams(text, 5).tolist() == []


def test_lookup_returns_0_for_absent_keys():
    keys, values = np.array([2, 5, 9]), np.array([20, 50, 90])

    assert counting.lookup(keys, values, np.array([9, 1, 5, 10])).tolist() == [90, 0, 50, 0]


def test_losses_are_those_of_witten_and_bell():
    training, span = "abab" + "ac", "xab"
    frequencies = {letter: training.count(letter) + 0.1 for letter in "ab"}
    total = len(training) + 25.6
    unigram = {letter: count / total for letter, count in frequencies.items()}
    # "x" was never followed by anything; "a" was followed by "b" twice and by "c" once.
    pair = (2 + 2 * unigram["b"]) / (3 + 2)

    losses = counting.counted(counting.to_bytes(training), [counting.to_bytes(span)], longest=2)

    assert losses == pytest.approx(
        [
            -(math.log(unigram["a"]) + math.log(unigram["b"])) / 2,
            -(math.log(unigram["a"]) + math.log(pair)) / 2,
        ]
    )


def test_xz_counts_nats_per_byte():
    assert counting.compressed("a" * 100_000) < 0.01
    noise = np.random.default_rng(0).integers(0, 64, 20_000)
    text = "".join(chr(48 + int(one)) for one in noise)

    assert counting.compressed(text) == pytest.approx(math.log(64), rel=0.05)


@pytest.mark.campaign  # it counts the n-grams of the whole text
def test_the_protocol_has_the_losses_of_counting(capsys):
    page = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text()

    counting.main()

    losses = re.findall(r"\d\.\d{3}", capsys.readouterr().out)
    line = page[page.index("- The plot has the losses") : page.index("benchmarks/counting.py")]
    assert re.findall(r"\d\.\d{3}", line) == losses
