"""What wrappers add to a step of AdamW, in alternating blocks of CPU time.

    python benchmarks/wrappers.py
    python benchmarks/wrappers.py --threads 2 --blocks 100

The figures in docs/optimizers.md come from this script.
"""

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from muon import alternate, processor
from schedule_free import CASES, stepper

from composable.optim import (
    with_cautious_weight_decay,
    with_ema_nesterov,
    with_lookahead,
    with_momentum_warmup,
)

WRAPPERS = (with_ema_nesterov, with_cautious_weight_decay, with_momentum_warmup, with_lookahead)


def main() -> None:
    """Parse the arguments, and print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=31)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{processor(args.device)}, {args.threads} threads, torch {torch.__version__}\n")
    print("| parameters | AdamW (ms) |", " | ".join(one.__name__ for one in WRAPPERS), "|")
    for name, shapes in CASES.items():
        kinds: list[Any] = [torch.optim.AdamW, *(partial(wrapped, one) for one in WRAPPERS)]
        steps = [stepper(kind, shapes, args.device) for kind in kinds]
        base, *others = alternate(steps, args.blocks, args.device)
        ratios = [
            statistics.median(a / b for a, b in zip(one, base, strict=True)) for one in others
        ]
        cells = [f"{1e3 * statistics.median(base):.2f}", *(f"{ratio:.2f}" for ratio in ratios)]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


def wrapped(wrapper: Any, params: Any, **options: Any) -> torch.optim.Optimizer:
    """Return AdamW with a wrapper."""
    return wrapper(torch.optim.AdamW(params, **options))  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
