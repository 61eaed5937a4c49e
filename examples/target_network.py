"""Train with few labels: a network must agree with an average of its weights (a mean teacher).

The data are the 1,797 scans of 8 x 8 pixels that ship with scikit-learn; nothing is downloaded. The
digits of a few training scans are known. Of all others, the network matches the prediction of
its teacher for another translation of the same scan: Tarvainen and Valpola, "Mean teachers are
better role models", https://arxiv.org/abs/1703.01780

    python examples/target_network.py             # with and without a teacher
    python examples/target_network.py --seeds 1
"""

import argparse
from collections.abc import Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable import Algorithm, Evaluator, State, Trainer, Update
from composable.algorithms import EMA
from composable.functional import random_translation, with_tensors
from composable.metrics import accuracy
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

LABELS = 20
"""The training scans whose digits are known."""


@lru_cache(maxsize=1)
def digits() -> dict[str, TensorDataset]:
    """Load a fixed split: 1,437 training scans, each beside one with a known digit, and a test."""
    from sklearn.datasets import load_digits

    images, targets = load_digits(return_X_y=True)
    scans = torch.tensor(images).float().reshape(-1, 1, 8, 8) / 16
    digits = torch.tensor(targets)
    order = torch.randperm(len(scans), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    each = [train[digits[train] == digit][: LABELS // 10] for digit in range(10)]
    known = torch.cat(each).repeat(len(train) // LABELS + 1)[: len(train)]
    return {
        "train": TensorDataset(scans[known], digits[known], scans[train]),
        "test": TensorDataset(scans[test], digits[test]),
    }


def network() -> nn.Module:
    """Build a network of two convolutions, the second with a stride, and a linear layer."""
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


def teacher_loss(model: nn.Module, batch: list[Tensor], state: State) -> dict[str, Tensor]:
    """Classify the scans whose digit is known, and agree with the teacher about the others."""
    labelled, targets, scans = batch
    average = state.averages.get("teacher")  # there is none before the first step
    teacher = model if average is None else with_tensors(model, average)
    with torch.no_grad():
        expected = teacher(random_translation(scans, max_shift=1)).softmax(1)
    both = model(random_translation(torch.cat([labelled, scans]), max_shift=1))
    known, found = both.chunk(2)
    supervised = cross_entropy(known, targets)
    consistency = (found.softmax(1) - expected).square().sum(1).mean()
    weight = 10 * min(1.0, state.timestamp.batch / 200)
    loss = supervised + weight * consistency
    return {"loss": loss, "supervised": supervised, "consistency": consistency}


def plain_loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Classify the scans whose digit is known."""
    labelled, targets, _ = batch
    return cross_entropy(model(random_translation(labelled, max_shift=1)), targets)


plain = Update("student", loss=plain_loss, optimizer=partial(torch.optim.Adam, lr=1e-3))
taught = Update("student", loss=teacher_loss, optimizer=partial(torch.optim.Adam, lr=1e-3))


def build(
    update: Update,
    algorithms: Sequence[Algorithm],
    seed: int = 0,
    *,
    max_duration: str = "20ep",
) -> Trainer:
    """Return a Trainer of a new network.

    Args:
        update: What a step is.
        algorithms: The algorithms, with the average that the loss reads.
        seed: The seed of the weights, the order of the data and the translations.
        max_duration: The length of training.
    """
    with seed_context(seed):
        model = network()
    data = digits()
    return Trainer(
        model,
        train_dataloader=DataLoader(data["train"], batch_size=64, shuffle=True, drop_last=True),
        eval_dataloader=Evaluator("test", DataLoader(data["test"], batch_size=360)),
        metrics={"accuracy": accuracy},
        updates=[update],
        schedulers=cosine(),
        max_duration=max_duration,
        algorithms=algorithms,
        progress_bar=False,
        seed=seed,
    )


def arms() -> dict[str, tuple[Update, list[Algorithm]]]:
    """Return the update and the algorithms of each run that is compared."""
    average = EMA(smoothing=0.97, name="teacher")
    return {"alone": (plain, []), "averaged": (plain, [average]), "taught": (taught, [average])}


def main() -> None:
    """Train each, and print the errors on the test scans."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    given = parser.parse_args()
    torch.set_num_threads(1)  # the network is too small to benefit from more
    for name, (update, algorithms) in arms().items():
        errors = []
        for seed in range(given.seeds):
            state = build(update, algorithms, seed, max_duration=f"{given.epochs}ep").fit()
            errors.append(100 * (1 - float(state.metrics["test"]["accuracy"])))
        print(f"{name:9} {', '.join(f'{one:.1f}' for one in errors)} % errors")


if __name__ == "__main__":
    main()
