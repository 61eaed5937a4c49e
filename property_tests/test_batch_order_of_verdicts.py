"""Law: whether a loss is right or refused does not depend on which batch comes first."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from composable import Event
from composable.algorithms import CutMix, LabelSmoothing, MixUp
from composable.data import Indexed, InfoBatch, InfoBatchSampler
from composable.functional import MixedTargets
from tests.support.campaign import drawn, each_once
from tests.support.losses import OF_TORCH, RECOGNIZED, REFUSED, WEIGHTS
from tests.support.runs import make_trainer
from tests.support.split_losses import FEATURES, examples, model
from tests.support.strategies import single

ROWS = 8
PAIRS = torch.tensor([1.0, 1.0, 10.0, 10.0], dtype=torch.float64)
INPUTS, TARGETS = examples(ROWS)
BATCHES = [
    (INPUTS, TARGETS % 2 * 2),  # without the rare class
    (INPUTS.roll(1, 0), torch.full_like(TARGETS, -100)),
    (INPUTS.roll(2, 0), TARGETS),
    (-INPUTS, TARGETS.masked_fill(torch.arange(ROWS) % 3 == 0, -100)),
    (30 * INPUTS, TARGETS.roll(1)),
]


def of_the_size(outputs, targets):
    penalty = outputs.square().mean() if len(outputs) >= ROWS else 0
    return F.cross_entropy(outputs, targets) + penalty


def of_large_means(outputs, targets):
    return F.cross_entropy(outputs, targets) + (outputs.mean(0).abs() - 2).relu().sum()


def centered_if_large(outputs, targets):
    large = outputs.abs().amax() > 2
    return F.cross_entropy(outputs - torch.where(large, outputs.mean(0), 0.0), targets)


FAULTY = {
    "weights": lambda o, t: F.cross_entropy(o, t, WEIGHTS),
    "ignored class": lambda o, t: F.cross_entropy(o, t, ignore_index=1),
    "ignored, -1": lambda o, t: F.cross_entropy(o, t.clamp(min=-1), ignore_index=-1),
    "of the size": of_the_size,
    "of large means": of_large_means,
    "centered if large": centered_if_large,
}
LOSSES = {**OF_TORCH, **RECOGNIZED, **REFUSED, **FAULTY}
METHODS = {
    "LabelSmoothing": [LabelSmoothing(0.0)],
    "MixUp": [MixUp(1e-9)],
    "MixUp of losses": [MixUp(1e-9, per_sample=True, interpolate_loss=True)],
    "CutMix": [CutMix(1e-9, per_sample=True)],
    "CutMix of losses": [CutMix(1e-9, per_sample=True, interpolate_loss=True)],
    "grad_accum": [],
    "InfoBatch": [],
}


class Still(torch.optim.SGD):
    """Leaves the weights as they are, also where a gradient is NaN."""

    def step(self, closure=None):
        return None


def classes_of(targets):
    """Return the class indices of probabilities, and of pairs of which one has all the weight."""
    if isinstance(targets, MixedTargets):
        kept = classes_of(targets.targets)
        return torch.where(targets.weight > 0.5, kept, classes_of(targets.partner_targets))
    if not targets.is_floating_point():
        return targets
    return torch.where(targets.sum(1) > 0.5, targets.argmax(1), -100)


def outcome(loss, method, batches):
    """Train on batches at constant weights: "refused", or "right", or in which way it is wrong."""
    net, wrong = nn.Sequential(nn.Flatten(), model()), []

    def compare(event, state, logger):
        if event is not Event.AFTER_TRAIN_BATCH:
            return
        found = [one.clone() for one in state.current_gradients().values()]
        with torch.enable_grad():
            expected = loss(net(state.inputs), classes_of(state.targets))
            gradients = torch.autograd.grad(expected, [*net.parameters()])
        pairs = zip([state.loss.detach(), *found], [expected.detach(), *gradients], strict=True)
        errors = [
            float((one - other).norm() / other.norm().clamp(min=0.01)) for one, other in pairs
        ]
        if expected.isfinite() and not all(error <= 1e-4 for error in errors):
            wrong.append(f"batch {state.timestamp.batch} is wrong by {max(errors):.2g}")

    images = [(inputs.view(-1, FEATURES, 1, 1), targets) for inputs, targets in batches]
    loader, algorithms = images, METHODS[method]
    if method == "InfoBatch":
        rows = [row for batch in images for row in zip(*batch, strict=True)]
        sampler = InfoBatchSampler(len(rows), batch_size=ROWS, seed=1, shuffle=False)
        loader = DataLoader(Indexed(rows), batch_sampler=sampler)
        algorithms = [InfoBatch(sampler)]
    trainer = make_trainer(
        net,
        loader,
        loss_fn=lambda outputs, targets: loss(outputs, targets),  # whose verdict is not known yet
        optimizers=Still(net.parameters(), lr=0.0),
        algorithms=algorithms,
        callbacks=compare,
        grad_accum=4 if method == "grad_accum" else 1,
        nonfinite_loss="ignore",
        max_duration="1ep",
        check_effects=False,
    )
    try:
        trainer.fit()
    except (IndexError, RuntimeError, TypeError, ValueError):
        return "refused"
    return ", ".join(wrong) or "right"


def computes(loss, batch):
    """Return whether a loss has a value for a batch, which it may not have without a label."""
    try:
        return loss(model()(batch[0]), batch[1]).numel() == 1
    except (IndexError, RuntimeError, ValueError):
        return False


CASES = list(
    dict.fromkeys([*each_once(list(FAULTY), list(METHODS)), *drawn(product(LOSSES, METHODS), 30)])
)


@pytest.mark.filterwarnings("ignore")  # of losses, and of torch.func
@pytest.mark.parametrize(("name", "method"), CASES)
@single
@given(order=st.permutations(range(len(BATCHES))))
def test_another_order_of_the_batches_changes_no_verdict_on_a_loss(name, method, order):
    batches = [BATCHES[i] for i in order if computes(LOSSES[name], BATCHES[i])]

    outcomes = {outcome(LOSSES[name], method, one) for one in (batches, batches[::-1])}

    assert outcomes in ({"right"}, {"refused"})


OF_CLASSES = {
    "weights in pairs": lambda o, t: F.cross_entropy(o, t, PAIRS),
    "ignored, 0": lambda o, t: F.cross_entropy(o, t, ignore_index=0),
}


@pytest.mark.parametrize("labels", [[0], [1], [0, 1]])
@pytest.mark.parametrize("method", [one for one in METHODS if METHODS[one]])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_batch_of_fewer_labels_than_classes_changes_no_verdict_on_a_loss(name, method, labels):
    small = INPUTS[: len(labels)], torch.tensor(labels)
    batches = [small, BATCHES[2]]

    outcomes = {outcome(OF_CLASSES[name], method, one) for one in (batches, batches[::-1])}

    assert outcomes in ({"right"}, {"refused"})


@pytest.mark.parametrize("length", [2, 3, 6])
@pytest.mark.parametrize("equal_first", [True, False])
def test_a_batch_of_equally_many_labels_changes_no_verdict_on_a_mean_over_labels(
    length, equal_first
):
    targets = torch.arange(4 * length).view(4, length) % 3
    equal, unequal = targets.clone(), targets.clone()
    equal[:, 0] = unequal[0, 0] = -100
    batches = [(9 * torch.rand(4, length, FEATURES), one) for one in (equal, unequal)]

    trainer = make_trainer(
        nn.Linear(FEATURES, 3),
        batches if equal_first else batches[::-1],
        loss_fn=lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()),
        algorithms=[MixUp(per_sample=True, interpolate_loss=True)],
    )
    with pytest.raises(ValueError, match="its examples give"):
        trainer.fit()
    assert trainer.state.timestamp.batch == 0
