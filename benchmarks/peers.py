"""Measure the overhead of other trainers over a plain loop, as benchmarks/overhead.py does.

Trainers that are not installed are skipped: `tools/peer_environment FOLDER` makes an environment
with all of them. Features beyond the loop are disabled: loggers, progress bars, checkpoints.

    python benchmarks/peers.py
"""

import argparse
import importlib.util
import json
import logging
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from overhead import BLOCK, Interleaved, PlainLoop, optimizer_and_scheduler, tiny
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Trainer


def composable(model: nn.Module, loader: Interleaved) -> None:
    optimizer, scheduler = optimizer_and_scheduler(model)
    Trainer(
        model,
        train_dataloader=loader,
        loss_fn=cross_entropy,
        optimizers=optimizer,
        schedulers=scheduler,
        step_schedulers_every_batch=True,
        max_duration="1ep",
        seed=17,
        progress_bar=False,
    ).fit()


def plain(model: nn.Module, loader: Interleaved) -> None:
    optimizer, scheduler = optimizer_and_scheduler(model)
    for inputs, targets in loader:
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def accelerate(model: nn.Module, loader: Interleaved) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    optimizer, scheduler = optimizer_and_scheduler(model)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    for inputs, targets in loader:
        loss = cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def fabric(model: nn.Module, loader: Interleaved) -> None:
    from lightning.fabric import Fabric

    runner = Fabric(accelerator="cpu", devices=1)
    optimizer, scheduler = optimizer_and_scheduler(model)
    model, optimizer = runner.setup(model, optimizer)
    for inputs, targets in loader:
        loss = cross_entropy(model(inputs), targets)
        runner.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def lightning(model: nn.Module, loader: Interleaved) -> None:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer, scheduler = optimizer_and_scheduler(self.model)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), loader)


def ignite(model: nn.Module, loader: Interleaved) -> None:
    from ignite.engine import Events, create_supervised_trainer

    optimizer, scheduler = optimizer_and_scheduler(model)
    engine = create_supervised_trainer(model, optimizer, cross_entropy)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda _: scheduler.step())
    engine.run(loader, max_epochs=1)


def huggingface(model: nn.Module, loader: Interleaved) -> None:
    import transformers

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs, labels):
            return {"loss": cross_entropy(self.model(inputs), labels)}

    class Named:
        def __iter__(self):
            for inputs, targets in loader:
                yield {"inputs": inputs, "labels": targets}

        def __len__(self):
            return len(loader)

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return Named()

    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=Module(),
            args=transformers.TrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                max_grad_norm=0.0,
                save_strategy="no",
                logging_strategy="no",
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=[0],
            optimizers=optimizer_and_scheduler(model),
        ).train()


def composer(model: nn.Module, loader: Interleaved) -> None:
    from benchmarks.trainers import composer as peer

    class Module(peer.ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch):
            return self.model(batch[0])

        def loss(self, outputs, batch):
            return cross_entropy(outputs, batch[1])

    optimizer, scheduler = optimizer_and_scheduler(model)
    peer.composer.Trainer(
        model=Module(),
        train_dataloader=loader,
        optimizers=optimizer,
        schedulers=scheduler,
        step_schedulers_every_batch=True,
        max_duration="1ep",
        device_train_microbatch_size=32,
        device="cpu",
        progress_bar=False,
    ).fit()


NEEDS = {
    "fabric": ("lightning", "lightning"),
    "lightning": ("lightning", "lightning"),
    "ignite": ("ignite", "pytorch-ignite"),
    "accelerate": ("accelerate", "accelerate"),
    "huggingface": ("transformers", "transformers"),
    "composer": ("composer", "mosaicml"),
}
"""The module and the distribution of each."""
PEERS = [plain, composable, fabric, ignite, accelerate, lightning, huggingface, composer]


def measure(run: Callable[[nn.Module, Interleaved], None], blocks: int) -> float:
    """Compare a loop with the plain one: the median of the ratios of alternating blocks."""
    torch.manual_seed(0)
    batches = [(torch.randn(32, 64), torch.randint(10, (32,))) for _ in range(8)]
    model, twin = tiny(), tiny()
    twin.load_state_dict(model.state_dict())
    loader = Interleaved(batches, PlainLoop(twin, batches), blocks)
    run(model, loader)
    warm = max(2, blocks // 10)
    pairs = list(zip(loader.ours, loader.plain, strict=True))[warm:]
    ratios = [ours / plain for ours, plain in pairs]
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=60, help=f"blocks of {BLOCK} steps")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds over all trainers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    needs = {run: NEEDS.get(run.__name__, ("torch", "torch")) for run in PEERS}
    installed = [run for run, (name, _) in needs.items() if importlib.util.find_spec(name)]
    results: dict[str, list[float]] = {run.__name__: [] for run in installed}
    for _ in range(arguments.rounds):
        for run in installed:
            results[run.__name__].append(measure(run, arguments.blocks))
    for name, measured in results.items():
        rounds = sorted(round(ratio, 3) for ratio in measured)
        found = {"x_plain": statistics.median(rounds), "rounds": rounds}
        packages = {"plain": "torch", "composable": "composable"}
        package = packages.get(name) or NEEDS[name][1]
        print(f"{name} ({package} {version(package)})", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
