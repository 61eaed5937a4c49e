"""A loss that is a module: it is moved, trained, saved, checked and switched like the model."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA, SAM, GradientClipping
from composable.checkpoint import MismatchError
from composable.functional import clip_gradients, sam_perturbation
from composable.plan.effects import ObserverError
from tests.support.data import batches
from tests.support.models import linear, same, weights
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer, sgd


class Scaled(nn.Module):
    """A loss with a parameter, a buffer that counts calls, and a mode."""

    def __init__(self, size=1):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))
        self.register_buffer("calls", torch.tensor(0))
        self.modes = []

    def forward(self, outputs, targets):
        self.modes.append(self.training)
        if self.training:
            self.calls += 1
        return cross_entropy(outputs * self.scale.sum(), targets)

    def compute(self, outputs, targets):
        return self(outputs, targets)


FORMS = {
    "module": lambda loss: loss,
    "method": lambda loss: loss.compute,
    "partial": lambda loss: partial(partial(loss.compute)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_resumed_run_is_exact(tmp_path, form):
    losses = []

    def run(**options):
        losses.append(Scaled())
        return make_trainer(loss_fn=form(losses[-1]), **options).fit()

    resumes_exactly(run, tmp_path)
    whole, resumed = losses
    assert same(weights(resumed), weights(whole))
    assert whole.calls == 6
    assert whole.scale.item() != 1


def trained_plainly(change=lambda named, compute: None):
    """Train by hand; `change` gets the parameters, and a function that computes their gradients."""
    model, loss = linear(), Scaled()
    named = {**dict(model.named_parameters()), "loss_fn.scale": loss.scale}
    optimizer = sgd(named.values())
    for inputs, targets in batches(12):

        def compute(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()

        compute()
        change(named, compute)
        optimizer.step()
    return model, loss


def check_like(model, loss, **options):
    """Compare a Trainer's weights with those of a model and its loss."""
    trained = Scaled()
    trainer = make_trainer(loss_fn=trained, max_duration="1ep", **options)
    assert same(weights(trainer.fit().model), weights(model))
    assert same(weights(trained)["scale"], weights(loss)["scale"])


def test_matches_plain_loop():
    model, loss = trained_plainly()
    check_like(model, loss)
    assert loss.calls == 3


@pytest.mark.parametrize("kind", ["norm", "value", "adaptive"])
def test_parameters_are_clipped_with_those_of_the_model(kind):
    def clip(named, compute):
        grads = {name: one.grad for name, one in named.items()}
        detached = {name: one.detach() for name, one in named.items()}
        params = detached if kind == "adaptive" else None
        clipped = clip_gradients(grads, threshold=0.01, method=kind, params=params)
        for name, one in named.items():
            one.grad = clipped[name]

    check_like(*trained_plainly(clip), algorithms=[GradientClipping(kind, 0.01)])


def test_parameters_are_perturbed_with_those_of_the_model():
    def perturb(named, compute):
        grads = {name: one.grad for name, one in named.items()}
        kept = {name: one.detach().clone() for name, one in named.items()}
        worst = sam_perturbation(named, grads, rho=0.1, epsilon=1e-12)
        for name, one in named.items():
            one.data.copy_(worst[name])
        compute()
        for name, one in named.items():
            one.data.copy_(kept[name])

    check_like(*trained_plainly(perturb), algorithms=[SAM(rho=0.1, epsilon=1e-12, interval=1)])


def test_optimizer_of_loss_alone():
    loss, model = Scaled(), linear()
    before = weights(model)
    make_trainer(model, loss_fn=loss, optimizers=sgd(loss.parameters())).fit()
    assert loss.scale.item() != 1
    assert same(weights(model), before)


def test_warns_of_untrained_parameters():
    model = linear()
    with pytest.warns(UserWarning, match="no optimizer has the parameters loss_fn.scale"):
        make_trainer(model, loss_fn=Scaled(), optimizers=sgd(model.parameters()))


def test_rejects_checkpoint_of_another_loss(tmp_path):
    make_trainer(loss_fn=Scaled(), save_folder=tmp_path).fit()
    with pytest.raises(MismatchError, match="another loss_fn: scale has shape"):
        make_trainer(loss_fn=Scaled(2), save_folder=tmp_path, autoresume=True)


def test_evaluation_and_prediction_keep_mode():
    loss = Scaled()
    trainer = make_trainer(loss_fn=loss, eval_dataloader=batches(12), max_duration="1ep")
    trainer.fit()
    assert loss.modes[:3] == [True] * 3
    assert set(loss.modes[3:]) == {False}
    assert loss.training
    assert loss.calls == 3


def test_starts_in_training_mode():
    loss = Scaled().eval()
    make_trainer(loss_fn=loss, max_duration="1ba").fit()
    assert loss.modes == [True]


@pytest.mark.parametrize(
    "changes",
    [{"algorithms": [SAM()]}, {"nonfinite_loss": "skip"}, {"microbatch_size": "auto"}],
    ids=["second pass", "skipped batch", "out of memory"],
)
def test_discarded_pass_keeps_buffers(changes):
    (argument,) = changes

    class Failing(Scaled):
        """Fails once in the way that each case recovers from."""

        def forward(self, outputs, targets):
            loss = super().forward(outputs, targets)
            first = len(self.modes) == 1
            if first and argument == "microbatch_size":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return loss * torch.nan if first and argument == "nonfinite_loss" else loss

    loss = Failing()
    trainer = make_trainer(loss_fn=loss, max_duration="1ba", loss_mean_over="examples", **changes)
    expected = {"algorithms": 1, "nonfinite_loss": 0, "microbatch_size": 2}
    with (
        pytest.warns(UserWarning, match="skipped")
        if argument == "nonfinite_loss"
        else nullcontext()
    ):
        trainer.fit()
    assert loss.calls == expected[argument]


def test_averages_do_not_include_loss():
    state = make_trainer(loss_fn=Scaled(), algorithms=[EMA("1ba")]).fit()
    assert sorted(state.averages["EMA"]) == ["bias", "weight"]


def test_loss_of_model_is_part_of_model():
    model = linear()
    model.compute = Scaled()
    state = make_trainer(model, loss_fn=model.compute).fit()
    assert state.loss_module is None
    assert model.compute.scale.item() != 1


def test_check_effects_sees_loss():
    def change(event, state, logger):
        if event.name == "BATCH_END":
            state.loss_module.calls.add_(1)

    with pytest.raises(ObserverError, match=r"state.loss_module.calls in place"):
        make_trainer(loss_fn=Scaled(), callbacks=change, check_effects=True).fit()
