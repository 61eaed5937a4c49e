"""The script of the hosts: a small Trainer, whose phases are traced, and hang where a file is."""

import argparse
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable import Callback, Trainer
from composable.algorithms import EMA
from composable.distributed import DDP, FSDP2

RANK = os.environ.get("RANK", "0")
PHASES = {"batch_end": "step", "before_save": "save", "eval_batch_start": "evaluation"}
ENGINES: dict[str, Any] = {"ddp": DDP, "exact": partial(DDP, exact=True), "fsdp2": FSDP2}


def reach(folder: Path, phase: str, batch: int, seconds: float) -> None:
    """Note that a phase began, and stay in it for a while, or for ever."""
    with (folder / f"trace{RANK}").open("a") as file:
        file.write(f"{phase} {batch}\n")
    time.sleep(seconds)
    while (folder / f"hang{RANK}").exists():
        time.sleep(0.1)


class Watch(Callback):
    """Notes the phases."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds

    def run_event(self, event: Any, state: Any, logger: Any) -> None:
        if event.value in PHASES:
            reach(self.folder, PHASES[event.value], state.timestamp.batch, self.seconds)


def main() -> None:
    """Train, and write the weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="for the traces and the weights")
    parser.add_argument("--saves", help="the folder of checkpoints; by default FOLDER/saves")
    parser.add_argument("--engine", choices=ENGINES, default="ddp")
    parser.add_argument("--timeout", type=float, default=30)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each phase")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--data", type=int, default=0, help="the seed of the data")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / f"here{RANK}").touch()
    while len(list(options.folder.glob("here*"))) < int(os.environ.get("WORLD_SIZE", "1")):
        time.sleep(0.02)  # a busy machine starts one of them seconds later
    reach(options.folder, "start", 0, options.seconds)
    draws = torch.Generator().manual_seed(options.data)
    data = TensorDataset(
        torch.randn(48, 8, generator=draws), torch.randint(4, (48,), generator=draws)
    )
    torch.manual_seed(1)
    trainer = Trainer(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)),
        train_dataloader=DataLoader(data, batch_size=8, shuffle=True),
        eval_dataloader=DataLoader(data, batch_size=8),
        eval_interval="4ba",
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.AdamW, lr=1e-2),
        algorithms=[EMA("4ba")],
        max_duration=f"{options.batches}ba",
        seed=17,
        callbacks=[Watch(options.folder, options.seconds)],
        save_folder=options.saves or str(options.folder / "saves"),
        save_interval="2ba",
        autoresume=True,
        progress_bar=False,
        parallel=ENGINES[options.engine](shards=2, timeout=options.timeout),
    )
    trainer.fit()
    trainer.export_weights(options.folder / "weights.safetensors", overwrite=True)


if __name__ == "__main__":
    main()
