"""Seeds computed together, beside the same seeds one after another: ratios of CPU time.

Steps of both kinds alternate in turns of four within one run of `train_seeds`, as it decides by
itself; a figure is the ratio of their medians. The median of several runs is printed.

    python benchmarks/many_seeds.py             # all cases
    python benchmarks/many_seeds.py perceptron  # one model
"""

import statistics
import sys
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Trainer
from composable.comparison import Trial
from composable.comparison.seeds.many_seeds import train_seeds

RUNS = 5


def perceptron() -> nn.Module:
    """Return a perceptron for 64 numbers."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def convolutional() -> nn.Module:
    """Return a small convolutional net for 8 x 8 images."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


CASES = [
    (perceptron, torch.optim.SGD, (2, 8, 32)),
    (perceptron, torch.optim.AdamW, (2, 8, 32)),
    (convolutional, torch.optim.SGD, (2, 8)),
]


def ratio(model, optimizer, count: int) -> float:
    """Return the time of steps computed together, as a ratio to that of separate steps."""
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(64, 64, generator=generator), torch.randint(10, (64,), generator=generator))
        for _ in range(60)
    ]

    def build(algorithms, seed):
        return Trainer(
            model(),
            train_dataloader=batches,
            eval_dataloader=batches[:2],
            loss_fn=cross_entropy,
            optimizers=partial(optimizer, lr=0.01),
            algorithms=algorithms,
            seed=seed,
        )

    trials = [Trial(model.__name__, {}, "1ep", seed, "reporting") for seed in range(count)]
    many = train_seeds(build, {"algorithms": []}, trials)
    if many.ratio is None:
        raise SystemExit(f"not measured: {many.reason}")
    return many.ratio


def main() -> None:
    """Print a table of the ratios."""
    torch.set_num_threads(1)
    print("| model | optimizer | seeds | together / separate | separate / together |")
    print("|---|---|---:|---:|---:|")
    for model, optimizer, counts in CASES:
        if sys.argv[1:] and model.__name__ not in sys.argv[1:]:
            continue
        for count in counts:
            ratios = [ratio(model, optimizer, count) for _ in range(RUNS)]
            middle = statistics.median(ratios)
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            row = (model.__name__, optimizer.__name__, count)
            print(
                f"| {row[0]} | {row[1]} | {row[2]} | {middle:.2f} ({spread}) | {1 / middle:.1f} |"
            )


if __name__ == "__main__":
    main()
