"""What a step of a schedule-free optimizer costs, beside the package and PyTorch's AdamW.

All update equal parameters with equal gradients, in alternating blocks of CPU time. The package is
schedulefree, with its default, `foreach`.

    python benchmarks/schedule_free.py
    python benchmarks/schedule_free.py --threads 2 --blocks 100

The figures in docs/optimizers.md come from this script.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from muon import alternate, processor
from schedulefree import AdamWScheduleFree as Package
from torch import nn

from composable.optim import AdamWScheduleFree

CASES = {
    "4 layers of width 64": [(64, 64), (64, 64), (256, 64), (64, 256), (64,)] * 4,
    "12 layers of width 384": [(384, 384), (1536, 384), (384, 1536), (384,)] * 12,
    "400 vectors of 64": [(64,)] * 400,
}


def main() -> None:
    """Parse the arguments, and print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=31)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{processor(args.device)}, {args.threads} threads, torch {torch.__version__}\n")
    print(f"{'parameters':<26} {'AdamW ms':>9} {'package':>9} {'ours':>9}  ours / package, AdamW")
    for name, shapes in CASES.items():
        kinds: list[Callable[..., Any]] = [torch.optim.AdamW, Package, AdamWScheduleFree]
        steps = [stepper(kind, shapes, args.device) for kind in kinds]
        taken = alternate(steps, args.blocks, args.device)
        ratios = [
            statistics.median(a / b for a, b in zip(taken[2], other, strict=True))
            for other in (taken[1], taken[0])
        ]
        print(
            f"{name:<26} " + " ".join(f"{1e3 * statistics.median(one):>9.2f}" for one in taken),
            "      " + " ".join(f"{one:>6.2f}" for one in ratios),
        )


def stepper(kind: Any, shapes: list[tuple[int, ...]], device: str) -> Callable[[], Any]:
    """Return the step of an optimizer with gradients."""
    generator = torch.Generator().manual_seed(0)
    held = [nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes]
    built = kind(held, lr=1e-3)
    if isinstance(built, Package):
        built.train()
    for p in held:
        p.grad = torch.randn(p.shape, generator=generator).to(device)
    return built.step  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
