"""The laws of a model that does nothing."""

import pytest
import torch
from torch import nn

from composable import Event
from composable.algorithms import EMA, GradientClipping, MixUp, NoOpModel
from composable.functional import IdleModel, no_op_model
from composable.models import Classifier
from tests.support.data import batches
from tests.support.models import linear
from tests.support.observers import Watch
from tests.support.runs import make_trainer


def test_output_is_a_scalar_for_any_inputs():
    model = no_op_model(nn.Linear(3, 4))

    assert model(torch.rand(2, 3)).shape == ()
    assert torch.equal(model({"input_ids": [1]}, attention_mask=None), model())


def test_output_is_a_loss_with_gradients():
    model = no_op_model(nn.Linear(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    model.loss(model(torch.rand(2, 3)), batch=None).backward()
    optimizer.step()

    assert model.weight == 0.5


def test_dtype_and_mode_are_those_of_the_model():
    model = no_op_model(nn.Linear(3, 4).double().eval())

    assert model.weight.dtype == torch.float64
    assert not model.training
    assert no_op_model(nn.Embedding(3, 4).to(torch.float16)).weight.dtype == torch.float16


# --- the algorithm ---


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
