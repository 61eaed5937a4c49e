"""Does it pay? Compare arms of a byte-level GPT with two baselines.

The data are the source files of Python's standard library. The baselines are trained by AdamW: one
with the learned positions of GPT-2, one with rotary positions. `composable.compare` trains them, a
recipe and a method that does not pay, each on schedules of its own, and compares all of them with
the first baseline, and then with the second:

    python examples/demo.py                # about two minutes on two idle cores
    python examples/demo.py --seeds 5

Nothing is tuned here, so the ratios show how a comparison works, and not what the methods are
worth: the learning rates and batch sizes are those of earlier trials of 480 batches. Times are CPU
seconds of one thread, which on an idle core are those of the wall clock. The same command continues
an interrupted demo, and reuses finished runs.
"""

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

import composable
from composable.algorithms import Rotary, SeqLengthWarmup
from composable.recipes import small_gpt

try:
    import byte_gpt
except ModuleNotFoundError:  # imported as a part of `examples`, not run as a script
    from examples import byte_gpt

LEARNED, ROTARY, WARMUP = "learned positions", "rotary positions", "rotary, length warm-up"
ARMS: dict[str, Any] = {
    LEARNED: [],
    ROTARY: [Rotary()],
    WARMUP: [
        Rotary(),
        SeqLengthWarmup(duration=0.5, min_seq_length=32, max_seq_length=byte_gpt.CONTEXT),
    ],
    "small_gpt": small_gpt,
}
SETTINGS = {
    LEARNED: {"lr": [1e-3], "batch_size": [2]},
    ROTARY: {"lr": [2e-3], "batch_size": [2]},
    WARMUP: {"lr": [1e-3], "batch_size": [2]},
    "small_gpt": {"lr": [16e-3], "batch_size": [16]},
}
BATCHES = {LEARNED: [320], "small_gpt": [15, 40, 90]}  # the other arms have the first


def main() -> None:
    """Compare the arms with either baseline."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--workers", type=int, help="runs at a time (default: one for each core)")
    parser.add_argument("--share", type=float, default=1.0, help="share of the batches to train")
    parser.add_argument("--folder", type=Path, default=Path("runs/demo"), help="for results")
    options = parser.parse_args()
    try:
        byte_gpt.texts()
    except FileNotFoundError as error:
        sys.exit(str(error))

    durations = {
        arm: [f"{max(2, round(options.share * one))}ba" for one in batches]
        for arm, batches in BATCHES.items()
    }
    comparison = composable.compare(
        functools.partial(byte_gpt.build, eval_interval="0.2dur"),
        ARMS,
        metric="test/loss",
        baseline=LEARNED,
        durations=durations,
        tune=SETTINGS,
        seeds=options.seeds,
        repeat_baseline=False,
        workers=options.workers,
        folder=options.folder / "learned",
    )
    against_rotary = comparison.against(ROTARY)
    folder = against_rotary.save(options.folder / "rotary")
    print(f"\n{against_rotary.table()}\n\n{folder / 'report.html'} shows it with plots.")


if __name__ == "__main__":
    try:
        main()
    except ImportError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
