"""What counting bytes reaches on the text of the language comparison, in nats per byte.

    python benchmarks/counting.py

A table of n-grams predicts each byte from the n - 1 bytes before it, interpolated with the tables
of shorter contexts by the method of Witten and Bell (1991, method C). It is counted on the training
text and evaluated on the spans of the test text that the models are evaluated on. `xz` compresses
the whole test text.
"""

import lzma
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import small_gpt

Bytes = NDArray[np.int64]
LONGEST = 6
"""Bytes of an n-gram, at most 7: its index must fit 63 bits."""


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


def compressed(text: str) -> float:
    """Return the size of a text under `xz -9e`, in nats per byte."""
    content = text.encode()
    size = len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    return size * 8 * math.log(2) / len(content)


def main() -> None:
    """Print the losses."""
    texts = {part: "".join(files) for part, files in small_gpt.texts().items()}
    spans = [to_bytes("\n" + span) for span in small_gpt.spans("test", 32)]
    for n, loss in enumerate(counted(to_bytes(texts["train"]), spans), start=1):
        print(f"{n}-grams  {loss:.3f}")
    print(f"xz       {compressed(texts['test']):.3f}")


if __name__ == "__main__":
    main()
