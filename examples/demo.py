"""Does it pay? Train a small GPT on PyTorch's own source, with and without two methods.

    python examples/demo.py                # about two minutes on two idle cores
    python examples/demo.py --seeds 5

The baseline is AdamW with rotary positions. `small_gpt` is a recipe, ALiBi and Muon; SAM is a
method that needs two passes a step. `composable.compare` trains each on three schedules and
compares the times to the same results. Nothing is tuned here, so the ratios show how a comparison
works; docs/evidence.md has those of a search. The same command continues an interrupted demo, and
reuses finished runs.
"""

import argparse
import functools
import gzip
import math
import sys
from pathlib import Path
from typing import Any

import composable
from composable.algorithms import SAM
from composable.recipes import Recipe, small_gpt

try:
    import small_gpt as example
except ModuleNotFoundError:  # imported as a part of `examples`, not run as a script
    from examples import small_gpt as example

STEPS = (75, 150, 300)
EVALUATED_CONTEXT = 256
SPANS = 8  # of 4 kB of the test text
PROMPT = "def forward(self, "


def muon(lr: float = 16e-3, embedding_lr: float = 24e-3) -> Recipe:
    """Return the recipe, for sequences that the loader cuts."""
    length = EVALUATED_CONTEXT
    return small_gpt(
        lr=lr, adamw_lr=embedding_lr, max_sequence_length=length, sequence_length=length
    )


ARMS: dict[str, Any] = {"small_gpt": muon, "SAM": [SAM()]}


def gzip_nats() -> float:
    """Return what gzip needs for a byte of the test text, in nats."""
    spans = [span.encode() for span in example.spans("test", SPANS)]
    return 8 * math.log(2) * sum(len(gzip.compress(one)) for one in spans) / sum(map(len, spans))


def samples(steps: int) -> tuple[str, str]:
    """Return what the recipe writes before and after one more training."""
    trainer = example.build(seed=0, max_duration=f"{steps}ba", **muon().arguments())
    write = functools.partial(
        example.complete, trainer.state.model, PROMPT, example.Sizes().vocabulary, count=40
    )
    before = write()
    trainer.fit()
    return before, write()


def main() -> None:
    """Compare the arms with the baseline, and show what the model writes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--workers", type=int, help="runs at a time (default: one for each core)")
    parser.add_argument("--share", type=float, default=1.0, help="share of the steps to train")
    parser.add_argument("--folder", type=Path, default=Path("runs/demo"), help="for results")
    options = parser.parse_args()
    steps = [max(2, round(options.share * one)) for one in STEPS]
    target = gzip_nats()
    print(
        "How long does a small GPT take to predict Python code as well as gzip compresses it?\n"
        f"{target:.2f} nats per byte, by AdamW, by a recipe, and by a method that costs too much.\n"
    )
    example.training_tokens(example.Sizes().vocabulary)
    composable.compare(
        functools.partial(example.build, evaluated_spans=SPANS),
        ARMS,
        metric="test/nats_per_byte",
        mode="min",
        target=target,
        durations=[f"{one}ba" for one in steps],
        tune={"small_gpt": {"evaluated_context": [EVALUATED_CONTEXT]}},
        seeds=options.seeds,
        repeat_baseline=False,
        workers=options.workers,
        folder=options.folder,
    )
    before, after = samples(steps[-1])
    print(f"\n--- the model before training\n{before}\n\n--- and after {steps[-1]} steps\n{after}")
    print(f"\nThe plot: {options.folder / 'plot.png'}")


if __name__ == "__main__":
    try:
        main()
    except ImportError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
