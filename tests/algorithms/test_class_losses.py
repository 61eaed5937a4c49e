"""Losses of class indices keep their meaning where an algorithm replaces them by probabilities."""

from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from composable import Event, State
from composable.algorithms import CutMix, LabelSmoothing, MixUp
from composable.batches.spec import BatchSpec
from composable.losses.loss import TargetLoss
from tests.support.campaign import each_pair
from tests.support.models import CLASSES, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer

WEIGHT = torch.tensor([1.0, 10.0, 0.1])
LOSSES = {
    "plain": cross_entropy,
    "module": nn.CrossEntropyLoss(),
    "weight": nn.CrossEntropyLoss(weight=WEIGHT),
    "function of weight": partial(cross_entropy, weight=WEIGHT),
    "ignored class": nn.CrossEntropyLoss(ignore_index=1),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "weighted sum": nn.CrossEntropyLoss(reduction="sum", weight=WEIGHT),
    "smoothing": nn.CrossEntropyLoss(label_smoothing=0.2),
    "all": nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=2, label_smoothing=0.2),
}
NEXT_TO_NOTHING = {
    "smoothing": [LabelSmoothing(0.0)],
    "mixup": [MixUp(1e-6)],
    "mixup per sample": [MixUp(1e-6, per_sample=True)],
    "mixup of losses": [MixUp(1e-6, interpolate_loss=True)],
    "mixup of losses per sample": [MixUp(1e-6, interpolate_loss=True, per_sample=True)],
    "mixup and smoothing": [MixUp(1e-6), LabelSmoothing(0.0)],
    "all per sample": [
        MixUp(1e-6, interpolate_loss=True, per_sample=True),
        LabelSmoothing(0.0),
    ],
}


def images(loss_fn, padded, dims):
    ignored = getattr(loss_fn, "ignore_index", -100)
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(CLASSES, (6, 4, 4)[: dims + 1], generator=draw)
    if padded:
        targets[:2] = ignored
    return torch.rand(6, 1, 4, 4, generator=draw), targets


def model(dims):
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if dims == 0 else []
    return seeded(lambda: nn.Sequential(nn.Conv2d(1, CLASSES, 3, padding=1), *flat))


def trained(loss_fn, batch, dims, algorithms=()):
    losses = Watch(Event.BATCH_END, read=lambda s: s.loss)
    trainer = make_trainer(
        model(dims),
        loss_fn=loss_fn,
        train_dataloader=[batch],
        max_duration="2ba",
        algorithms=list(algorithms),
        callbacks=[losses],
    )
    trainer.fit()
    return losses.values, weights(trainer.state.model)


@pytest.mark.parametrize(
    ("loss", "algorithms", "shape"),
    each_pair(LOSSES, NEXT_TO_NOTHING, [(False, 0), (True, 0), (True, 2)]),
)
def test_next_to_nothing_trains_as_without_it(loss, algorithms, shape):
    padded, dims = shape
    batch = images(LOSSES[loss], padded, dims)
    expected = trained(LOSSES[loss], batch, dims)

    found = trained(LOSSES[loss], batch, dims, NEXT_TO_NOTHING[algorithms])

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "mix", "padded"),
    each_pair(LOSSES, [MixUp(1.0), CutMix(), MixUp(1.0, per_sample=True)], [False, True]),
)
def test_interpolated_targets_train_as_interpolated_losses(mix, loss, padded):
    batch = images(LOSSES[loss], padded, 0)
    expected = trained(LOSSES[loss], batch, 0, [attrs.evolve(mix, interpolate_loss=True)])

    found = trained(LOSSES[loss], batch, 0, [mix])

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "mix", [[], [MixUp(1.0)], [MixUp(1.0, interpolate_loss=True)], [CutMix(per_sample=True)]]
)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_smoothing_is_that_of_the_loss(mix, padded, weight):
    inside = nn.CrossEntropyLoss(weight, label_smoothing=0.3)
    batch = images(inside, padded, 0)

    found = trained(nn.CrossEntropyLoss(weight), batch, 0, [*mix, LabelSmoothing(0.3)])

    torch.testing.assert_close(found, trained(inside, batch, 0, mix), rtol=1e-4, atol=1e-5)


def weighted(outputs, targets):
    return cross_entropy(outputs, targets, weight=WEIGHT)


def indices_only(outputs, targets):
    return -outputs.log_softmax(1).gather(1, targets[:, None]).mean()


@pytest.mark.parametrize(
    ("algorithm", "loss_fn", "message"),
    [
        (LabelSmoothing(), weighted, "loss_fn gives .* itself as loss_fn"),
        (MixUp(), weighted, "loss_fn gives .* interpolate_loss=True"),
        (CutMix(), nn.MultiMarginLoss(), "fails for class probabilities .* interpolate_loss=True"),
        (LabelSmoothing(), indices_only, "fails for class probabilities"),
        (MixUp(interpolate_loss=True, per_sample=True), weighted, "per_sample=False"),
    ],
)
def test_rejects_loss_that_differs_for_probabilities(algorithm, loss_fn, message):
    def fresh(outputs, targets):  # a loss is compared once
        return loss_fn(outputs, targets)

    with pytest.raises(ValueError, match=message):
        trained(fresh, images(None, False, 0), 0, [algorithm])


@pytest.mark.parametrize("algorithm", [MixUp(), CutMix(), LabelSmoothing()])
def test_rejects_integers_that_are_no_classes_of_the_outputs(algorithm):
    def first_output(outputs, targets):
        return mse_loss(outputs[:, 0], targets.float())

    inputs, targets = images(None, False, 0)
    with pytest.raises(ValueError, match=r"here up to .* classes; .*targets\.float\(\)"):
        trained(first_output, (inputs, targets + CLASSES), 0, [algorithm])


@pytest.mark.parametrize(
    ("loss_fn", "targets", "message"),
    [
        (nn.MSELoss(), torch.rand(6, CLASSES), "loss of classes, and loss_fn=MSELoss"),
        (mse_loss, torch.eye(CLASSES).repeat(2, 1), "loss of classes, and loss_fn=mse_loss"),
        (partial(nn.functional.l1_loss), torch.rand(6, CLASSES), "loss_fn=l1_loss"),
        (lambda o, t: mse_loss(o, t), torch.randn(6, CLASSES), "that sum to 1 over dimension 1"),
        (
            lambda o, t: mse_loss(o[:, 0], t),
            torch.tensor([1.0, 0, 0, 0, 0, 0]),
            r"logits .* of torch.float32 .*\(6,\)",
        ),
        (lambda o, t: mse_loss(o[:, :1], t), torch.ones(6, 1), "num_classes=3 must match the 1"),
    ],
)
def test_smoothing_rejects_targets_that_are_no_classes(loss_fn, targets, message):
    with pytest.raises(ValueError, match=message):
        trained(loss_fn, (images(None, False, 0)[0], targets), 0, [LabelSmoothing()])


class Tokens(nn.Embedding):
    """A language model with logits [batch, tokens, classes]."""


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_smooths_logits_with_classes_in_the_last_dimension(padded):
    tokens = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(1, 0).masked_fill(torch.arange(5) > 2, -100) if padded else tokens

    def run(smoothing, algorithms):
        def loss_fn(outputs, targets):
            options = {"label_smoothing": smoothing}
            return cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), **options)

        trainer = make_trainer(
            seeded(lambda: Tokens(7, 7)),
            loss_fn=loss_fn,
            train_dataloader=[(tokens, targets)],
            algorithms=algorithms,
        )
        trainer.fit()
        return weights(trainer.state.model)

    torch.testing.assert_close(run(0.0, [LabelSmoothing(0.3)]), run(0.3, []))


def test_known_cross_entropy_of_logits_with_classes_last_is_rejected():
    spec = BatchSpec()
    tokens = torch.randint(7, (4, 5))
    state = State(
        model=nn.Linear(1, 1),
        loss_fn=TargetLoss(cross_entropy, spec),
        outputs=torch.randn(4, 5, 7),
        batch=(tokens, tokens),
    )

    with pytest.raises(ValueError, match=r"classes in dimension 1 .*transpose\(1, -1\)"):
        LabelSmoothing()(Event.BEFORE_LOSS, state)


SEVERAL = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]).repeat(3, 1)


def test_refuses_several_labels_in_any_batch():
    one = torch.eye(CLASSES).repeat(2, 1)
    inputs = images(None, False, 0)[0]
    trainer = make_trainer(
        model(0),
        loss_fn=nn.functional.binary_cross_entropy_with_logits,
        train_dataloader=[(inputs, one), (inputs, SEVERAL)],
        max_duration="1ep",
        algorithms=[LabelSmoothing()],
    )

    with pytest.raises(
        ValueError, match=r"LabelSmoothing needs class indices, .* sums from 2 to 2"
    ):
        trainer.fit()
    assert trainer.state.timestamp.batch == 1


@pytest.mark.parametrize("algorithm", [LabelSmoothing(0.0), MixUp(1e-6)])
def test_a_class_index_below_0_is_no_label_whatever_the_loss_ignores(algorithm):
    inputs, targets = images(None, True, 2)

    def loss_fn(outputs, targets):
        return cross_entropy(outputs, targets, ignore_index=-1)

    batch = inputs, targets.clamp(min=-1)
    expected = trained(loss_fn, batch, 2)

    torch.testing.assert_close(trained(loss_fn, batch, 2, [algorithm]), expected)
