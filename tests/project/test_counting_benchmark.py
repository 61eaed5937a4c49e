"""The tables of n-grams that the language comparison is held against."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import counting, data_hashes


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


def test_probabilities_of_kneser_ney_sum_to_1_and_follow_its_definition():
    text = np.array([0, 1, 0, 1, 0, 2, 3, 1, 0, 1, 2])
    table = counting.KneserNey.count(text, vocabulary=5, n=2)
    pairs, tokens = table.levels[1], table.levels[0]
    for before in ([0], [4], [2, 3], [0, 1, 0]):
        each = [table.log_probabilities(np.array([*before, token]))[-1] for token in range(5)]
        assert np.exp(each).sum() == pytest.approx(1)
    # Distinct tokens precede 0, 1, 2 and 3: 1; 0 and 3; 0 and 1; 2.
    assert tokens.totals == [1 + 2 + 2 + 1]
    assert pairs.totals.tolist() == [4, 4, 1, 1]
    lower = [(count + tokens.removed[0] / 5) / 6 for count in [*tokens.discounted, 0]]
    seen, context = pairs.find(np.array([0 * 5 + 1]))[0], 0
    wanted = (pairs.discounted[seen] + pairs.removed[context] * lower[1]) / pairs.totals[context]
    assert table.log_probabilities(np.array([0, 1]))[0] == pytest.approx(math.log(wanted))
    assert table.log_probabilities(np.array([4, 1]))[0] == pytest.approx(math.log(lower[1]))


def test_discounts_are_estimated_from_counts_of_counts():
    counts = np.repeat([1, 2, 3, 4, 9], [8, 4, 2, 1, 1])
    share = 8 / (8 + 2 * 4)
    assert counting._discounts(counts).tolist() == pytest.approx(
        [0, 1 - 2 * share * 4 / 8, 2 - 3 * share * 2 / 4, 3 - 4 * share * 1 / 2]
    )


def test_longer_ngrams_predict_a_text_of_long_repetitions_better():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 50, (40, 5))
    training, test = (words[rng.integers(0, 40, 2000)].ravel() for _ in range(2))
    losses = [
        -counting.KneserNey.count(training, 50, n).log_probabilities(test).mean() for n in (1, 2, 4)
    ]
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < losses[0] / 2


def test_data_that_differ_from_the_stored_hashes_are_named():
    known = {"package torch": "2.13.0+cpu", "test text": "a", "tokens of vocabulary 4096": "b"}

    data_hashes.check_data(known, known)
    for name in known:
        with pytest.raises(ValueError, match=re.escape(f"stored study: {name} (z instead of ")):
            data_hashes.check_data(known, {**known, name: "z"})


def test_no_ngram_is_in_two_rows():
    table = counting.KneserNey.count(np.array([[0, 1], [2, 0]]), vocabulary=3, n=2)

    assert table.levels[1].keys.tolist() == [0 * 3 + 1, 2 * 3 + 0]


def test_the_stored_losses_have_the_hashes_of_this_text():
    known = counting.stored()["data"]
    fast = {name: one for name, one in known.items() if not name.startswith("tokens")}

    data_hashes.check_data(fast, data_hashes.data_hashes(()))


@pytest.mark.campaign  # it counts the n-grams of the whole text
def test_counting_reaches_the_stored_losses():
    found, known = counting.measure(), counting.stored()

    for one in (*found["tokens"], *known["tokens"]):
        del one["seconds"]
    assert found == known


def test_the_protocol_has_the_stored_losses():
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    part = page[page.index("- The plot has the losses") : page.index("benchmarks/counting.py")]

    found = counting.stored()
    every = [*(one["nats_per_byte"] for one in found["tokens"]), *found["bytes"], found["xz"]]
    assert set(re.findall(r"\d\.\d{3}", part)) == {f"{one:.3f}" for one in every}
