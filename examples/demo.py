"""Does it pay? Train a small GPT on PyTorch's own source, with and without two methods.

    python examples/demo.py                # about two minutes on two idle cores
    python examples/demo.py --seeds 5

How long until a small GPT predicts Python code so well that it would fit in a quarter of its size?
The baseline is AdamW with rotary positions. `small_gpt` is a recipe, ALiBi and Muon; SAM takes two
passes a step. `composable.compare` trains each on three schedules and compares the times to that
result. Nothing is tuned here, so the ratios show how a comparison works; docs/evidence.md has those
of a search. The same command continues an interrupted demo, and reuses finished runs.
"""

import argparse
import contextlib
import functools
import io
import math
import sys
from pathlib import Path
from typing import Any

import torch

import composable
from composable.algorithms import SAM
from composable.recipes import Recipe, small_gpt

try:
    import small_gpt as example
except ModuleNotFoundError:  # imported as a part of `examples`, not run as a script
    from examples import small_gpt as example

STEPS = (50, 100, 200)
EVALUATED_CONTEXT = 256
SPANS = 8  # of 4 kB of the test text
TARGET = 2 * math.log(2)  # nats per byte: 2 bits of 8
PROMPT = "def forward(self, "


def muon(lr: float = 16e-3, embedding_lr: float = 24e-3) -> Recipe:
    """Return the recipe, for sequences that the loader cuts."""
    length = EVALUATED_CONTEXT
    return small_gpt(
        lr=lr, adamw_lr=embedding_lr, max_sequence_length=length, sequence_length=length
    )


ARMS: dict[str, Any] = {"small_gpt": muon, "SAM": [SAM()]}


def samples(steps: int) -> tuple[str, str]:
    """Return what the recipe writes before and after one more training."""
    torch.set_num_threads(1)  # as in the compared runs: threads wait for one another if others run
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
    print(
        "How long until a small GPT predicts Python code so well that it would fit in a quarter of "
        "its size?\n"
    )
    example.training_tokens(example.Sizes().vocabulary)
    with contextlib.redirect_stdout(io.StringIO()):  # the whole table is in the report
        comparison = composable.compare(
            functools.partial(example.build, evaluated_spans=SPANS),
            ARMS,
            metric="test/nats_per_byte",
            mode="min",
            target=TARGET,
            durations=[f"{one}ba" for one in steps],
            tune={"small_gpt": {"evaluated_context": [EVALUATED_CONTEXT]}},
            seeds=options.seeds,
            repeat_baseline=False,
            workers=options.workers,
            folder=options.folder,
        )
    before, after = samples(steps[-1])
    print(f"--- the model before training\n{before}\n\n--- and after {steps[-1]} steps\n{after}\n")
    print(comparison.table(details=False))
    print(f"\nThe report: {options.folder / 'report.html'}")
    print(f"The plot: {options.folder / 'plot.png'}")


if __name__ == "__main__":
    try:
        main()
    except ImportError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
