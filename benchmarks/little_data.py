"""Two problems with little data: digits by images a class, and PyTorch's source by megabytes.

The comparisons are in benchmarks/evidence.py, `little-digits` and `little-text`. Each seed draws
its own training data, the same for all arms; those of a smaller amount are part of a larger one's.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset

from composable import Algorithm, Evaluator, Time, Trainer
from composable.algorithms import GradientClipping
from composable.metrics import accuracy
from composable.optim import cosine, linear
from composable.utils.reproducibility import seed_context

sys.path.insert(0, str(Path(__file__).parents[1]))

EVALUATIONS = 6
"""The number of evaluations of a run, among which the best is chosen."""


def evaluations(max_duration: str) -> str:
    """Return the interval of evaluations of a run in batches."""
    return f"{max(1, Time.parse(max_duration).value // EVALUATIONS)}ba"


def generator(seed: int) -> torch.Generator:
    """Return the generator that draws the training data of a seed."""
    return torch.Generator().manual_seed(seed)


# --- digits ---


def images_a_class(labels: torch.Tensor, count: int, seed: int) -> list[int]:
    """Draw so many images of each class."""
    order = torch.randperm(len(labels), generator=generator(seed))
    drawn = [order[labels[order] == one][:count] for one in labels.unique()]
    return torch.cat(drawn).tolist()


def perceptron(width: int, dropout: float, seed: int) -> nn.Module:
    """Build two hidden layers, each followed by dropout."""
    with seed_context(seed):
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, 10),
        )


def build_digits(
    algorithms: Sequence[Algorithm],
    seed: int,
    *,
    data_amount: int,
    max_duration: str,
    lr: float = 3e-3,
    weight_decay: float = 0.01,
    dropout: float = 0.0,
) -> Trainer:
    """Return a Trainer of a perceptron on `data_amount` of the digits' images a class."""
    from examples import digits

    data = digits.digits()
    images = images_a_class(data["train"].tensors[1], data_amount, seed)
    batches = {name: [data[name].tensors] for name in ("validation", "test")}
    interval = evaluations(max_duration)
    return Trainer(
        perceptron(128, dropout, seed),
        train_dataloader=DataLoader(Subset(data["train"], images), batch_size=50, shuffle=True),
        eval_dataloader=[
            Evaluator(name, [one], eval_interval=interval) for name, (one,) in batches.items()
        ],
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.AdamW, lr=lr, weight_decay=weight_decay, fused=True),
        schedulers=cosine(warmup="0.05dur"),
        max_duration=max_duration,
        metrics={"accuracy": accuracy},
        algorithms=algorithms,
        progress_bar=False,
        seed=seed,
    )


# --- PyTorch's source ---


def drawn_text(megabytes: float, seed: int) -> list[str]:
    """Draw files of the training text until there are so many bytes; the last one is cut."""
    from examples import small_gpt

    files = small_gpt.texts()["train"]
    drawn, left = [], int(1e6 * megabytes)
    for at in torch.randperm(len(files), generator=generator(seed)).tolist():
        text = files[at].encode()[:left].decode(errors="ignore")
        drawn.append(text)
        left -= len(text.encode())
        if left <= 0 or len(text) < len(files[at]):
            return drawn
    raise ValueError(f"data_amount={megabytes} must be less than the text has, in megabytes.")


def build_text(
    algorithms: Sequence[Algorithm],
    seed: int,
    *,
    data_amount: float,
    max_duration: str,
    vocabulary: int = 2048,
    lr: float = 2e-3,
    weight_decay: float = 0.1,
    dropout: float = 0.0,
) -> Trainer:
    """Return a Trainer of the GPT of examples/small_gpt.py, on `data_amount` megabytes."""
    from examples import small_gpt

    context = 64
    model = small_gpt.small_gpt(small_gpt.Sizes(vocabulary, depth=2, context=context), seed)
    for module in model:
        if isinstance(module, small_gpt.Block):
            output = nn.Sequential(module.attention.output, nn.Dropout(dropout))
            module.attention.output = output
            module.hidden.append(nn.Dropout(dropout))
    encoded = small_gpt.tokenizer(vocabulary).encode_batch(drawn_text(data_amount, seed))
    tokens = torch.tensor([one for text in encoded for one in text.ids])
    interval = evaluations(max_duration)
    return Trainer(
        model,
        train_dataloader=DataLoader(
            small_gpt.Windows(tokens, context), batch_size=8, shuffle=True, drop_last=True
        ),
        eval_dataloader=[
            small_gpt.evaluator(name, vocabulary, context, count=8, interval=interval)
            for name in ("validation", "test")
        ],
        loss_fn=small_gpt.loss_of,
        optimizers=partial(small_gpt.adamw, lr, lr, weight_decay),
        decay_norms_and_biases=False,
        schedulers=linear(warmup="0.05dur"),
        max_duration=max_duration,
        algorithms=[*algorithms, GradientClipping("norm", 1.0)],
        progress_bar=False,
        seed=seed,
    )
