"""Measure how long a 104 MB checkpoint blocks a step, relative to torch.save.

    python benchmarks/checkpoints.py [--rounds 9] [--folder FOLDER]

The savers run in turns. Times are wall-clock times, because they include the disk; the table shows
the median and the minimum.
"""

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss

from composable import Trainer
from composable.callbacks import CheckpointSaver

WIDTH = 1700  # three layers of this width, with Adam's two moments: 104 MB


def build() -> Trainer:
    """Train for one batch, so that the optimizer has a state."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    data = [(torch.randn(8, WIDTH), torch.randn(8, WIDTH))]
    trainer = Trainer(
        model,
        train_dataloader=data,
        max_duration="1ep",
        loss_fn=mse_loss,
        optimizers=partial(torch.optim.Adam, lr=1e-4),
        progress_bar=False,
        device="cpu",
        seed=17,
    )
    trainer.fit()
    return trainer


def measure(rounds: int, folder: Path) -> dict[str, list[float]]:
    """Measure the seconds of each saver, once per round."""
    trainer = build()
    tree = trainer._saving.capture(False)
    run = trainer._saving.describe(trainer.state)
    savers = {
        "save_in_background (blocking time)": CheckpointSaver(folder / "b", background=True),
        "save_folder": CheckpointSaver(folder / "f"),
    }
    for saver in savers.values():
        saver.folder.mkdir(parents=True)

    def torch_save(*, sync: bool) -> None:
        with (folder / "torch.pt").open("wb") as file:
            torch.save({"model": tree["model"], "optimizers": tree["optimizers"]}, file)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    ways = {
        "torch.save": partial(torch_save, sync=False),
        "torch.save and fsync": partial(torch_save, sync=True),
        **{
            name: partial(saver.manager.save, trainer.state, run, lambda weights_only: tree)
            for name, saver in savers.items()
        },
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, save in ways.items():
            began = time.perf_counter()
            save()
            times[name].append(time.perf_counter() - began)
            savers["save_in_background (blocking time)"].close()
    return times


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        times = measure(given.rounds, Path(folder))
    base = statistics.median(times["torch.save"])
    print(f"{'':38} {'median':>9} {'minimum':>9} {'ratio':>6}")
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{name:38} {median * 1e3:6.0f} ms {min(taken) * 1e3:6.0f} ms {median / base:6.2f}")


if __name__ == "__main__":
    main()
