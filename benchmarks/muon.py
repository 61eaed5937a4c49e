"""What a step of Muon costs, beside PyTorch's Muon, on the current device.

Both update equal matrices with equal gradients, in alternating blocks of CPU time. The largest
difference of a weight after two steps is shown beside.

    python benchmarks/muon.py
    python benchmarks/muon.py --threads 2 --blocks 30
    python benchmarks/muon.py --options

The figures in docs/optimizers.md come from this script.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from composable.functional import polar_express_coefficients
from composable.optim import Muon

CASES = {
    "4 layers of width 64": [(64, 64)] * 16 + [(256, 64), (64, 256)] * 4,
    "12 layers of width 128": [(128, 128)] * 48 + [(512, 128), (128, 512)] * 12,
    "6 layers of width 384": [(384, 384)] * 24 + [(1536, 384), (384, 1536)] * 6,
    "100 matrices of 16 x 16": [(16, 16)] * 100,
    "1 matrix of 512 x 512": [(512, 512)],
}


OPTIONS: dict[str, dict[str, Any]] = {
    "Muon": {},
    "Polar Express": {"ns_coefficients": polar_express_coefficients()},
    "equalize_rows": {"equalize_rows": True},
    "slow_momentum": {"slow_momentum": 0.98},
    "neuron_beta2": {"neuron_beta2": 0.95},
    "update_floor": {"update_floor": 0.35},
    "soap_beta2": {"soap_beta2": 0.9},
}


def main() -> None:
    """Parse the arguments, and print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--options", action="store_true", help="compare the options of Muon")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{processor(args.device)}, {args.threads} threads, torch {torch.__version__}\n")
    if args.options:
        compare_options(args)
        return
    print(
        f"{'matrices':<26} {'torch ms':>9} {'ours ms':>9} {'ratio':>7} {'of':>7} {'to':>7}  equal"
    )
    for name in args.cases:
        kinds: list[Callable[..., Any]] = [torch.optim.Muon, Muon]
        steps = [optimizer(kind, CASES[name], args.device) for kind in kinds]
        pairs = zip(*(held for _, held in steps), strict=True)
        apart = max(float((one - other).abs().max()) for one, other in pairs)
        theirs, ours = alternate([one.step for one, _ in steps], args.blocks, args.device)
        ratios = sorted(t / o for t, o in zip(theirs, ours, strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        figures = (1e3 * statistics.median(theirs), 1e3 * statistics.median(ours))
        spread = (statistics.median(ratios), low, high)
        print(
            f"{name:<26} " + " ".join(f"{one:>9.2f}" for one in figures),
            " ".join(f"{one:>7.2f}" for one in spread) + f"  {apart:.1e}",
        )


def compare_options(args: argparse.Namespace) -> None:
    """Print how many times the time of Muon a step takes with each option."""
    for name in args.cases:
        steps = [
            optimizer(partial(Muon, **options), CASES[name], args.device)[0].step
            for options in OPTIONS.values()
        ]
        plain, *others = alternate(steps, args.blocks, args.device)
        print(f"{name}: {1e3 * statistics.median(plain):.2f} ms")
        for option, times in zip(list(OPTIONS)[1:], others, strict=True):
            ratio = statistics.median(t / p for t, p in zip(times, plain, strict=True))
            print(f"  {option:<16} x {ratio:.2f}")


def processor(device: str) -> str:
    """Return the name of the device."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def optimizer(kind: Any, shapes: list[tuple[int, int]], device: str) -> tuple[Any, list[Any]]:
    """Return an optimizer after two steps, and its parameters."""
    generator = torch.Generator().manual_seed(0)
    held = [nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes]
    built = kind(held, lr=0.02)
    for _ in range(2):
        for p in held:
            p.grad = torch.randn(p.shape, generator=generator).to(device)
        built.step()
    return built, [p.detach().clone() for p in held]


def alternate(steps: list[Callable[[], Any]], blocks: int, device: str) -> list[list[float]]:
    """Time each step in turn, and return the seconds a call, by step."""
    times: list[list[float]] = [[] for _ in steps]
    for block in range(blocks + 1):
        for step, taken in zip(steps, times, strict=True):
            start = time.process_time() if device == "cpu" else time.perf_counter()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            now = time.process_time() if device == "cpu" else time.perf_counter()
            if block:
                taken.append(now - start)
    return times


if __name__ == "__main__":
    main()
