"""Train two encoders to match the halves of handwritten digits, with a contrastive loss.

The data are the 1,797 scans of 8 x 8 pixels that ship with scikit-learn; nothing is downloaded. One
encoder sees the left half of a scan, the other one the right half. The loss compares the left half
of each scan of a batch with the right halves of all others, so that a larger batch is another loss,
and no microbatches can replace it. Memory is taken to hold the activations of 16 scans: with
`WholeLoss`, the loss is computed for a batch of any size, in parts of 16.

    python examples/contrastive.py                       # 16 scans a batch
    python examples/contrastive.py --batch-size 128      # 128, in parts of 16

The metric is the mean reciprocal rank of the right half of the same scan, among 360 right halves by
their similarity to a left half.
`build` and `arms` are what `composable compare` needs.
"""

import argparse
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset

from composable import Algorithm, Evaluator, Trainer
from composable.algorithms import WholeLoss
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

MEMORY = 16
"""The examples whose activations are in memory at a time."""

arms = {"WholeLoss": [WholeLoss()]}


@lru_cache(maxsize=1)
def halves() -> dict[str, TensorDataset]:
    """Load a fixed split of the scans, each as two halves, with its digit."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    scans = torch.tensor(images).float().reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(scans), generator=torch.Generator().manual_seed(0))
    parts = dict(zip(("test", "validation", "train"), order.split((360, 360, 1077)), strict=True))
    return {
        name: TensorDataset(scans[rows, ..., :4], scans[rows, ..., 4:], torch.tensor(digits)[rows])
        for name, rows in parts.items()
    }


def encoder() -> nn.Module:
    """Build a network of two convolutions, the second with a stride, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 2, 64),
    )


class TwoEncoders(nn.Module):
    """An encoder for each half."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = encoder(), encoder()

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings of length 1."""
        return normalize(self.left(left)), normalize(self.right(right))


class InfoNCE(nn.Module):
    """The cross-entropy of matching each left half, and each right half, within a batch.

    Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021,
    https://arxiv.org/abs/2103.00020
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(10.0).log())

    def forward(self, outputs: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
        """Compute the loss of a batch."""
        left, right = outputs
        logits = self.log_scale.exp() * left @ right.T
        same = torch.arange(len(left), device=left.device)
        return (cross_entropy(logits, same) + cross_entropy(logits.T, same)) / 2


def reciprocal_rank(outputs: tuple[Tensor, Tensor], _: Any) -> Tensor:
    """Return the mean reciprocal rank of the right half of the same scan, for each left half."""
    left, right = outputs
    similarity = left @ right.T
    rank = (similarity >= similarity.diagonal()[:, None]).sum(1)
    return (1 / rank).mean()


def build(
    algorithms: Sequence[Algorithm],
    seed: int,
    *,
    lr: float = 3e-3,
    batch_size: int = MEMORY,
    max_duration: str = "16ep",
) -> Trainer:
    """Return a Trainer of the encoders.

    Args:
        algorithms: The algorithms.
        seed: The seed of the weights, the order of the data and the algorithms.
        lr: The learning rate at the end of the warm-up.
        batch_size: The scans that the loss compares; above 16, algorithms needs WholeLoss.
        max_duration: The length of training.
    """
    data = halves()
    with seed_context(seed):
        model = TwoEncoders()
    return Trainer(
        model,
        train_dataloader=DataLoader(data["train"], batch_size, shuffle=True, drop_last=True),
        eval_dataloader=[
            Evaluator(name, DataLoader(data[name], batch_size=360))
            for name in ("validation", "test")
        ],
        loss_fn=InfoNCE(),
        input_key=(0, 1),
        target_key=2,
        optimizers=partial(torch.optim.AdamW, lr=lr, weight_decay=1e-2),
        schedulers=cosine(warmup="1ep"),
        max_duration=max_duration,
        metrics={"reciprocal_rank": reciprocal_rank},
        algorithms=algorithms,
        microbatch_size=MEMORY,
        progress_bar=False,
        seed=seed,
    )


def main() -> None:
    """Train once, and print the metric."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=MEMORY, help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=3e-3, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    given = parser.parse_args()
    algorithms = [WholeLoss()] if given.batch_size > MEMORY else []
    trainer = build(
        algorithms,
        given.seed,
        lr=given.lr,
        batch_size=given.batch_size,
        max_duration=f"{given.epochs}ep",
    )
    trainer.fit()
    for name, results in trainer.state.metrics.items():
        print(
            f"{name}: reciprocal rank {results['reciprocal_rank']:.3f}, loss {results['loss']:.3f}"
        )


if __name__ == "__main__":
    main()
