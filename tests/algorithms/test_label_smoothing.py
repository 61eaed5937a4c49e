"""Label smoothing in the loop does what the function does, for the loss alone."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import LabelSmoothing, MixUp
from composable.functional import smooth_labels
from tests.support.tiny import CLASSES, Watch, batches, make_trainer, same, weights


def test_the_loss_sees_the_targets_of_the_function():
    watch = Watch(Event.AFTER_LOSS, read=lambda s: s.targets)
    make_trainer(algorithms=[LabelSmoothing(0.3)], callbacks=[watch]).fit()

    for seen, (_, targets) in zip(watch.values, 2 * batches(), strict=True):
        assert torch.equal(seen, smooth_labels(targets, smoothing=0.3, num_classes=CLASSES))


def test_training_is_that_of_torch_with_the_same_smoothing():
    ours = make_trainer(algorithms=[LabelSmoothing(0.3)])
    ours.fit()
    theirs = make_trainer(loss_fn=torch.nn.CrossEntropyLoss(label_smoothing=0.3))
    theirs.fit()

    torch.testing.assert_close(weights(ours.state.model), weights(theirs.state.model))


def test_no_smoothing_is_training_without_it():
    ours, plain = make_trainer(algorithms=[LabelSmoothing(0)]), make_trainer()
    ours.fit(), plain.fit()

    torch.testing.assert_close(weights(ours.state.model), weights(plain.state.model))


def test_evaluation_sees_the_targets_as_they_are():
    data = batches([4])
    trainer = make_trainer(algorithms=[LabelSmoothing(1.0)], eval_dataloader=data)
    trainer.fit()

    outputs = trainer.state.model(data[0][0])
    expected = cross_entropy(outputs, data[0][1]).item()
    assert trainer.state.metrics["eval"]["loss"] == pytest.approx(expected)


@pytest.mark.parametrize("mix", [{}, {"interpolate_loss": True}, {"per_sample": True}])
def test_it_goes_with_mixed_batches(mix):
    ours = make_trainer(algorithms=[MixUp(1.0, **mix), LabelSmoothing(0.3)])
    ours.fit()
    theirs = make_trainer(
        algorithms=[MixUp(1.0, **mix)], loss_fn=torch.nn.CrossEntropyLoss(label_smoothing=0.3)
    )
    theirs.fit()

    torch.testing.assert_close(weights(ours.state.model), weights(theirs.state.model))


def test_the_order_in_which_they_are_listed_does_not_matter():
    chosen = [MixUp(1.0), LabelSmoothing(0.3)]
    forward, backward = make_trainer(algorithms=chosen), make_trainer(algorithms=chosen[::-1])
    forward.fit(), backward.fit()

    assert same(weights(forward.state.model), weights(backward.state.model))
