"""Compare methods on a byte-level language model of the standard library's source.

The model has two layers, a width of 128, 4 heads and learned positions. It trains on windows of 256
bytes, four at a time, with AdamW, 5 % warm-up and linear decay, and is evaluated on files that it
isn't trained on. The arm "schedule-free" has no decay, and "muon" the schedule of AdamW. With a
batch size warm-up it sees the same windows, one at a time at first. Each arm gets the same learning
rates. The time is the CPU time of the fit.

    python benchmarks/language.py plain rotary --seeds 3

prints the loss in nats a byte for each arm, learning rate and seed, after --steps steps.
"""

import argparse
import functools
import math
import sysconfig
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import composable.functional as F
from composable import Algorithm, Trainer
from composable.algorithms import Rotary
from composable.functional import Rotation, register_rotary
from composable.optim import AdamWScheduleFree, Muon

CONTEXT, WIDTH, HEADS, ROWS = 256, 128, 4, 4


class Positions(nn.Embedding):
    """Adds to each token what is learned of its position."""

    def forward(self, x: Tensor) -> Tensor:
        """Add the positions."""
        return x + self.weight[: x.shape[1]]


class Attention(nn.Module):
    """Causal attention, which rotates queries and keys where it is converted."""

    rotation: Rotation | None = None

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to earlier tokens."""
        parts = self.parts(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        if self.rotation is not None:
            query, key = self.rotation(query), self.rotation(key)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


@register_rotary(Positions)
def remove_positions(positions: nn.Module, rotation: Rotation) -> nn.Module:
    """Remove learned positions."""
    return nn.Identity()


@register_rotary(Attention)
def add_rotation(attention: Attention, rotation: Rotation) -> nn.Module:
    """Rotate queries and keys."""
    attention.rotation = rotation
    return attention


class Block(nn.Module):
    """A block of attention and a feed-forward block, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention())
        self.hidden = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        x = x + self.attention(x)
        return x + self.hidden(x)


def byte_model() -> nn.Module:
    """Build the model, with small embeddings and outputs of small scale."""
    model = nn.Sequential(
        *(nn.Embedding(128, WIDTH), Positions(CONTEXT, WIDTH), Block(), Block()),
        *(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128)),
    )
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.Linear)):
            nn.init.normal_(module.weight, std=0.02)
    return model


@functools.cache
def texts() -> tuple[Tensor, Tensor]:
    """Read the source of the standard library: bytes to train on, and of every twelfth file."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        path for path in folder.rglob("*.py") if not {"test", "site-packages"} & set(path.parts)
    )
    training = [path for number, path in enumerate(files) if number % 12]
    return _bytes(training), _bytes(files[::12])


def _bytes(files: list[Path]) -> Tensor:
    """Read files as the ids of their bytes; those that aren't ASCII are one id."""
    text = bytearray(b"".join(path.read_bytes() for path in files))
    return torch.frombuffer(text, dtype=torch.uint8).clamp(max=127).long()


def windows(text: Tensor, sizes: list[int], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Draw batches of windows of these sizes, each with the bytes that follow."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - CONTEXT - 1, (sum(sizes),), generator=generator)
    rows = text[starts.unsqueeze(-1) + torch.arange(CONTEXT + 1)]
    return [(batch[:, :-1], batch[:, 1:]) for batch in rows.split(sizes)]


def batch_sizes(arm: str, rows: int) -> list[int]:
    """Return the batch sizes of a number of rows: constant, or growing in the first 30 %."""
    if arm != "batch size warm-up":
        return [ROWS] * (rows // ROWS)
    grow = {"duration": rows * 3 // 10, "min_batch_size": 1, "max_batch_size": ROWS}
    sizes: list[int] = []
    while sum(sizes) < rows:
        size = F.warmed_up_batch_size(sum(sizes), **grow)
        sizes.append(min(size, rows - sum(sizes)))
    return sizes


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss in nats a byte."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


ARMS: dict[str, Callable[[], list[Algorithm]]] = {
    "plain": list,
    "rotary": lambda: [Rotary()],
    "batch size warm-up": list,
    "muon": list,
    "schedule-free": list,
}


def optimizer(arm: str, rate: float, steps: int) -> Callable[..., torch.optim.Optimizer]:
    """Return the optimizer of an arm: AdamW, or one for which learning rates of AdamW fit."""
    betas, decay = (0.9, 0.99), {"lr": rate, "weight_decay": 0.1}
    if arm == "muon":
        return functools.partial(Muon, adjust_lr_fn="match_rms_adamw", adamw_betas=betas, **decay)
    if arm == "schedule-free":
        return functools.partial(AdamWScheduleFree, betas=betas, warmup_steps=steps // 20, **decay)
    return functools.partial(torch.optim.AdamW, betas=betas, **decay)


def run(arm: str, rate: float, seed: int, steps: int) -> tuple[float, float]:
    """Train, and return the CPU seconds and the loss on the files that were held out."""
    train, held_out = texts()
    torch.manual_seed(seed)

    sizes = batch_sizes(arm, steps * ROWS)
    seen = [0, *accumulate(sizes)]

    def factor(step: int) -> float:
        done = seen[step] / seen[-1]
        return min((done + 1 / steps) / 0.05, (1 - done) / 0.95)

    trainer = Trainer(
        byte_model(),
        train_dataloader=windows(train, sizes, seed),
        loss_fn=loss_of,
        optimizers=optimizer(arm, rate, steps),
        schedulers=None
        if arm == "schedule-free"
        else functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=factor),
        algorithms=ARMS[arm](),
        max_duration=f"{len(sizes)}ba",
        seed=seed,
        device="cpu",
        progress_bar=False,
    )
    started = time.process_time()
    state = trainer.fit()
    model = state.model.eval()
    if arm == "schedule-free":
        state.optimizers[0].eval()
    seconds = time.process_time() - started
    with torch.no_grad():
        losses = [loss_of(model(x), y).item() for x, y in windows(held_out, [ROWS] * 48, 0)]
    return seconds, math.fsum(losses) / len(losses)


def main() -> None:
    """Run the arms in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arms", nargs="*", default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'arm':<20} {'rate':>6} {'seed':>4} {'seconds':>8} {'loss':>7}")
    for seed in range(arguments.seeds):
        for rate in arguments.rates:
            for arm in arguments.arms:
                seconds, loss = run(arm, rate, seed, arguments.steps)
                print(f"{arm:<20} {rate:6.0e} {seed:4} {seconds:8.1f} {loss:7.3f}", flush=True)


if __name__ == "__main__":
    main()
