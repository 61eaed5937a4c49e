"""Train a small convolutional network on handwritten digits, plainly and with six methods.

The data are the 1,797 scans of 8 x 8 pixels that ship with scikit-learn; nothing is downloaded.
The learning rates of the plain run and of the six methods together are chosen on validation scans.
Then the runs that are reported train on those as well, and a table and a plot compare their errors
on test scans: plain, plain for twice as long, all six methods, each of them alone, and all without
each of them.

    python examples/digits.py                      # about two minutes on two cores
    python examples/digits.py --seeds 3 --epochs 8

`build` and `arms` are what `composable compare` needs:

    composable compare examples/digits.py --metric test/accuracy --tuning-metric validation/accuracy
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import attrs
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable import Algorithm, Evaluator, Trainer
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from composable.loggers import InMemoryLogger
from composable.metrics import accuracy
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

try:
    import matplotlib as mpl
    from scipy import stats
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    mpl.use("Agg")  # no window is needed, and a display may be missing
    import matplotlib.pyplot as plt
except ModuleNotFoundError as error:
    sys.exit(f'{error}. Install the demo dependencies: pip install ".[demo]".')

TARGET = 0.99  # the number of runs that reach this accuracy is reported
RATES = (0.02, 0.05, 0.1, 0.2)
TUNING_SEED = 1000
PLAIN, LONGER, ALL = "plain", "plain, twice as long", "all six"


def methods() -> list[Algorithm]:
    """Return the six methods, in any order."""
    return [
        MixUp(alpha=0.2),
        LabelSmoothing(0.1),
        BlurPool(),
        EMA(half_life="30ba"),
        SelectiveBackprop(start=0.5, end=0.9, keep=0.5),
        GradientClipping("norm", 1.0),
    ]


arms = {ALL: methods()} | {type(one).__name__: [one] for one in methods()}


@lru_cache(maxsize=1)
def digits() -> dict[str, TensorDataset]:
    """Load a fixed split: 1,077 training scans, 360 validation scans and 360 test scans.

    "all" has the training and the validation scans.
    """
    images, labels = load_digits(return_X_y=True)
    split = partial(train_test_split, test_size=360, random_state=0)
    rest, test, rest_labels, test_labels = split(images, labels, stratify=labels)
    train, validation, train_labels, validation_labels = split(
        rest, rest_labels, stratify=rest_labels
    )
    parts = {
        "train": (train, train_labels),
        "all": (rest, rest_labels),
        "validation": (validation, validation_labels),
        "test": (test, test_labels),
    }
    return {
        name: TensorDataset(torch.tensor(x).float().reshape(-1, 1, 8, 8) / 16, torch.tensor(y))
        for name, (x, y) in parts.items()
    }


def convnet(seed: int) -> nn.Module:
    """Build a network of two convolutions, the second with a stride, and a linear layer."""
    with seed_context(seed):
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 10),
        )


def build(
    algorithms: Sequence[Algorithm],
    seed: int,
    *,
    lr: float = 0.1,
    max_duration: str = "12ep",
    part: str = "train",
) -> Trainer:
    """Return a Trainer of the network.

    Args:
        algorithms: The algorithms.
        seed: The seed of the weights, the order of the data and the algorithms.
        lr: The learning rate at the end of the warm-up.
        max_duration: The length of training.
        part: The scans to train on: "train", or "all" with those of validation.
    """
    data = digits()
    return Trainer(
        convnet(seed),
        train_dataloader=DataLoader(data[part], batch_size=64, shuffle=True),
        eval_dataloader=[
            Evaluator(name, DataLoader(data[name], batch_size=360))
            for name in ("validation", "test")
        ],
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=lr, momentum=0.9, weight_decay=5e-4),
        schedulers=cosine(warmup="1ep"),
        max_duration=max_duration,
        metrics={"accuracy": accuracy},
        algorithms=algorithms,
        progress_bar=False,
        seed=seed,
    )


@attrs.frozen
class Run:
    """One run to train."""

    arm: str
    algorithms: list[Algorithm]
    seed: int
    lr: float
    epochs: int
    part: str


@attrs.frozen
class Result:
    """The accuracies of a run, after every epoch."""

    run: Run
    validation: list[float]
    test: list[float]


def train(run: Run) -> Result:
    """Train once."""
    torch.set_num_threads(1)  # the network is too small to benefit from more threads
    trainer = build(
        run.algorithms, run.seed, lr=run.lr, max_duration=f"{run.epochs}ep", part=run.part
    )
    memory = trainer.add_callback(InMemoryLogger())
    trainer.fit()
    curves = [memory.series(f"metrics/{name}/accuracy") for name in ("validation", "test")]
    return Result(run, *curves)


def tune(pool: ProcessPoolExecutor, epochs: int) -> dict[str, float]:
    """Choose the learning rates of the plain run and of all six methods, on validation scans."""
    both = {PLAIN: [], ALL: methods()}
    runs = [
        Run(name, algorithms, TUNING_SEED, lr, epochs, "train")
        for (name, algorithms), lr in product(both.items(), RATES)
    ]
    results = list(pool.map(train, runs))
    return {
        name: max((one for one in results if one.run.arm == name), key=_validated).run.lr
        for name in both
    }


def _validated(result: Result) -> float:
    return result.validation[-1]


def plan(seeds: int, epochs: int, rates: dict[str, float]) -> list[Run]:
    """List the runs to report: all arms, each with all seeds."""
    six = methods()
    planned = [
        (PLAIN, [], rates[PLAIN], epochs),
        (LONGER, [], rates[PLAIN], 2 * epochs),
        (ALL, six, rates[ALL], epochs),
        *((f"only {_name(one)}", [one], rates[PLAIN], epochs) for one in six),
        *(
            (f"without {_name(one)}", [x for x in six if x is not one], rates[ALL], epochs)
            for one in six
        ),
    ]
    return [
        Run(name, algorithms, seed, lr, length, "all")
        for seed, (name, algorithms, lr, length) in product(range(seeds), planned)
    ]


def _name(algorithm: Algorithm) -> str:
    return type(algorithm).__name__


def summarize(results: list[Result]) -> list[dict]:
    """Compute the rows of the table: errors in percent, with 95 % intervals of the mean."""
    rows = []
    for arm in dict.fromkeys(one.run.arm for one in results):
        of_arm = [one for one in results if one.run.arm == arm]
        errors = [100 * (1 - one.test[-1]) for one in of_arm]
        rows.append(
            {
                "arm": arm,
                "lr": of_arm[0].run.lr,
                "epochs": of_arm[0].run.epochs,
                "seeds": len(errors),
                "error": statistics.mean(errors),
                "interval": _half_interval(errors),
                "errors": errors,
                "reached": sum(one.test[-1] >= TARGET for one in of_arm),
            }
        )
    return rows


def _half_interval(values: list[float]) -> float:
    """Return the half width of the 95 % confidence interval of the mean; 0 for one value."""
    if len(values) < 2:
        return 0.0
    error = statistics.stdev(values) / len(values) ** 0.5
    return float(stats.t.ppf(0.975, len(values) - 1)) * error


def format_table(rows: list[dict]) -> str:
    """Format the comparison as a table."""
    lines = [
        f"{'':25} {'lr':>5} {'epochs':>6} {'test error':>15}   runs with {TARGET:.0%} accuracy"
    ]
    for row in rows:
        error = f"{row['error']:.2f} ± {row['interval']:.2f} %"
        lines.append(
            f"{row['arm']:25} {row['lr']:5} {row['epochs']:6} {error:>15}   "
            f"{row['reached']} of {row['seeds']}"
        )
    return "\n".join(lines)


def draw(results: list[Result], rows: list[dict], path: Path) -> None:
    """Plot the test error by epoch, and the ablation."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), constrained_layout=True)
    for color, arm in zip(("#888888", "#000000", "#0072b2"), (PLAIN, LONGER, ALL), strict=True):
        curves = [[100 * (1 - x) for x in one.test] for one in results if one.run.arm == arm]
        by_epoch = list(zip(*curves, strict=True))
        epochs = range(1, len(by_epoch) + 1)
        left.plot(epochs, list(map(statistics.mean, by_epoch)), color=color, label=arm)
        low, high = list(map(min, by_epoch)), list(map(max, by_epoch))
        left.fill_between(epochs, low, high, color=color, alpha=0.15, lw=0)
    left.set(title="test error: mean, lowest and highest", xlabel="epoch", ylabel="%")
    left.set_yscale("symlog", linthresh=1)  # errors can be 0
    left.set_ylim(bottom=0)
    left.yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
    left.legend(frameon=False)
    places = range(len(rows))[::-1]
    for place, row in zip(places, rows, strict=True):
        right.plot(row["errors"], [place] * len(row["errors"]), ".", color="#bbbbbb", zorder=1)
        right.errorbar(row["error"], place, xerr=row["interval"], fmt="o", color="#0072b2", ms=5)
    right.set_yticks(places, [row["arm"] for row in rows])
    right.set(title="test error after the last epoch: mean, 95 % interval, runs", xlabel="%")
    right.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Tune, train all arms, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds of each arm")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2, help="number of parallel runs")
    parser.add_argument("--folder", type=Path, help="run folder (default: runs/digits-<time>)")
    options = parser.parse_args()
    folder = options.folder or Path("runs") / time.strftime("digits-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context) as pool:
        rates = tune(pool, options.epochs)
        runs = plan(options.seeds, options.epochs, rates)
        results = []
        for number, result in enumerate(pool.map(train, runs), 1):
            results.append(result)
            print(f"\r{number} of {len(runs)} runs", end="", file=sys.stderr, flush=True)
    rows = summarize(results)
    table = format_table(rows)
    composed = build(methods(), 0)
    print(f"\n\nPlan of all six:\n\n{composed.plan.explain()}\n\n{table}\n")

    (folder / "plan.txt").write_text(composed.plan.explain() + "\n")
    (folder / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "results.txt").write_text(table + "\n")
    draw(results, rows, folder / "errors.png")
    print(f"The table, the plot and the plan were written to {folder}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
