"""Train twice with all compatible methods, and compare the two runs bit for bit.

    python examples/everything.py images      # handwritten digits, which ship with scikit-learn
    python examples/everything.py language    # Python's own standard library, as bytes

This is a test of composability, not a recommended recipe: which methods help depends on the task.
It shows that the methods compose, in any order of the list, and that such a run is repeatable.
"""

import argparse
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import DataLoader, Dataset, TensorDataset

from composable import Algorithm, Trainer, chain, choose
from composable.algorithms import (
    EMA,
    SAM,
    SWA,
    Alibi,
    AugMix,
    BlurPool,
    ChannelsLast,
    ColOut,
    CutMix,
    CutOut,
    Factorize,
    GatedLinearUnits,
    GhostBatchNorm,
    GradientClipping,
    GyroDropout,
    LabelSmoothing,
    LayerFreezing,
    LowPrecisionGroupNorm,
    LowPrecisionLayerNorm,
    MixUp,
    ProgressiveResizing,
    RandAugment,
    SelectiveBackprop,
    SeqLengthWarmup,
    SqueezeExcite,
    StochasticDepth,
    WeightStandardization,
)
from composable.functional import (
    ResidualBlock,
    alibi_bias,
    register_alibi,
    register_gated_linear_units,
)
from composable.metrics import accuracy
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

Split = tuple[Dataset[Any], Dataset[Any]]


@attrs.frozen
class Task:
    """The data, model, algorithms and options of a task."""

    data: Callable[[], Split]
    model: Callable[[], nn.Module]
    algorithms: Callable[[], list[Algorithm]]
    optimizer: Any
    epochs: int
    batch_size: int = 64
    options: Mapping[str, Any] = {}


# --- images ---


class Residual(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(4, channels),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images to images of the same size."""
        return torch.relu(inputs + self.branch(inputs))


def residual_net() -> nn.Module:
    """Build a network with a layer for every surgery on image models."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        Residual(32),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        Residual(64),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(256),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(128, 10),
    )


def digits() -> Split:
    """Load 1,437 training scans and 360 test scans, in three channels of 16 x 16 pixels."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        sys.exit(f'{error}. Install the demo dependencies: pip install ".[demo]".')
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    scans = [torch.as_tensor(part).float().reshape(-1, 1, 8, 8) / 16 for part in parts[:2]]
    larger = [interpolate(scan, scale_factor=2).repeat(1, 3, 1, 1) for scan in scans]
    train, test = zip(larger, [torch.as_tensor(part) for part in parts[2:]], strict=True)
    return TensorDataset(*train), TensorDataset(*test)


def for_images() -> list[Algorithm]:
    """Return all methods for images.

    `choose` selects one of the incompatible methods per batch, and `chain` fixes the order where it
    matters. The order of the list has no effect.
    """
    block = ResidualBlock(
        Residual,
        shortcut=lambda block, inputs: torch.relu(inputs),
        residual=lambda block: block.branch,
    )
    return [
        chain(
            choose([RandAugment(severity=3, depth=1), AugMix(severity=2, width=2)]),
            ColOut(p_row=0.05, p_col=0.05),
            CutOut(length=0.2),
        ),
        choose([MixUp(alpha=0.2), CutMix(alpha=0.5)]),
        ProgressiveResizing(initial_scale=0.75, finetune_fraction=0.4, delay_fraction=0.2),
        LabelSmoothing(0.05),
        SelectiveBackprop(start=0.4, end=0.7, keep=0.75),
        chain(
            Factorize(factorize_convs=False, min_features=64, latent_features=0.5),
            BlurPool(min_channels=16),
            SqueezeExcite(latent_channels=16, min_channels=64),
            WeightStandardization(n_last_layers_ignore=1),
        ),
        StochasticDepth(target=block, drop_rate=0.1),
        GhostBatchNorm(ghost_batch_size=32),
        LowPrecisionGroupNorm(precision=torch.bfloat16),
        LowPrecisionLayerNorm(precision=torch.bfloat16),
        GyroDropout(p=0.1),
        ChannelsLast(),
        LayerFreezing(freeze_start=0.8, freeze_level=0.3),
        SAM(rho=0.02, interval=2),
        GradientClipping("norm", 1.0),
        EMA("20ba"),
    ]


# --- language ---

CONTEXT = 64


class Positions(nn.Module):
    """Learned position embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(CONTEXT, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Add position embeddings to token embeddings."""
        return tokens + self.table(torch.arange(tokens.shape[1], device=tokens.device))


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.biased = heads, False
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map token vectors to token vectors."""
        batch, tokens, width = inputs.shape
        parts = self.queries_keys_values(inputs).chunk(3, -1)
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        mask = torch.full((tokens, tokens), -torch.inf, device=inputs.device).triu(1)
        if self.biased:
            mask = mask + alibi_bias(self.heads, tokens, device=inputs.device)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.mix(mixed.transpose(1, 2).reshape(batch, tokens, width))


class FeedForward(nn.Sequential):
    """The feed-forward part of a block."""

    def __init__(self, width: int) -> None:
        wide = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        super().__init__(*wide, nn.Dropout(0.1))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.feed_forward = nn.Sequential(nn.LayerNorm(width), FeedForward(width))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map token vectors to token vectors."""
        hidden = inputs + self.attention(inputs)
        return hidden + self.feed_forward(hidden)


# How to convert the classes of this file.


@register_alibi(Positions)
def remove_positions(positions: nn.Module, max_sequence_length: int) -> nn.Module:
    """Remove position embeddings; the attention biases replace them."""
    return nn.Identity()


@register_alibi(Attention)
def add_biases(attention: Any, max_sequence_length: int) -> nn.Module:
    """Add biases by distance to the attention."""
    attention.biased = True
    return attention


register_gated_linear_units(FeedForward, linear="0", activation="1")


class ByteModel(nn.Module):
    """A small transformer that predicts the next byte."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = Positions(width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids `[batch, tokens]` to logits `[batch, 256, tokens]`."""
        hidden = self.blocks(self.positions(self.bytes(ids)))
        return self.head(self.norm(hidden)).transpose(1, 2)


def standard_library(size: int = 200_000) -> Split:
    """Load the start of standard library modules, in windows of 64 bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(path.name for path in folder.glob("*.py"))
    text = b"".join((folder / name).read_bytes()[:5000] for name in names)[: size + 1]
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    count = (len(ids) - 1) // CONTEXT
    windows = ids[: count * CONTEXT].view(count, CONTEXT)
    following = ids[1 : count * CONTEXT + 1].view(count, CONTEXT)
    rows = [
        {"input_ids": given, "labels": next_ones}
        for given, next_ones in zip(windows, following, strict=True)
    ]
    return rows[: count * 9 // 10], rows[count * 9 // 10 :]  # type: ignore[return-value]


def for_language() -> list[Algorithm]:
    """Return all methods for token sequences."""
    return [
        chain(
            SeqLengthWarmup(duration=0.3, min_seq_length=16, max_seq_length=CONTEXT, step_size=16),
            Alibi(max_sequence_length=2 * CONTEXT, train_sequence_length_scaling=0.5),
        ),
        LabelSmoothing(0.02),
        SelectiveBackprop(start=0.4, end=0.7, keep=0.75),
        chain(GatedLinearUnits(), Factorize(min_features=64, latent_features=0.5)),
        StochasticDepth(target=Block, drop_rate=0.05),
        LowPrecisionLayerNorm(precision=torch.bfloat16),
        GyroDropout(p=0.1),
        LayerFreezing(freeze_start=0.9, freeze_level=0.3),
        SAM(rho=0.02, interval=4),
        GradientClipping("norm", 1.0),
        SWA(swa_start="0.7dur", swa_end="1dur", update_interval="4ba"),
    ]


# --- both ---

TASKS = {
    "images": Task(
        digits,
        residual_net,
        for_images,
        partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=5e-4),
        epochs=12,
    ),
    "language": Task(
        standard_library,
        ByteModel,
        for_language,
        partial(torch.optim.AdamW, lr=3e-3),
        epochs=4,
        batch_size=32,
        options={"input_key": "input_ids", "target_key": "labels"},
    ),
}


def train(task: Task, seed: int, *, epochs: int | None = None, bar: bool = True) -> Trainer:
    """Train once."""
    train_set, test_set = task.data()
    with seed_context(seed):
        model = task.model()
    trainer = Trainer(
        model,
        train_dataloader=DataLoader(train_set, batch_size=task.batch_size, shuffle=True),
        eval_dataloader=DataLoader(test_set, batch_size=task.batch_size),
        loss_fn=cross_entropy,
        optimizers=task.optimizer,
        schedulers=cosine(warmup="0.1dur"),
        max_duration=epochs or task.epochs,
        metrics={"accuracy": accuracy},
        algorithms=task.algorithms(),
        progress_bar=bar,
        seed=seed,
        **task.options,
    )
    trainer.fit()
    return trainer


def digest(trainer: Trainer) -> str:
    """Hash the result of a run: the weights, their averages and the metrics."""
    state, bits = trainer.state, hashlib.sha256()
    averages = state.memory.values()
    tensors = [state.model.state_dict(), *(m for m in averages if isinstance(m, Mapping))]
    for mapping in tensors:
        for name, value in mapping.items():
            shown = value.detach().cpu().numpy().tobytes() if isinstance(value, Tensor) else value
            bits.update(f"{name}={shown!r}".encode())
    bits.update(repr(state.metrics).encode())
    return bits.hexdigest()


def main() -> None:
    """Train twice and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--epochs", type=int, help="number of epochs (default: about a minute)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # the networks are too small to benefit from more threads
    task = TASKS[given.task]
    runs = [train(task, given.seed, epochs=given.epochs) for _ in range(2)]
    print(runs[0].plan.explain())
    for number, run in enumerate(runs, 1):
        ((name, metrics),) = run.state.metrics.items()
        shown = ", ".join(f"{key} {float(value):.4f}" for key, value in metrics.items())
        print(f"run {number}: {name}: {shown}; {digest(run)[:16]}")
    if digest(runs[0]) != digest(runs[1]):
        sys.exit("the two runs differ")
    print("the two runs are bit-identical")


if __name__ == "__main__":
    main()
