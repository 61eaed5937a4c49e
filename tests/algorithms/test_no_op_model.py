"""A model that does nothing, in the loop: all events fire, and nothing is computed."""

import pytest
import torch

from composable import Event
from composable.algorithms import EMA, GradientClipping, MixUp, NoOpModel
from composable.functional import IdleModel
from composable.models import Classifier
from tests.support.data import batches
from tests.support.models import linear
from tests.support.observers import Watch
from tests.support.runs import make_trainer


def test_run_has_all_events():
    watch = Watch(Event.AFTER_OPTIMIZER_STEP)

    state = make_trainer(
        algorithms=[NoOpModel()], eval_dataloader=batches(12), callbacks=[watch], grad_accum=2
    ).fit()

    assert len(watch.seen) == 6
    assert isinstance(state.model, IdleModel)
    assert state.model.weight < 1
    assert state.metrics["eval"]["loss"] == state.model.weight.item()


def test_existing_optimizer_trains_it():
    model = linear()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = make_trainer(model, algorithms=[NoOpModel()], optimizers=optimizer).fit()

    assert state.model.weight.item() == pytest.approx(1 - 6 * 0.1)


def test_replaces_the_loss_of_a_model():
    def never(outputs, targets):
        raise AssertionError("is called")

    state = make_trainer(
        Classifier(linear(), loss_fn=never), algorithms=[NoOpModel()], loss_fn=None
    ).fit()

    assert isinstance(state.model, IdleModel)


def test_works_with_algorithms_that_do_not_read_outputs():
    others = [MixUp(interpolate_loss=True), EMA("1ba"), GradientClipping("norm", 1.0)]

    state = make_trainer(algorithms=[NoOpModel(), *others], eval_dataloader=batches(12)).fit()

    assert torch.isfinite(state.model.weight)
