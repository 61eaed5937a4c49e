"""A small GPT on the Python source in PyTorch's own wheel: data that every installation has.

`build` returns a Trainer, as `composable compare` requires. Vocabulary, depth, width, context,
batch and the learning rate of the embeddings are hyperparameters like any other, so that a baseline
may choose them. Results are in nats per byte, which makes vocabularies comparable:

    python examples/small_gpt.py --duration 400ba

Of every twelve files one is for validation, one for the test and two are for training, 7 MB in all.
The first run with a vocabulary trains its tokenizer, which takes about 15 seconds, and keeps the
tokens in ~/.cache/composable.
"""

import argparse
import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset

from composable import Algorithm, Evaluator, Trainer
from composable.algorithms import GradientClipping
from composable.data import write_token_file
from composable.functional import (
    Rotation,
    alibi_bias,
    register_alibi,
    register_attention,
    register_projections,
    register_rotary,
    rotary_tables,
    rotate_pairs,
)
from composable.metrics import OfLoss
from composable.optim import linear, muon_groups
from composable.utils.reproducibility import seed_context

PARTS = {0: "validation", 3: "train", 6: "test", 9: "train"}  # of every twelve files
SPAN = 4096  # bytes of validation and of the test that are evaluated together
IGNORED = -100
HEAD = 32  # the width of an attention head
ENCODED = 256  # files that are tokenized together


# --- data ---


def files(folder: Path) -> list[Path]:
    """Return the Python files in a folder, in sorted order, without tests and packages."""
    skipped = {"test", "tests", "site-packages"}
    found = folder.rglob("*.py")
    return sorted(one for one in found if not skipped & set(one.relative_to(folder).parts))


def read_parts(folder: Path) -> dict[str, list[str]]:
    """Read the files of "train", "validation" and "test" of a folder."""
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for number, path in enumerate(files(folder)):
        if part := PARTS.get(number % 12):
            parts[part].append(path.read_text(encoding="utf-8"))
    return parts


SOURCE: tuple[str, Callable[[], dict[str, list[str]]]] = (
    f"torch-{torch.__version__}",
    functools.partial(read_parts, Path(torch.__file__).parent),
)
"""The name of the text, by which its tokens are cached, and a function that reads it."""


@functools.cache
def texts() -> dict[str, list[str]]:
    """Return the files of "train", "validation" and "test"."""
    return SOURCE[1]()


def spans(part: str, count: int) -> list[str]:
    """Return spans of a part of the text, spread over its files: the same for any vocabulary."""
    text = "".join(texts()[part]).encode()
    starts = range(0, len(text) - SPAN, max(1, (len(text) - SPAN) // count))
    return [text[at : at + SPAN].decode(errors="ignore") for at in starts[:count]]


@functools.cache
def tokenizer(vocabulary: int) -> Tokenizer:
    """Return the tokenizer of a vocabulary, trained on the training text: 256 is bytes alone."""
    path = cached(f"{vocabulary}.json")
    if not path.exists():
        new = Tokenizer(BPE())
        new.pre_tokenizer = ByteLevel(add_prefix_space=False)
        new.decoder = decoders.ByteLevel()
        trainer = BpeTrainer(
            vocab_size=vocabulary,
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        )
        new.train_from_iterator(texts()["train"], trainer)
        replace(path, new.to_str().encode())
    return Tokenizer.from_file(str(path))


@functools.cache
def training_tokens(vocabulary: int) -> Tensor:
    """Return the tokens of the training text."""
    path = cached(f"{vocabulary}.tokens")
    if not path.exists():
        encode, files = tokenizer(vocabulary).encode_batch, texts()["train"]
        ids = [
            np.array(encoding.ids, np.uint16)
            for at in range(0, len(files), ENCODED)
            for encoding in encode(files[at : at + ENCODED])
        ]
        replace(path, np.concatenate(ids).tobytes())
    return torch.from_numpy(np.fromfile(path, np.uint16))


def write_tokens(folder: Path, vocabulary: int) -> None:
    """Write the tokens of training to two files, and those of validation to one."""
    encoded = tokenizer(vocabulary).encode_batch(texts()["validation"])
    validation = torch.tensor([token for one in encoded for token in one.ids])
    files = {"val": [validation], "train": training_tokens(vocabulary).chunk(2)}
    for part, some in files.items():
        for number, tokens in enumerate(some):
            write_token_file(folder / f"python_{part}_{number:06}.bin", tokens)


def cached(name: str) -> Path:
    """Return the path of a cached file, which belongs to one version of the text."""
    folder = cache_folder() / SOURCE[0]
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def cache_folder() -> Path:
    """Return the folder of all cached files."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "composable"


def replace(path: Path, content: bytes) -> None:
    """Write a file that other processes may write at the same time."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


class Windows(Dataset):
    """Windows of the training tokens, none of which overlap, with the token after each."""

    def __init__(self, tokens: Tensor, context: int) -> None:
        self.rows = tokens.unfold(0, context + 1, context)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = self.rows[index].long()
        return row[:-1], row[1:]


def evaluator(
    name: str, vocabulary: int, context: int, count: int = 32, interval: str = "1dur"
) -> Evaluator:
    """Return an evaluator of nats per byte, which predicts every byte of the spans once.

    Args:
        name: "validation" or "test".
        vocabulary: The size of the vocabulary.
        context: The number of tokens of a window.
        count: The number of spans.
        interval: How often it is evaluated.
    """
    encode = tokenizer(vocabulary).encode
    before = encode("\n").ids
    windows, tokens, size = [], 0, 0
    for span in spans(name, count):
        ids = torch.tensor(before + encode(span).ids)
        tokens, size = tokens + len(ids) - 1, size + len(span.encode())
        windows += [
            window(ids[at : at + context + 1], context) for at in range(0, len(ids) - 1, context)
        ]
    nats = OfLoss(functools.partial(torch.mul, torch.tensor(tokens / size, dtype=torch.float64)))
    loader = DataLoader(windows, batch_size=max(1, 8192 // context))
    return Evaluator(name, loader, metrics={"nats_per_byte": nats}, eval_interval=interval)


def window(ids: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets; those beyond the end of the tokens are 0 and ignored."""
    inputs, targets = torch.zeros(context, dtype=torch.long), torch.full((context,), IGNORED)
    inputs[: len(ids) - 1], targets[: len(ids) - 1] = ids[:-1], ids[1:]
    return inputs, targets


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

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = width // HEAD
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend to this and earlier tokens."""
        length = x.shape[1]
        query, key, value = (
            part(x).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if self.rotation is not None:
            cos, sin = rotation_tables(self.rotation, length, x.device)
            query, key = rotate_pairs(query, cos, sin), rotate_pairs(key, cos, sin)
        mask = causal_bias(query.shape[1], length, x.device) if self.biased else None
        attended = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        return self.output(attended.transpose(1, 2).flatten(2))


register_attention(Attention)
register_projections(Attention, value="value", output="output")


@functools.lru_cache(maxsize=64)
def rotation_tables(rotation: Rotation, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of a rotation."""
    return rotary_tables(torch.arange(length, device=device), HEAD, base=rotation.base)


@functools.lru_cache(maxsize=64)
def causal_bias(heads: int, length: int, device: torch.device) -> Tensor:
    """Return the biases of ALiBi with a causal mask."""
    later = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
    return alibi_bias(heads, length, device=device).masked_fill(later, -torch.inf)


@register_alibi(Positions)
@register_rotary(Positions)
def remove_positions(positions: Positions, setting: object) -> nn.Module:
    """Remove learned positions."""
    return nn.Identity()


@register_alibi(Attention)
def add_bias(attention: Attention, max_sequence_length: int) -> nn.Module:
    """Add the biases of ALiBi in the place of any rotation."""
    attention.biased, attention.rotation = True, None
    return attention


@register_rotary(Attention)
def add_rotation(attention: Attention, rotation: Rotation) -> nn.Module:
    """Rotate queries and keys."""
    attention.rotation = rotation
    return attention


class Block(nn.Module):
    """Attention and a feed-forward network, each after a norm and added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width)
        self.hidden = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        x = x + self.attention(self.norms[0](x))
        return x + self.hidden(self.norms[1](x))


@attrs.frozen
class Sizes:
    """The sizes and the initialization of a GPT."""

    vocabulary: int = 2048
    depth: int = 1
    width: int = 128
    context: int = 64
    positions: str = attrs.field(
        default="rotary", validator=attrs.validators.in_(("learned", "rotary"))
    )
    initialization: str = attrs.field(
        default="fan-in", validator=attrs.validators.in_(("gpt2", "fan-in"))
    )


def small_gpt(sizes: Sizes, seed: int) -> nn.Sequential:
    """Build the model with the weights of a seed."""
    with seed_context(seed):
        blocks = [Block(sizes.width) for _ in range(sizes.depth)]
        if sizes.positions == "rotary":
            for block in blocks:
                block.attention.rotation = Rotation()
        learned = sizes.positions == "learned"
        model = nn.Sequential(
            nn.Embedding(sizes.vocabulary, sizes.width),
            *([Positions(sizes.context, sizes.width)] if learned else []),
            *blocks,
            nn.LayerNorm(sizes.width),
            nn.Linear(sizes.width, sizes.vocabulary, bias=False),
        )
        initialize(model, sizes)
    return model


@torch.no_grad()
def initialize(model: nn.Sequential, sizes: Sizes) -> None:
    """Initialize as GPT-2, or by the fan-in with zeros where a branch and the model end."""
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            continue
        ends = name.endswith(("output.weight", "hidden.2.weight"))
        if sizes.initialization == "gpt2":
            nn.init.normal_(weight, std=0.02 / (2 * sizes.depth) ** 0.5 if ends else 0.02)
        elif ends or weight is model[-1].weight:
            nn.init.zeros_(weight)
        else:
            hidden = "attention" in name or "hidden" in name
            nn.init.normal_(weight, std=0.58 * weight.shape[1] ** -0.5 if hidden else 0.02)


# --- training ---


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the tokens, in nats."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def groups(parameters: Any, lr: float, embedding_lr: float) -> list[dict[str, Any]]:
    """Return groups with one rate for hidden matrices and one for all other parameters."""
    matrices, *others = muon_groups(*parameters.modules)
    return [{**matrices, "lr": lr}, *({**other, "lr": embedding_lr} for other in others)]


def adamw(
    lr: float, embedding_lr: float, weight_decay: float, parameters: Any
) -> torch.optim.AdamW:
    """Return AdamW with two learning rates."""
    return torch.optim.AdamW(
        groups(parameters, lr, embedding_lr),
        betas=(0.9, 0.99),
        weight_decay=weight_decay,
        fused=True,
    )


def build(  # noqa: PLR0913 (each is a hyperparameter of the comparison)
    algorithms: Sequence[Algorithm],
    seed: int,
    *,
    vocabulary: int = 2048,
    depth: int = 1,
    width: int = 128,
    context: int = 64,
    evaluated_context: int | None = None,
    evaluated_spans: int = 32,
    parts: Sequence[str] = ("validation", "test"),
    batch_tokens: int = 512,
    lr: float = 2e-3,
    embedding_lr: float = 24e-3,
    weight_decay: float = 0.1,
    warmup: str = "0.05dur",
    positions: str = "rotary",
    initialization: str = "fan-in",
    precision: str = "fp32",
    optimizers: Any = None,
    schedulers: Any = None,
    max_duration: str = "400ba",
    eval_interval: str = "1dur",
) -> Trainer:
    """Return a Trainer of a small GPT.

    Args:
        algorithms: The algorithms. Gradients are clipped to a norm of 1 if none of them clips.
        seed: The seed of the weights, the order of the data and the algorithms.
        vocabulary: The number of tokens: 256 for bytes, or more for pairs that are merged.
        depth: The number of layers.
        width: The size of the hidden states, a multiple of 32.
        context: The number of tokens of a training window.
        evaluated_context: That of an evaluated window. Default: `context`.
        evaluated_spans: The number of spans of 4,096 bytes that are evaluated.
        parts: The parts of the text that are evaluated: "validation", "test" or both.
        batch_tokens: The number of tokens of a batch.
        lr: The learning rate of hidden matrices under AdamW, unless `optimizers` are given.
        embedding_lr: That of all other parameters.
        weight_decay: The weight decay of AdamW, except for norms.
        warmup: The time in which the learning rates rise, before a linear decay to 0.
        positions: "learned" or "rotary".
        initialization: "gpt2", or "fan-in" with zeros where a branch and the model end.
        precision: The precision of the forward pass: "fp32" or "amp_bf16".
        optimizers: A function from parameters to an optimizer, instead of AdamW.
        schedulers: Schedules, instead of the warm-up and the linear decay.
        max_duration: The length of training.
        eval_interval: How often the test is evaluated; validation is evaluated at the end.
    """
    algorithms = list(algorithms)
    if not any(isinstance(one, GradientClipping) for one in algorithms):
        algorithms.append(GradientClipping("norm", 1.0))
    evaluated = evaluated_context or context
    sizes = Sizes(vocabulary, depth, width, max(context, evaluated), positions, initialization)
    windows = Windows(training_tokens(vocabulary), context)
    intervals = {"validation": "1dur", "test": eval_interval}
    return Trainer(
        small_gpt(sizes, seed),
        train_dataloader=DataLoader(
            windows, max(1, batch_tokens // context), shuffle=True, drop_last=True
        ),
        eval_dataloader=[
            evaluator(part, vocabulary, evaluated, evaluated_spans, intervals[part])
            for part in parts
        ],
        loss_fn=loss_of,
        optimizers=optimizers or functools.partial(adamw, lr, embedding_lr, weight_decay),
        decay_norms_and_biases=False,
        schedulers=linear(warmup=warmup) if schedulers is None else schedulers,
        algorithms=algorithms,
        max_duration=max_duration,
        precision=precision,
        seed=seed,
        progress_bar=False,
    )


@torch.no_grad()
def complete(model: nn.Module, prompt: str, vocabulary: int, count: int, seed: int = 0) -> str:
    """Continue a text by tokens that are drawn from the model."""
    tokens = tokenizer(vocabulary)
    ids = torch.tensor([tokens.encode(prompt).ids])
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    for _ in range(count):
        probabilities = model(ids[:, -64:])[0, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probabilities, 1, generator=generator)[None]], 1)
    return str(tokens.decode(ids[0].tolist()))


def main() -> None:
    """Train once, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--duration", default="400ba")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write-tokens", type=Path, help="write the tokens to this folder instead")
    options = parser.parse_args()
    if options.write_tokens:
        write_tokens(options.write_tokens, options.vocabulary)
        return
    trainer = build(
        [],
        options.seed,
        vocabulary=options.vocabulary,
        lr=options.lr,
        max_duration=options.duration,
    )
    for name, results in trainer.fit().metrics.items():
        print(f"{name}: {results['nats_per_byte']:.3f} nats per byte")


if __name__ == "__main__":
    main()
