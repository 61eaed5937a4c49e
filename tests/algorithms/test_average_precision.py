"""Averages of 16-bit, scripted and partly frozen models."""

from functools import reduce

import pytest
import torch
from torch import nn

from composable import Event, Timestamp
from composable.algorithms import EMA, SWA
from tests.support.models import CLASSES, linear, same, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, training_weights

AVERAGERS = [EMA("4ba"), SWA(swa_start="1ba", swa_end="1dur", update_interval="1ba")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("algorithm", AVERAGERS, ids=repr)
def test_average_is_kept_in_at_least_float32(algorithm, dtype):
    trainer = make_trainer(
        linear().to(dtype),
        train_dataloader=[(torch.ones(3, 4, dtype=dtype), torch.arange(3))],
        max_duration="4ba",
        algorithms=[algorithm],
    )
    state = trainer.fit()

    average = state.averages[algorithm.name]
    model = algorithm.averaged_model(state)
    assert {t.dtype for t in average.values()} == {torch.promote_types(dtype, torch.float32)}
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert same(weights(model), {name: t.to(dtype) for name, t in average.items()})


@pytest.mark.parametrize(
    "algorithm", [EMA(half_life=None, smoothing=0.999), AVERAGERS[1]], ids=repr
)
def test_average_of_bfloat16_weights_does_not_stall(algorithm):
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    state = make_trainer(model, max_duration="4000ba", loss_fn=None, algorithms=[algorithm]).state
    values = torch.linspace(1, 2, 2000)
    state = state.evolve(previous_timestamp=Timestamp(batch=1))
    for step, value in enumerate(values):
        with torch.no_grad():
            model.weight.fill_(value.item())
        at = Timestamp(batch=step + 1)
        state = algorithm(Event.BATCH_END, state.evolve(model=model, timestamp=at))

    exact = values.to(torch.bfloat16).float()
    expected = exact.mean()
    if isinstance(algorithm, EMA):
        expected = exact[0]
        for value in exact[1:]:
            expected = torch.lerp(value, expected, 0.999)
    average = state.averages[algorithm.name]["weight"].squeeze()
    torch.testing.assert_close(average, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("outer", [lambda m: m, nn.Sequential], ids=["whole", "part"])
@pytest.mark.parametrize(
    "compile_", [torch.jit.script, lambda m: torch.jit.trace(m, torch.rand(2, 4))]
)
@pytest.mark.parametrize("algorithm", AVERAGERS, ids=repr)
@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_torchscript_model_is_evaluated_with_its_average(algorithm, compile_, outer):
    def model():
        return nn.Sequential(linear(), nn.Tanh())

    plain = make_trainer(model(), algorithms=[algorithm])
    scripted = make_trainer(outer(compile_(model())), algorithms=[algorithm], check_effects=False)
    plain.fit()
    ended = weights(scripted.fit().model)

    averaged = weights(algorithm.averaged_model(scripted.state))
    expected = weights(algorithm.averaged_model(plain.state))
    torch.testing.assert_close(list(averaged.values()), list(expected.values()))
    assert same(averaged, ended)
    assert not same(averaged, training_weights(scripted))


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
def test_fit_keeps_the_modes_of_a_model_in_training_mode(training):
    model = nn.Sequential(linear(), nn.BatchNorm1d(CLASSES)).train(training)
    model[1].eval()
    trainer = make_trainer(model, eval_dataloader=[(torch.ones(2, 4), torch.arange(2))])
    trainer.fit()

    assert trainer.state.model.training
    assert trainer.state.model[1].training is not training
    assert (trainer.state.model[1].num_batches_tracked > 0) is not training


@pytest.mark.parametrize("trained_first", [True, False])
@pytest.mark.parametrize("algorithm", [EMA("1ba"), AVERAGERS[1]], ids=repr)
def test_parameter_that_is_frozen_in_the_middle_stays_and_another_joins(algorithm, trained_first):
    model, watch = linear(), Watch(Event.BATCH_END, read=lambda s: s.model.weight.clone())
    model.weight.requires_grad_(trained_first)
    trainer = make_trainer(model, max_duration="2ba", algorithms=algorithm, callbacks=watch)
    trainer.fit()
    model.weight.requires_grad_(not trained_first)

    average = trainer.fit(duration="2ba").averages[algorithm.name]["weight"]

    *_, third, fourth = values = watch.values
    if not trained_first:
        values = [third, third, third, fourth]
    expected = torch.stack(values).mean(0)
    if isinstance(algorithm, EMA):
        expected = reduce(lambda mean, one: torch.lerp(one, mean, 0.5), values)
    torch.testing.assert_close(average, expected)
    assert torch.equal(values[2], values[3]) is trained_first
