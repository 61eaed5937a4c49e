"""Small runs: models, data, a plain loop, algorithms for tests, and callbacks that watch."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from composable import Algorithm, Callback, Control, Event, Stage, State, Trainer
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from composable.core.logger import Logger
from composable.data import seeded_batches
from composable.functional import alibi_bias, register_alibi, register_gated_linear_units
from composable.utils.reproducibility import seed_context, seed_step

FEATURES, CLASSES, SIDE = 4, 3, 8
WORDS, LENGTH, WIDTH, IGNORED = 7, 5, 8, -100

# --- models ---


def mlp(*, dropout: float = 0.0, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Build a model of two layers, with the weights of the seed."""
    with seed_context(seed):
        layers = [nn.Linear(FEATURES, 5), nn.ReLU(), nn.Dropout(dropout), nn.Linear(5, CLASSES)]
        return nn.Sequential(*layers).to(dtype)


def conv_net(
    *, seed: int = 0, one_by_one: bool = False, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Build a model with strided convolution, batch norm, max-pool, dropout and group norm.

    It takes images of other sizes too. With `one_by_one` it treats examples so: without dropout,
    and normalised each by itself.
    """
    with seed_context(seed):
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4) if one_by_one else nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Dropout(0.0 if one_by_one else 0.25),
            nn.Sequential(  # what takes images of any size
                nn.AdaptiveAvgPool2d(SIDE // 4), nn.GroupNorm(1, 4), nn.Flatten()
            ),
            nn.Linear(4 * (SIDE // 4) ** 2, CLASSES),
        ).to(dtype)


class Places(nn.Embedding):
    """Adds to each token what is learned of its place."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.shape[1]]


class Attention(nn.Linear):
    """Causal attention of two heads."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width)

    def bias_of(self, x: Tensor) -> Tensor | None:
        return None

    def forward(self, x: Tensor) -> Tensor:
        heads = super().forward(x).unflatten(-1, (3, 2, self.in_features // 2))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        bias = self.bias_of(x)
        attended = scaled_dot_product_attention(query, key, value, bias, is_causal=bias is None)
        return attended.transpose(1, 2).flatten(2)


class BiasedAttention(Attention):
    """The same with linear biases."""

    def bias_of(self, x: Tensor) -> Tensor | None:
        length = x.shape[1]
        to_come = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        bias = alibi_bias(2, length, device=x.device, dtype=x.dtype)
        return bias.masked_fill(to_come, -torch.inf)


@register_alibi(Places)
def leave_out(places: Places, max_sequence_length: int) -> nn.Module:
    return nn.Identity()


@register_alibi(Attention)
def add_biases(attention: Attention, max_sequence_length: int) -> nn.Module:
    attention.__class__ = BiasedAttention
    return attention


class Hidden(nn.Sequential):
    """A feed-forward block."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))


register_gated_linear_units(Hidden, linear="0", activation="1")


class LanguageModel(nn.Module):
    """Embeddings, a block of causal attention and a hidden layer, and the logits of each token."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = Places(LENGTH, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(WIDTH)
        self.hidden_norm = nn.LayerNorm(WIDTH)
        self.hidden = Hidden(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.places(self.words(input_ids))
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.hidden(self.hidden_norm(x)))
        return self.score(x).movedim(-1, 1)  # classes second, where cross_entropy has them


def language_model(
    *, seed: int = 0, one_by_one: bool = False, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Build a transformer of one block, with dropout unless `one_by_one`."""
    with seed_context(seed):
        return LanguageModel(0.0 if one_by_one else 0.25).to(dtype)


def weights(model: nn.Module) -> list[Tensor]:
    """Return copies of all parameters and buffers."""
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def same(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> bool:
    """Return whether two lists of tensors are equal to the bit."""
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# --- data ---


def examples(
    count: int = 10, *, images: bool = False, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return inputs and class indices, the same at every call."""
    generator = torch.Generator().manual_seed(count)
    shape = (2, SIDE, SIDE) if images else (FEATURES,)
    inputs = torch.randn(count, *shape, generator=generator, dtype=dtype)
    return inputs, torch.randint(CLASSES, (count,), generator=generator)


def batches(count: int = 10, size: int = 4, **options: Any) -> list[tuple[Tensor, Tensor]]:
    """Return a loader without shuffling: a list of batches, of which the last may be short."""
    inputs, targets = examples(count, **options)
    return list(zip(inputs.split(size), targets.split(size), strict=True))


def sentences(count: int = 10) -> list[dict[str, Tensor]]:
    """Return token ids and their labels, of which those of the padding are ignored."""
    generator = torch.Generator().manual_seed(count)
    ids = torch.randint(1, WORDS, (count, LENGTH), generator=generator)
    labels = torch.randint(WORDS, (count, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (count, 1), generator=generator)
    padding = torch.arange(LENGTH) >= lengths
    ids, labels = ids.masked_fill(padding, 0), labels.masked_fill(padding, IGNORED)
    return [{"input_ids": i, "labels": j} for i, j in zip(ids, labels, strict=True)]


def text_batches(count: int = 10, size: int = 4) -> list[dict[str, Tensor]]:
    """Return batches of sentences, of which the last may be short."""
    rows = sentences(count)  # a DataLoader would draw from the global generator
    return [default_collate(rows[i : i + size]) for i in range(0, count, size)]


def shuffled_text(count: int = 10, size: int = 4) -> DataLoader[Any]:
    """Build a DataLoader of sentences that shuffles."""
    return DataLoader(sentences(count), batch_size=size, shuffle=True)  # type: ignore[arg-type]


def count_tokens(batch: Mapping[str, Tensor]) -> int:
    """Count the tokens of a batch of sentences, without the padding."""
    return int((batch["labels"] != IGNORED).sum())


class Stream:
    """A loader that doesn't know its length."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def stream(count: int = 10, size: int = 4, **options: Any) -> Stream:
    """Return the batches of `batches` as a stream of unknown length."""
    return Stream(batches(count, size, **options))


def shuffling_loader(count: int = 10, size: int = 4, **options: Any) -> DataLoader[Any]:
    """Build a DataLoader that shuffles; its last batch may be short."""
    return DataLoader(TensorDataset(*examples(count, **options)), batch_size=size, shuffle=True)


class NoisyExamples(Dataset[Any]):
    """Examples with noise from the global generators of torch, Python and NumPy."""

    def __init__(self, count: int = 10, **options: Any) -> None:
        self.inputs, self.targets = examples(count, **options)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        numpy_noise = float(np.random.normal())  # noqa: NPY002
        noise = 0.1 * (torch.randn(()) + random.gauss(0, 1) + numpy_noise)
        return self.inputs[i] + noise, self.targets[i]


def noisy_loader(count: int = 10, size: int = 4, **options: Any) -> DataLoader[Any]:
    """Build a DataLoader that shuffles, and whose dataset draws random numbers."""
    return DataLoader(NoisyExamples(count, **options), batch_size=size, shuffle=True)


# --- loops ---

sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
adam = partial(torch.optim.Adam, lr=0.01)


def trainer(model: nn.Module | None = None, loader: Any = None, **options: Any) -> Trainer:
    """Build a Trainer with small defaults."""
    defaults: dict[str, Any] = {
        "train_dataloader": batches() if loader is None else loader,
        "loss_fn": cross_entropy,
        "optimizers": sgd,
        "max_duration": "2ep",
        "seed": 17,
        "device": "cpu",
        "progress_bar": False,
        "check_effects": True,
    }
    return Trainer(mlp() if model is None else model, **{**defaults, **options})


def trained(model: nn.Module | None = None, loader: Any = None, **options: Any) -> list[Tensor]:
    """Return the weights after training with `trainer(...)`."""
    return weights(trainer(model, loader, **options).fit().model)


@attrs.frozen(eq=False, repr=False)
class Problem:
    """What is trained, and what the Trainer must know about it."""

    name: str
    model: Callable[..., nn.Module]
    batches: Callable[..., Any]
    shuffled: Callable[..., Any]
    options: Mapping[str, Any] = attrs.field(factory=dict)

    def trainer(
        self, model: nn.Module | None = None, loader: Any = None, **options: Any
    ) -> Trainer:
        """Build a Trainer with small defaults."""
        model = self.model() if model is None else model
        loader = self.batches() if loader is None else loader
        return trainer(model, loader, **{**self.options, **options})

    def __repr__(self) -> str:
        return self.name


VISION = Problem(
    "vision", conv_net, partial(batches, images=True), partial(shuffling_loader, images=True)
)
LANGUAGE = Problem(
    "language",
    language_model,
    text_batches,
    shuffled_text,
    options={
        "input_key": "input_ids",
        "target_key": "labels",
        "loss_mean_over": "tokens",
        "count_tokens": count_tokens,
    },
)
PROBLEMS = [VISION, LANGUAGE]


def plain_loop(
    model: nn.Module,
    loader: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int = 2,
    before_batch: Callable[[int], object] = lambda step: None,
    after_batch: Callable[[], object] = lambda: None,
    after_epoch: Callable[[], object] = lambda: None,
) -> list[Tensor]:
    """Train as anyone would by hand, without this library, and return the weights."""
    step = 0
    model.train()
    for _ in range(epochs):
        for inputs, targets in loader:
            before_batch(step)
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            after_batch()
            step += 1
        after_epoch()
    return weights(model)


def plain_seeded_loop(
    model: nn.Module,
    loader: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    *,
    seed: int,
    epochs: int = 2,
) -> list[Tensor]:
    """Train by hand, with the public helpers that make randomness depend on the seed alone."""
    step = 0
    model.train()
    for epoch in range(epochs):
        for inputs, targets in seeded_batches(loader, seed, epoch=epoch, first_step=step):
            seed_step(seed, step)
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    return weights(model)


# --- algorithms ---


@attrs.frozen(repr=False)
class Jitter(Algorithm):
    """Scales each batch by a number that it draws."""

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        factor = 1 + 0.1 * torch.rand((), generator=state.generator(self.name))
        return state.with_batch(inputs=state.inputs * factor)


@attrs.frozen(repr=False)
class WordNoise(Algorithm):
    """Puts other words in the place of some of each batch."""

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        generator = state.generator(self.name)
        others = torch.randint(WORDS, state.inputs.shape, generator=generator)
        hit = torch.rand(state.inputs.shape, generator=generator) < 0.3
        return state.with_batch(inputs=state.inputs.masked_scatter(hit, others[hit]))


@attrs.frozen(repr=False)
class GradientNoise(Algorithm):
    """Adds noise to the gradients, in the stage in which they are clipped too."""

    events = frozenset({Event.BEFORE_OPTIMIZER_STEP})
    stage = Stage.GRADIENTS
    reads = frozenset({"gradients", "model", "optimizers", "key", "timestamp"})
    writes = frozenset({"gradients"})

    def apply(self, event: Event, state: State) -> State:
        generator = state.generator(self.name)
        noise = {
            name: 0.01 * torch.randn(grad.shape, generator=generator)
            for name, grad in state.current_gradients().items()
        }
        noisy = {name: grad + noise[name] for name, grad in state.current_gradients().items()}
        return state.evolve(gradients=noisy)


@attrs.frozen(repr=False)
class Draws(Algorithm):
    """Changes nothing, and remembers what it drew at each batch."""

    events = frozenset({Event.BATCH_START})
    reads = frozenset({"key", "timestamp", "memory"})
    writes = frozenset({"memory"})

    def apply(self, event: Event, state: State) -> State:
        number = torch.rand((), generator=state.generator(self.name)).item()
        return state.remember(self.name, [*state.memory.get(self.name, []), number])


def six_algorithms() -> list[Algorithm]:
    """Every algorithm of the library, with hyperparameters that make it act in a short run."""
    return [
        MixUp(alpha=0.4),
        LabelSmoothing(0.1),
        BlurPool(min_channels=0),
        EMA(half_life="2ba"),
        SelectiveBackprop(start=0.0, end=1.0, keep=0.5, interrupt=2),
        GradientClipping("norm", 0.5),
    ]


# --- callbacks ---


class Trace(Callback):
    """Records every event, in order, and the timestamp at it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.timestamps: list[Any] = []

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        self.events.append(event)
        self.timestamps.append(state.timestamp)


class Watch(Callback):
    """Records what `read(state)` returns at some events."""

    def __init__(self, read: Callable[[State], Any], *events: Event) -> None:
        self.read, self.events = read, events
        self.seen: list[Any] = []

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        if event in self.events:
            self.seen.append(self.read(state))


class Gambler(Callback):
    """Draws from every global generator at every event."""

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        torch.rand(3)
        random.random()
        np.random.rand()  # noqa: NPY002


class Asks(Callback):
    """Requests something when an event fires for the n-th time, counted from 0."""

    def __init__(self, event: Event, n: int, request: Control) -> None:
        self.event, self.n, self.request = event, n, request

    def run_event(self, event: Event, state: State, logger: Logger) -> Control | None:
        if event is not self.event:
            return None
        self.n -= 1
        return self.request if self.n == -1 else None
