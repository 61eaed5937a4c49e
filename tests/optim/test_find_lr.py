"""The learning rate range test: its numbers, and what it refuses."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.datapipes.iter import IterableWrapper

from composable import Event
from composable.distributed.starting import join_processes
from composable.optim import by_role, cosine, find_lr
from composable.optim.find_lr import RangeTest
from tests.support.data import batches, shuffling_loader
from tests.support.models import language_model, mlp, same, weights
from tests.support.observers import Watch
from tests.support.processes import attempt
from tests.support.runs import LANGUAGE, make_trainer

POINT = (torch.ones(1, 1), torch.zeros(1, 1))


def scalar(start=1.0):
    """Build a model whose loss on `POINT` is the square of its only weight."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(start)
    return model


def parabola(**options):
    options = {"optimizers": partial(SGD, lr=1.0), "loss_fn": mse_loss, **options}
    return make_trainer(scalar(), [POINT], **options)


def test_rates_and_losses_are_those_of_the_formula():
    found = find_lr(parabola(), min_lr=0.01, max_lr=0.16, num_steps=5)

    weight, expected = 1.0, []
    for rate in found.rates:
        expected.append(weight**2)
        weight -= rate * 2 * weight
    assert found.rates == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16])
    assert found.losses == pytest.approx(expected)


def test_smoothed_losses_and_suggestion():
    found = RangeTest((1.0, 2.0, 4.0), (3.0, 1.0, 1.0))

    assert found.smoothed == pytest.approx((3.0, 3.7 / 1.9, 4.33 / 2.71))
    assert found.suggestion == 0.4
    assert RangeTest((1.0, 2.0), (1.0, 3.0)).suggestion is None


def test_it_ends_when_the_loss_diverges_or_is_not_finite():
    found = find_lr(parabola(), min_lr=0.1, max_lr=1e4, num_steps=20)
    assert len(found.losses) < 20
    assert found.losses[-1] > 4 * min(found.losses)

    jump = find_lr(parabola(), min_lr=0.1, max_lr=1e30, num_steps=2)
    assert len(jump.losses) == 2
    assert all(map(math.isfinite, jump.losses))


def test_groups_keep_their_ratios_whatever_a_scheduler_has_set():
    seen = []
    original = SGD.step

    class Spy(SGD):
        def step(self, closure=None):
            seen.append([group["lr"] for group in self.param_groups])
            return original(self, closure)

    def optimizer(parameters):
        first, *rest = parameters
        return Spy([{"params": [first]}, {"params": rest, "lr": 0.3}], lr=0.1)

    trainer = make_trainer(mlp(), optimizers=optimizer, schedulers=cosine(warmup="2ba"))
    trainer.fit(duration="3ba")
    seen.clear()

    found = find_lr(trainer, min_lr=0.01, max_lr=0.02, num_steps=3)

    assert seen == [pytest.approx([rate, 3 * rate]) for rate in found.rates]


def test_callbacks_see_nothing():
    watch = Watch(Event.BATCH_START)
    trainer = make_trainer(mlp(), callbacks=watch)

    find_lr(trainer, num_steps=4)

    assert not watch.seen
    trainer.fit()
    assert len(watch.seen) == 6


def test_default_batches_are_the_next_ones_and_are_repeated():
    data, seen = batches(12), []
    trainer = make_trainer(mlp(), data)
    trainer.fit(duration="2ba")

    with trainer.trial() as trial:
        for _, batch in zip(range(5), trial.batches(), strict=False):
            seen.append(batch)

    order = [2, 0, 1, 2, 0]
    assert [batch[0].tolist() for batch in seen] == [data[k][0].tolist() for k in order]


@pytest.mark.parametrize(
    "given", [batches(8), DataLoader(TensorDataset(*batches(8, 8)[0]), batch_size=4)]
)
def test_other_batches_may_be_given(given):
    assert find_lr(make_trainer(mlp()), batches=given, num_steps=5).losses


def test_compiled_and_eager_runs_agree_and_go_on():
    def found(**options):
        trainer = LANGUAGE.trainer(language_model(one_by_one=True), optimizers=SGD_, **options)
        result = find_lr(trainer, max_lr=0.1, num_steps=6)
        return result, weights(trainer.fit().model)

    eager, compiled = found(), found(compile={"backend": "eager"})
    assert eager[0].losses == pytest.approx(compiled[0].losses, rel=1e-5)
    untried = LANGUAGE.trainer(language_model(one_by_one=True), optimizers=SGD_).fit()
    assert same(eager[1], weights(untried.model))


SGD_ = by_role({"head": partial(SGD, lr=0.1)}, partial(SGD, lr=0.1))


def test_an_error_in_the_block_restores_too():
    trainer = make_trainer(mlp())
    before = weights(trainer.state.model)

    def fail():
        with trainer.trial() as trial:
            trial.step(batches(4)[0], 0)
            assert not same(weights(trainer.state.model), before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert same(weights(trainer.state.model), before)


def never(parameters):
    return SGD(parameters, lr=0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find_lr(parabola(optimizers=never)), "first parameter group has no learning rate"),
        (
            lambda: find_lr(parabola(optimizers=())),
            "trial and check need optimizers and a loss",
        ),
        (
            lambda: find_lr(
                make_trainer(mlp(), DataLoader(IterableWrapper(batches(4)), batch_size=None))
            ),
            "train_dataloader=DataLoader has a position",
        ),
        (
            lambda: find_lr(parabola(), batches=[(torch.full((1, 1), math.nan), POINT[1])]),
            "loss of the first batch is not finite",
        ),
        (lambda: RangeTest((1.0,), (1.0,)).plot("a.txt"), "path='a.txt' must end in .png"),
    ],
)
def test_invalid_arguments_are_rejected_by_name(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def find_lr_of_two():
    join_processes()
    find_lr(make_trainer(loader=shuffling_loader(8), parallel="ddp"))


def test_several_processes_are_refused_by_name():
    for failed in attempt(find_lr_of_two, 2):
        assert failed.kind == "ValueError"
        assert "several processes" in failed.message


def test_trial_within_fit_is_an_error():
    def call(event, state, logger):
        if event is Event.BATCH_START:
            with trainer.trial():
                pass

    trainer = make_trainer(mlp(), callbacks=call)
    with pytest.raises(RuntimeError, match="trial was called while the Trainer runs"):
        trainer.fit()


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_plot_is_written(suffix, tmp_path):
    pytest.importorskip("matplotlib")
    found = find_lr(parabola(), min_lr=0.01, num_steps=8)

    figure = found.plot(tmp_path / f"rates.{suffix}")

    assert (tmp_path / f"rates.{suffix}").stat().st_size > 1000
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [line.get_label() for line in axes.lines][:2] == ["loss", "smoothed"]
    assert list(axes.lines[0].get_ydata()) == list(found.losses)
