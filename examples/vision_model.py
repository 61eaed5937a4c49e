"""Train a model of timm with three methods: copy this file, and put in your model and images.

    pip install timm scikit-learn
    python examples/vision_model.py    # ten seconds on two cores

`composable compare` measures which of the `arms` pay; see docs/compare.md to tune their `lr`:

    composable compare examples/vision_model.py --metric eval/accuracy --durations 4ep,8ep,16ep
"""

from functools import partial

import timm
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from composable import Algorithm, Trainer
from composable.algorithms import EMA, LabelSmoothing, MixUp
from composable.metrics import accuracy
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

MODEL, SIDE = "test_resnet", 32  # a tiny one, with random weights
BATCH_SIZE, DURATION, LR, SEED = 64, "8ep", 3e-3, 17
METHODS = [MixUp(alpha=0.2), LabelSmoothing(0.1), EMA(half_life="10ba")]


def images() -> TensorDataset:
    """Return the scanned digits of scikit-learn."""
    digits = load_digits()
    scans = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(nn.functional.interpolate(scans, SIDE), torch.tensor(digits.target))


def build(algorithms: list[Algorithm], seed: int, lr: float = LR) -> Trainer:
    """Return a Trainer that has not trained yet."""
    train, test = random_split(images(), [0.7, 0.3], torch.Generator().manual_seed(0))
    with seed_context(seed):
        model = timm.create_model(MODEL, in_chans=1, num_classes=10)
    return Trainer(
        model,
        train_dataloader=DataLoader(train, BATCH_SIZE, shuffle=True),
        eval_dataloader=DataLoader(test, 256),
        metrics={"accuracy": accuracy},
        loss_fn=nn.CrossEntropyLoss(),
        optimizers=partial(torch.optim.AdamW, lr=lr, weight_decay=0.05),
        schedulers=cosine(warmup="1ep"),
        max_duration=DURATION,
        algorithms=algorithms,
        seed=seed,
    )


arms = {"mixup": [MixUp(alpha=0.2)], "all": METHODS}
if __name__ == "__main__":
    print(build(METHODS, SEED).fit().metrics["eval"])
