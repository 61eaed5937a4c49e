"""Small problems to compare arms on: two clouds of points, and a loop of one's own."""

from functools import partial

import torch
from torch import nn

from composable import Evaluator, Trainer, Update
from composable.comparison.design import plan_design
from composable.metrics import accuracy

BATCHES = 10


def clouds(seed, batches=BATCHES):
    """Return batches of points around (1, 1) and (-1, -1)."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(batches):
        labels = torch.randint(2, (16,), generator=generator)
        points = torch.randn(16, 2, generator=generator) + (2 * labels - 1)[:, None]
        made.append((points, labels))
    return made


def build(algorithms, seed, lr=0.05, updates=(), batches=BATCHES):
    """Return a Trainer for 4 epochs of 10 batches, with a validation and a test set."""
    steps = {"updates": updates} if updates else {"optimizers": partial(torch.optim.SGD, lr=lr)}
    metrics = {"accuracy": accuracy}
    return Trainer(
        nn.Linear(2, 2),
        train_dataloader=clouds(0, batches),
        eval_dataloader=[
            Evaluator("validation", clouds(1, 2), metrics=metrics),
            Evaluator("test", clouds(2, 2), metrics=metrics),
        ],
        loss_fn=nn.functional.cross_entropy,
        max_duration="4ep",
        algorithms=algorithms,
        seed=seed,
        **steps,
    )


def build_of_updates(algorithms, seed, lr=0.05):
    """Return one whose weight and bias have an optimizer each."""

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    sgd = partial(torch.optim.SGD, lr=lr)
    names = ("weight", "bias")
    updates = [Update(name, loss=loss, parameters=name, optimizer=sgd) for name in names]
    return build(algorithms, seed, updates=updates)


def descend(arm, seed, duration, lr=0.1):
    """Train a number to be 1, a fraction of the distance a step."""
    value, lr = 0.0, lr * (0.9 + 0.2 * torch.rand(()).item())
    for step in range(1, duration.value + 1):
        value += lr * arm["factor"] * (1 - value)
        if step % 5 == 0 or step == duration.value:
            yield step, None
            yield step, {"test/loss": 1 - value, "validation/loss": 1.1 * (1 - value)}


OPTIONS = {
    "build": build,
    "run": None,
    "arms": {"other": []},
    "baseline": [],
    "metric": "test/accuracy",
    "mode": None,
    "target": None,
    "durations": None,
    "tune": None,
    "seeds": 5,
    "tuning_seeds": 2,
    "tuning_metric": None,
    "repeat_baseline": True,
    "threads": 1,
}


def design(**changes):
    """Return the design of these arguments of `compare`."""
    return plan_design(**{**OPTIONS, **changes})
