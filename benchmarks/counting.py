"""What counting reaches on the text of the language comparison, in nats per byte.

    python benchmarks/counting.py            # count, and compare the data with the stored hashes
    python benchmarks/counting.py --store    # and write to docs/evidence/language/counting.json

Two kinds of tables are counted on the training text, and evaluated on the spans of the test text
that the models are evaluated on:

- n-grams of the tokens that the models read, interpolated by modified Kneser-Ney (Chen and Goodman
  1999), with the CPU seconds of counting;
- n-grams of bytes, interpolated by the method of Witten and Bell (1991, method C).

`xz` compresses the whole test text.
"""

import argparse
import json
import lzma
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

import small_gpt  # noqa: E402 (a script of examples/)
from data_hashes import VOCABULARIES, check_data, data_hashes  # noqa: E402

Bytes = NDArray[np.int64]
Tokens = NDArray[np.int64]
LONGEST = 6
"""Bytes of an n-gram, at most 7: its index must fit 63 bits."""
ORDERS = (3, 4, 5, 6)
"""The lengths of the longest n-grams of tokens."""
REPEATS = 3
"""The times that each table is counted: the cost is the least."""
STORED = ROOT / "docs/evidence/language/counting.json"


# --- n-grams of bytes ---


def to_bytes(text: str) -> Bytes:
    """Return the bytes of a text."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


def ngrams(text: Bytes, n: int) -> Bytes:
    """Return the index of the n-gram that ends at each byte, from the n-th on."""
    count = max(0, len(text) - n + 1)
    index = np.zeros(count, np.int64)
    for offset in range(n):
        index = index * 256 + text[offset : offset + count]
    return index


def lookup(keys: Bytes, values: Bytes, wanted: Bytes) -> Bytes:
    """Return the value of each key that is in a sorted table, and 0 for the others."""
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


def counted(training: Bytes, spans: Sequence[Bytes], longest: int = LONGEST) -> list[float]:
    """Return the loss of tables of n-grams, for n from 1 to the longest.

    Args:
        training: The text that is counted.
        spans: Texts of which each byte but the first is predicted.
        longest: The longest n-gram, 1 to 7 bytes.

    Returns:
        The mean loss in nats per byte of each table.
    """
    targets = np.concatenate([span[1:] for span in spans])
    frequencies = np.bincount(training, minlength=256) + 0.1
    probability = (frequencies / frequencies.sum())[targets]
    losses = [float(-np.log(probability).mean())]
    for n in range(2, longest + 1):
        keys, counts = np.unique(ngrams(training, n), return_counts=True)
        contexts, starts = np.unique(keys // 256, return_index=True)
        totals = np.add.reduceat(counts, starts)
        distinct = np.diff([*starts, len(keys)])
        # The first n - 2 targets of a span have a shorter context.
        wanted = np.concatenate(
            [np.concatenate([np.full(n - 2, -1), ngrams(span, n)]) for span in spans]
        )
        total = lookup(contexts, totals, wanted // 256)
        backoff = lookup(contexts, distinct, wanted // 256)
        found = lookup(keys, counts, wanted)
        longer = (found + backoff * probability) / np.maximum(total + backoff, 1)
        probability = np.where(total > 0, longer, probability)
        losses.append(float(-np.log(probability).mean()))
    return losses


# --- n-grams of tokens ---


@attrs.frozen(eq=False)
class Level:
    """The n-grams of one length, and what they leave to shorter ones."""

    keys: Tokens
    """The index of the context among the shorter n-grams, times the vocabulary, plus the token."""
    discounted: NDArray[np.float64]
    """The count of each n-gram, less its discount."""
    totals: NDArray[np.float64]
    """The counts of all n-grams of each context."""
    removed: NDArray[np.float64]
    """The discounts of all n-grams of each context, which shorter contexts distribute."""

    def find(self, wanted: Tokens) -> Tokens:
        """Return the index of each key, and -1 for absent ones."""
        at = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        return np.where(self.keys[at] == wanted, at, -1)


@attrs.frozen(eq=False)
class KneserNey:
    """Interpolated modified Kneser-Ney: the probability of a token after the n - 1 before it.

    An n-gram counts as often as it occurs, and a shorter one as often as distinct tokens precede
    it. Counts of 1, 2 and more have discounts of their own, estimated from the counts of counts.
    """

    vocabulary: int
    levels: tuple[Level, ...]
    """From single tokens to the longest n-grams."""

    @classmethod
    def count(cls, tokens: Tokens, vocabulary: int, n: int) -> "KneserNey":
        """Count the tokens of a text.

        Args:
            tokens: The tokens, at least n of them, or rows of tokens: no n-gram is in two rows.
            vocabulary: Their number of values.
            n: The length of the longest n-grams, at least 1.
        """
        tokens = np.atleast_2d(tokens)
        keys, ends, counts = [], [], []
        index = np.zeros((len(tokens), tokens.shape[1] + 1), np.int64)  # of each token's context
        for length in range(1, n + 1):
            found = index[:, :-1] * vocabulary + tokens[:, length - 1 :]
            unique, first, inverse, count = np.unique(
                found, return_index=True, return_inverse=True, return_counts=True
            )
            index = inverse.reshape(found.shape)
            keys.append(unique)
            counts.append(count)
            ends.append((first, index))
        for shorter in range(n - 1):
            # A shorter n-gram counts once for each longer one of which it is the end.
            first, index = ends[shorter + 1][0], ends[shorter][1]
            row, column = np.divmod(first, index.shape[1] - 1)
            counts[shorter] = np.bincount(index[row, column + 1], minlength=len(keys[shorter]))
        sizes = [1, *map(len, keys)]
        levels = map(cls._level, keys, counts, sizes, [vocabulary] * n)
        return cls(vocabulary, tuple(levels))

    @staticmethod
    def _level(keys: Tokens, counts: Tokens, contexts: int, vocabulary: int) -> Level:
        discounts = _discounts(counts)[np.minimum(counts, 3)]
        context = keys // vocabulary
        totals, removed = (
            np.bincount(context, weights=each, minlength=contexts) for each in (counts, discounts)
        )
        return Level(keys, counts - discounts, totals, removed)

    def log_probabilities(self, tokens: Tokens) -> NDArray[np.float64]:
        """Return the logarithm of the probability of each token but the first."""
        probability = np.full(len(tokens), 1 / self.vocabulary)
        context = np.zeros(len(tokens), np.int64)
        for level in self.levels:
            total = np.where(context < 0, 0, level.totals[context])
            found = level.find(np.where(context < 0, -1, context * self.vocabulary + tokens))
            count = np.where(found < 0, 0, level.discounted[found])
            longer = (count + level.removed[context] * probability) / np.where(total, total, 1)
            probability = np.where(total > 0, longer, probability)
            context = np.concatenate([[-1], found[:-1]])  # one token longer, one token later
        return np.log(probability[1:])


def _discounts(counts: Tokens) -> NDArray[np.float64]:
    """Return the discounts of counts of 0, 1, 2, and 3 or more."""
    one, two, three, four = (max(1, int((counts == k).sum())) for k in (1, 2, 3, 4))
    share = one / (one + 2 * two)
    found = [1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three]
    return np.maximum([0.0, *found], 0)


def counted_tokens(
    vocabulary: int, n: int, tokens: Tokens | None = None, repeats: int = REPEATS
) -> dict[str, Any]:
    """Return the test loss of n-grams of the tokens of a vocabulary, and what counting costs.

    Args:
        vocabulary: The size of the vocabulary.
        n: The length of the longest n-grams.
        tokens: The tokens that are counted, or rows of them. Default: the training text's.
        repeats: The times that they are counted: the cost is the least.
    """
    if tokens is None:
        tokens = small_gpt.training_tokens(vocabulary).numpy().astype(np.int64)
    seconds = []
    for _ in range(repeats):
        begun = time.process_time()
        table = KneserNey.count(tokens, vocabulary, n)
        seconds.append(time.process_time() - begun)
    encode, nats, size = small_gpt.tokenizer(vocabulary).encode, 0.0, 0
    for span in small_gpt.spans("test", 32):
        ids = np.array(encode("\n").ids + encode(span).ids)
        nats, size = nats - float(table.log_probabilities(ids).sum()), size + len(span.encode())
    return {"vocabulary": vocabulary, "n": n, "nats_per_byte": nats / size, "seconds": min(seconds)}


def compressed(text: str) -> float:
    """Return the size of a text under `xz -9e`, in nats per byte."""
    content = text.encode()
    size = len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    return size * 8 * math.log(2) / len(content)


# --- the stored losses ---


def measure() -> dict[str, Any]:
    """Return the losses of all tables, the size under `xz`, and the hashes of the data."""
    texts = {part: "".join(files) for part, files in small_gpt.texts().items()}
    spans = [to_bytes("\n" + span) for span in small_gpt.spans("test", 32)]
    return {
        "command": "python benchmarks/counting.py --store",
        "data": data_hashes(),
        "tokens": [counted_tokens(size, n) for size in VOCABULARIES for n in ORDERS],
        "bytes": counted(to_bytes(texts["train"]), spans),
        "xz": compressed(texts["test"]),
    }


def stored() -> dict[str, Any]:
    """Return the stored losses."""
    found: dict[str, Any] = json.loads(STORED.read_text())
    return found


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Describe losses, a line each."""
    for one in found["tokens"]:
        yield (
            f"{one['n']}-grams of {one['vocabulary']} tokens  {one['nats_per_byte']:.3f}  "
            f"{one['seconds']:.1f} CPU seconds"
        )
    yield from (f"{n}-grams of bytes  {loss:.3f}" for n, loss in enumerate(found["bytes"], start=1))
    yield f"xz  {found['xz']:.3f}"


def main() -> None:
    """Print the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", action="store_true", help=f"write to {STORED.relative_to(ROOT)}")
    store = parser.parse_args().store
    if not store:
        check_data(stored()["data"])
    found = measure()
    print(*lines(found), sep="\n")
    if store:
        STORED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
