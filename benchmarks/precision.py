"""What each precision costs and changes, on the current device.

A perceptron is trained on scans of digits from equal seeds in each precision, which shows what
changes in the numbers. Then large steps of a perceptron and of a transformer are timed in
alternating blocks, as ratios to fp32, which shows what changes in speed and memory.

    python benchmarks/precision.py                    # the CPU, or the GPU if there is one
    python benchmarks/precision.py --device cpu --seeds 5

The figures in docs/precision.md come from this script.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from composable import Precision, Trainer
from composable.metrics import accuracy
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

sys.path.insert(0, str(Path(__file__).parent.parent))

from examples.digits import digits

NAMES = ("fp32", "tf32", "amp_bf16", "amp_fp16", "bf16", "fp16")
BLOCK, BLOCKS = 10, 12


def main() -> None:
    """Parse the arguments, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    names = [name for name in NAMES if available(name, device)]
    shown = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{shown}, torch {torch.__version__}\n")
    compare_results(names, device, range(args.seeds))
    for build in (perceptron, transformer):
        compare_speed(names, device, build)


def available(name: str, device: torch.device) -> bool:
    try:
        Precision(name).on(device)
    except ValueError as error:
        print(f"not measured: {error}")
        return False
    return True


# --- results ---


def compare_results(names: list[str], device: torch.device, seeds: range) -> None:
    """Print the accuracy of each precision, and how far its first losses are from those of fp32."""
    train, test = (digits()[part] for part in ("train", "test"))
    print("precision   accuracy after 10 epochs    first loss, relative    weights, relative")
    plain: dict[int, tuple[float, torch.Tensor]] = {}
    for name in names:
        scores, losses, distances = [], [], []
        for seed in seeds:
            score, loss, weights = fit(name, device, seed, train, test)
            plain.setdefault(seed, (loss, weights))
            scores.append(100 * score)
            losses.append(abs(loss / plain[seed][0] - 1))
            distances.append(float((weights - plain[seed][1]).norm() / plain[seed][1].norm()))
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(
            f"{name:10}  {statistics.mean(scores):6.2f} +- {spread:.2f} %"
            f"{max(losses):24.1e}{statistics.mean(distances):21.1e}"
        )
    print()


def fit(name: str, device: torch.device, seed: int, train, test):
    """Train, and return the accuracy, the first loss, and all weights in float32."""
    losses = []

    def first(event, state, logger) -> None:
        if event.value == "batch_end" and not losses:
            losses.append(state.loss)

    with seed_context(seed):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    trainer = Trainer(
        model,
        train_dataloader=DataLoader(train, 64, shuffle=True),
        eval_dataloader=DataLoader(test, 360),
        eval_interval=None,
        metrics={"accuracy": accuracy},
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        schedulers=cosine(),
        max_duration="10ep",
        callbacks=[first],
        precision=name,
        device=str(device),
        progress_bar=False,
        seed=seed,
    )
    state = trainer.fit()
    weights = torch.cat([p.detach().float().flatten().cpu() for p in state.model.parameters()])
    return trainer.eval()["eval"]["accuracy"], float(losses[0]), weights


# --- speed ---


def perceptron() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Build a perceptron, and a batch."""
    layers = [nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2048, 10)), (
        torch.randn(256, 1024),
        torch.randint(10, (256,)),
    )


class Classifier(nn.Module):
    """A small transformer of token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)).mean(1))


def transformer() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Build a transformer, and a batch."""
    return Classifier(), (torch.randint(1000, (16, 128)), torch.randint(10, (16,)))


def compare_speed(
    names: list[str], device: torch.device, build: Callable[[], tuple[nn.Module, tuple]]
) -> None:
    """Time blocks of steps in turn, and print the medians as ratios to fp32."""
    if device.type == "cpu":
        names = [name for name in names if "fp16" not in name]  # slow there
    steps = {name: stepper(name, device, *build()) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    peaks = {}
    for _ in range(BLOCKS):
        for name, step in steps.items():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            start = time.perf_counter()
            for _ in range(BLOCK):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                peaks[name] = torch.cuda.max_memory_allocated(device) / 2**20
            times[name].append((time.perf_counter() - start) / BLOCK)
    print(f"{build.__name__:12} ms a step   time, ratio to fp32   peak memory, MiB (all models)")
    for name in names:
        ratios = [mine / plain for mine, plain in zip(times[name], times["fp32"], strict=True)]
        print(
            f"{name:12}{1e3 * statistics.median(times[name]):9.2f}"
            f"{statistics.median(ratios[2:]):18.2f}{peaks.get(name, float('nan')):24.0f}"
        )
    print()


def stepper(name: str, device: torch.device, model: nn.Module, batch) -> Callable[[], object]:
    """Return a function that trains on one batch."""
    trainer = Trainer(
        model,
        train_dataloader=[batch],
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        max_duration="1ba",
        precision=name,
        device=str(device),
        progress_bar=False,
        seed=0,
    )
    state = trainer.fit().evolve(batch=tuple(part.to(device) for part in batch))
    return lambda: trainer.train_batch(state)


if __name__ == "__main__":
    main()
