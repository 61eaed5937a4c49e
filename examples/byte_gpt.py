"""A byte-level GPT on the source of Python's standard library: data that every Python has.

`build` returns a Trainer, as `composable compare` requires:

    composable compare examples/byte_gpt.py

The model has two layers, a width of 128, 4 heads and a context of 256 bytes. By default it is tuned
as GPT-2 is: learned positions, AdamW, clipping, a short warm-up and a linear decay. Every twelfth
file is for validation and another twelfth for the test. `main` trains it once:

    python examples/byte_gpt.py --duration 400ba
"""

import argparse
import functools
import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset

from composable import Algorithm, Evaluator, Trainer
from composable.algorithms import GradientClipping
from composable.functional import (
    Rotation,
    alibi_bias,
    register_alibi,
    register_rotary,
    rotary_tables,
    rotate_pairs,
)
from composable.optim import linear
from composable.utils.reproducibility import seed_context

CONTEXT, WIDTH, HEADS, LAYERS, BYTES = 256, 128, 4, 2, 128
EVALUATED = 64  # windows of validation and of the test: the same in each evaluation
SKIPPED = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}


# --- data ---


def sources() -> Iterator[Path]:
    """Yield the source files of the standard library, in sorted order.

    Raises:
        FileNotFoundError: This Python has none: its library is in a zip archive, for example.
    """
    folder = sysconfig.get_paths()["stdlib"]
    found = False
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(files):
            if name.endswith(".py"):
                found = True
                yield Path(path, name)
    if not found:
        raise FileNotFoundError(
            f"{folder} has no .py files, and the demo trains on the source of the standard "
            "library: use a Python whose library is a folder of source files."
        )


@functools.cache
def texts() -> dict[str, Tensor]:
    """Read the bytes of "train", "validation" and "test"; those above 127 are read as 127."""
    parts: dict[str, list[bytes]] = {"train": [], "validation": [], "test": []}
    for number, path in enumerate(sources()):
        part = {0: "validation", 6: "test"}.get(number % 12, "train")
        parts[part].append(path.read_bytes())
    return {
        name: torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8).clamp(max=127)
        for name, files in parts.items()
    }


class Windows(Dataset):
    """Windows of a text, one after the other, each with the byte that follows every byte."""

    def __init__(self, text: Tensor) -> None:
        self.rows = text.unfold(0, CONTEXT + 1, CONTEXT)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = self.rows[index].long()
        return row[:-1], row[1:]


def evaluators(interval: str = "0.1dur") -> list[Evaluator]:
    """Return the evaluators, on windows spread over the files: "validation" at the end, "test".

    Args:
        interval: How often the test loss is measured.
    """
    found = []
    for name, every in (("validation", "1dur"), ("test", interval)):
        windows = Windows(texts()[name])
        step = max(1, len(windows) // EVALUATED)
        spread = [windows[i * step] for i in range(min(EVALUATED, len(windows)))]
        found.append(Evaluator(name, DataLoader(spread, batch_size=32), eval_interval=every))
    return found


# --- the model ---


class Positions(nn.Embedding):
    """Adds a learned vector for each position."""

    def forward(self, x: Tensor) -> Tensor:
        """Add the vectors."""
        return x + self.weight[: x.shape[1]]


class Attention(nn.Module):
    """Causal self-attention. `Alibi` and `Rotary` set the attributes below."""

    rotation: Rotation | None = None
    biased = False

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Attend to this and earlier bytes."""
        length = x.shape[1]
        query, key, value = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if self.rotation is not None:
            cos, sin = rotation_tables(self.rotation, length, x.device)
            query, key = rotate_pairs(query, cos, sin), rotate_pairs(key, cos, sin)
        mask = causal_bias(length, x.device) if self.biased else None
        attended = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        return self.output(attended.transpose(1, 2).flatten(2))


@functools.lru_cache(maxsize=64)
def rotation_tables(rotation: Rotation, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of a rotation."""
    size = WIDTH // HEADS
    return rotary_tables(torch.arange(length, device=device), size, base=rotation.base)


@functools.lru_cache(maxsize=64)
def causal_bias(length: int, device: torch.device) -> Tensor:
    """Return the biases of ALiBi with a causal mask."""
    later = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
    return alibi_bias(HEADS, length, device=device).masked_fill(later, -torch.inf)


@register_alibi(Positions)
@register_rotary(Positions)
def remove_positions(positions: Positions, setting: object) -> nn.Module:
    """Remove learned positions."""
    return nn.Identity()


@register_alibi(Attention)
def add_bias(attention: Attention, max_sequence_length: int) -> nn.Module:
    """Add the biases of ALiBi."""
    attention.biased = True
    return attention


@register_rotary(Attention)
def add_rotation(attention: Attention, rotation: Rotation) -> nn.Module:
    """Rotate queries and keys."""
    attention.rotation = rotation
    return attention


class Block(nn.Module):
    """Attention and a feed-forward network, each after a norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = Attention()
        self.hidden = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        x = x + self.attention(self.norms[0](x))
        return x + self.hidden(self.norms[1](x))


def byte_gpt(seed: int, positions: str = "learned") -> nn.Module:
    """Build the model, initialized as GPT-2.

    Args:
        seed: The seed of its weights.
        positions: "learned" or "rotary".
    """
    if positions not in ("learned", "rotary"):
        raise ValueError(f"positions={positions!r} must be 'learned' or 'rotary'.")
    with seed_context(seed):
        blocks = [Block() for _ in range(LAYERS)]
        if positions == "rotary":
            for block in blocks:
                block.attention.rotation = Rotation()
        model = nn.Sequential(
            nn.Embedding(BYTES, WIDTH),
            *([Positions(CONTEXT, WIDTH)] if positions == "learned" else []),
            *blocks,
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, BYTES),
        )
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                last = name.endswith(("output.weight", "hidden.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * LAYERS) ** 0.5 if last else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
    return model


# --- training ---


def loss_of(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean loss in nats a byte, or with "none" that of each window."""
    losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
    return losses.view_as(targets).mean(-1) if reduction == "none" else losses


def build(  # noqa: PLR0913 (each is a hyperparameter of the comparison)
    algorithms: Sequence[Algorithm],
    seed: int,
    *,
    lr: float = 2e-3,
    batch_size: int = 4,
    positions: str = "learned",
    optimizers: Any = None,
    schedulers: Any = None,
    max_duration: str = "400ba",
    eval_interval: str = "0.1dur",
) -> Trainer:
    """Return a Trainer of the byte-level GPT.

    Args:
        algorithms: The algorithms. Gradients are clipped to a norm of 1 if none of them clips.
        seed: The seed of the weights, the order of the data and the algorithms.
        lr: The learning rate of AdamW, unless `optimizers` are given.
        batch_size: The number of windows of 256 bytes in a batch.
        positions: "learned" or "rotary".
        optimizers: A function from parameters to an optimizer, instead of AdamW.
        schedulers: Schedules, instead of 5 % warm-up and a linear decay to 0.
        max_duration: The length of training.
        eval_interval: How often the test loss is measured.
    """
    algorithms = list(algorithms)
    if not any(isinstance(one, GradientClipping) for one in algorithms):
        algorithms.append(GradientClipping("norm", 1.0))
    if optimizers is None:
        optimizers = functools.partial(
            torch.optim.AdamW, lr=lr, betas=(0.9, 0.99), weight_decay=0.1, fused=True
        )
    return Trainer(
        byte_gpt(seed, positions),
        train_dataloader=DataLoader(
            Windows(texts()["train"]), batch_size, shuffle=True, drop_last=True
        ),
        eval_dataloader=evaluators(eval_interval),
        loss_fn=loss_of,
        optimizers=optimizers,
        schedulers=linear(warmup="0.05dur") if schedulers is None else schedulers,
        algorithms=algorithms,
        max_duration=max_duration,
        seed=seed,
        progress_bar=False,
    )


def main() -> None:
    """Train once, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--positions", default="learned", choices=["learned", "rotary"])
    parser.add_argument("--duration", default="400ba")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trainer = build(
        [], options.seed, lr=options.lr, positions=options.positions, max_duration=options.duration
    )
    for name, results in trainer.fit().metrics.items():
        print(f"{name}: {results['loss']:.3f} nats a byte")


if __name__ == "__main__":
    main()
