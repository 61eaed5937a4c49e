"""Train a small convolutional network on handwritten digits, with and without six methods.

The data are the 1,797 scans of 8 x 8 pixels that ship with scikit-learn; nothing is downloaded.
A plain run and a composed recipe are trained with several seeds, and a table compares the results:

    python examples/digits.py                      # about a minute on two cores
    python examples/digits.py --seeds 3 --epochs 8

The run folder contains the metrics of every run (JSON Lines), the plan, the table and the curves.
"""

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable import Evaluator, Trainer
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from composable.loggers import InMemoryLogger, JSONLinesLogger
from composable.metrics import accuracy
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

try:
    import matplotlib as mpl
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    mpl.use("Agg")  # no window is needed, and a display may be missing
    import matplotlib.pyplot as plt
except ModuleNotFoundError as error:
    sys.exit(f'{error}. Install the demo dependencies: pip install ".[demo]".')

TARGET = 0.98  # the time to this accuracy is reported


def methods() -> list:
    """Return the methods of the composed recipe, in any order."""
    return [
        MixUp(alpha=0.2),
        LabelSmoothing(0.1),
        BlurPool(),
        EMA(half_life="30ba"),
        SelectiveBackprop(start=0.5, end=0.9, keep=0.5),
        GradientClipping("norm", 1.0),
    ]


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Load a fixed split: 1,437 training scans and 360 test scans."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    tensors = [torch.as_tensor(part) for part in parts]
    x_train, x_test = ((x.float() / 16).reshape(-1, 1, 8, 8) for x in tensors[:2])
    y_train, y_test = (y.long() for y in tensors[2:])
    return TensorDataset(x_train, y_train), TensorDataset(x_test, y_test)


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


def train(name: str, algorithms: list, seed: int, epochs: int, folder: Path) -> dict:
    """Train once; return the results and the trainer."""
    train_set, test_set = digits()
    memory = InMemoryLogger()
    trainer = Trainer(
        convnet(seed),
        train_dataloader=DataLoader(train_set, batch_size=64, shuffle=True),
        eval_dataloader=Evaluator("test", DataLoader(test_set, batch_size=360)),
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedulers=cosine(warmup="1ep"),
        max_duration=epochs,
        metrics={"accuracy": accuracy},
        algorithms=algorithms,
        loggers=[memory, JSONLinesLogger(folder / f"{name}-seed{seed}.jsonl")],
        seed=seed,
    )
    print(f"\n{name}, seed {seed}", file=sys.stderr)
    state = trainer.fit()
    reached = [
        timestamp.total_wct
        for timestamp, metrics in memory.records
        if metrics.get("metrics/test/accuracy", 0.0) >= TARGET
    ]
    return {
        "trainer": trainer,
        "memory": memory,
        "accuracy": state.metrics["test"]["accuracy"],
        "steps_per_second": state.timestamp.batch / state.timestamp.total_wct,
        "seconds_to_target": reached[0] if reached else None,
    }


def summarize(name: str, runs: list[dict]) -> dict:
    """Compute a row of the table."""
    accuracies = [run["accuracy"] for run in runs]
    times = [run["seconds_to_target"] for run in runs if run["seconds_to_target"] is not None]
    return {
        "method": name,
        "seeds": len(runs),
        "accuracy_mean": statistics.mean(accuracies),
        "accuracy_spread": statistics.stdev(accuracies) if len(runs) > 1 else 0.0,
        "steps_per_second": statistics.median(run["steps_per_second"] for run in runs),
        "target": TARGET,
        "reached": len(times),
        "seconds_to_target": statistics.median(times) if times else None,
    }


def print_table(rows: list[dict]) -> str:
    """Format the comparison as a table."""
    lines = [
        f"{'':10} {'test accuracy':>18} {'steps/s':>9}   time to {TARGET:.0%} (median of the "
        "seeds that reached it)"
    ]
    for row in rows:
        time_to = row["seconds_to_target"]
        shown = "never" if time_to is None else f"{time_to:.2f} s"
        spread = f"{100 * row['accuracy_mean']:.2f} ± {100 * row['accuracy_spread']:.2f} %"
        lines.append(
            f"{row['method']:10} {spread:>18} {row['steps_per_second']:9.0f}   {shown} "
            f"({row['reached']} of {row['seeds']} seeds)"
        )
    return "\n".join(lines)


def draw(arms: dict[str, list[dict]], path: Path) -> None:
    """Plot loss, test accuracy and learning rate, one line per run."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), constrained_layout=True)
    panels = {
        "loss/train": "training loss (on modified batches)",
        "metrics/test/accuracy": "test accuracy",
        "lr": "learning rate",
    }
    for axis, (metric, title) in zip(axes, panels.items(), strict=True):
        for i, (name, runs) in enumerate(arms.items()):
            for j, run in enumerate(runs):
                records = [(t.batch, m[metric]) for t, m in run["memory"].records if metric in m]
                steps, values = zip(*records, strict=True)
                label = name if j == 0 else None
                axis.plot(steps, values, color=f"C{i}", alpha=0.6, lw=1, label=label)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylim(0.85, 1.0)
    axes[1].axhline(TARGET, color="grey", ls=":", lw=1)
    axes[0].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Train both recipes and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds per recipe")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--folder", type=Path, help="run folder (default: runs/digits-<time>)")
    arguments = parser.parse_args()
    folder = arguments.folder or Path("runs") / time.strftime("digits-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)

    torch.set_num_threads(1)  # the network is too small to benefit from more threads
    arms: dict[str, list[dict]] = {}
    for name, algorithms in {"plain": [], "composed": methods()}.items():
        arms[name] = [
            train(name, algorithms, seed, arguments.epochs, folder)
            for seed in range(arguments.seeds)
        ]
    plan = arms["composed"][0]["trainer"].plan
    table = print_table([summarize(name, runs) for name, runs in arms.items()])
    print(f"\nPlan of the composed runs:\n\n{plan.explain()}\n\n{table}\n")

    (folder / "plan.txt").write_text(plan.explain() + "\n")
    (folder / "plan.json").write_text(json.dumps(plan.to_dict(), indent=1) + "\n")
    rows = [summarize(name, runs) for name, runs in arms.items()]
    (folder / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "results.txt").write_text(table + "\n")
    draw(arms, folder / "curves.png")
    print(f"Metrics, plan, table and curves were written to {folder}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. The run folder contains the metrics so far.")
