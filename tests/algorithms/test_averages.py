"""EMA and SWA in the loop: their functions over the weights at each update, for evaluations."""

from functools import reduce

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import EMA, SWA
from composable.core.evaluation_mode import evaluation_mode
from composable.functional import ema, ema_smoothing
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.models import CLASSES, conv_net, linear, same, weights
from tests.support.observers import Watch
from tests.support.outcomes import differences
from tests.support.runs import make_trainer, training_weights

BATCH, EPOCH = Event.BATCH_END, Event.EPOCH_END
ALL = {"swa_start": "0dur", "swa_end": "1dur"}
BOTH = pytest.mark.parametrize("algorithm", [EMA("1ba"), SWA(**ALL, update_interval="1ba")])


def run(**options):
    """Build a run of six batches, in two epochs, of a model with batch norm and dropout."""
    return make_trainer(conv_net(), batches(images=True), **options)


def average_of(state):
    (average,) = state.averages.values()
    return average


def exponential(smoothing):
    def average(seen):
        result = seen[0]
        for current in seen[1:]:
            result = ema(result, current, smoothing=smoothing)
        return result

    return average


@pytest.mark.parametrize(
    ("algorithm", "event", "taken", "expected"),
    [
        (EMA(half_life="2ba"), BATCH, range(6), exponential(2**-0.5)),
        (EMA(half_life=None, smoothing=0.75), BATCH, range(6), exponential(0.75)),
        (EMA(half_life=None, smoothing=0.0), BATCH, range(6), exponential(0.0)),
        pytest.param(
            *(EMA(half_life=None, smoothing=1.0), BATCH, range(6), exponential(1.0)),
            marks=pytest.mark.filterwarnings("ignore:EMA. smoothing=1.0 is a half-life of inf"),
        ),
        (EMA("4ba", update_interval="2ba"), BATCH, [1, 3, 5], exponential(ema_smoothing(4, 2))),
        (EMA(half_life="1ep"), EPOCH, [0, 1], exponential(0.5)),
        *(
            (EMA(half_life="2ba", ema_start=start), BATCH, range(2, 6), exponential(2**-0.5))
            for start in ("0.5dur", "3ba", "1ep", "10sp")
        ),
    ],
)
def test_ema_is_that_of_the_function_at_each_update(algorithm, event, taken, expected):
    seen = Watch(event, read=lambda s: weights(s.model))

    state = run(algorithms=algorithm, callbacks=seen).fit()

    assert not differences(average_of(state), expected([seen.values[i] for i in taken]))


@BOTH
def test_evaluations_and_predictions_use_the_average_and_training_does_not(algorithm):
    loader = batches(4, images=True)
    made = run(algorithms=algorithm, eval_dataloader=loader)

    state = made.fit()

    (inputs, targets), model = loader[0], algorithm.averaged_model(state)
    with evaluation_mode(model):
        outputs = model(inputs)
    assert torch.equal(made.predict(loader)[0], outputs)
    loss = float(cross_entropy(outputs, targets))
    assert state.metrics["eval"]["loss"] == pytest.approx(loss)
    assert same(weights(made.state.model), weights(model))
    assert same(training_weights(made), weights(run().fit().model))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_evaluations_use_a_blend_of_average_and_weights(precision, tmp_path):
    algorithm, loader = EMA("2ba", ema_start="2ba", blend=0.6), batches(4, images=True)
    options = {"algorithms": algorithm, "eval_dataloader": loader, "precision": precision}
    made = run(save_folder=tmp_path, save_interval="1ba", **options)

    state = made.fit()

    blended = ema(average_of(state), training_weights(made), smoothing=0.6)
    expected = {name: t.to(weights(state.model)[name].dtype) for name, t in blended.items()}
    assert same(weights(state.model), expected)
    resumed = run(load_path=tmp_path / "ep1-ba4", **options)
    assert same(weights(resumed.fit().model), expected)
    assert resumed.state.metrics["eval"]["loss"] == state.metrics["eval"]["loss"]
    whole = run(**{**options, "algorithms": EMA("2ba", ema_start="2ba")})
    assert not same(weights(whole.fit().model), expected)


@pytest.mark.parametrize(
    "algorithm", [EMA("1ba", ema_start="3ep"), SWA(swa_start="3ep", swa_end="1dur")]
)
def test_evaluations_before_the_first_update_use_the_weights(algorithm):
    averaged = Watch(Event.EVAL_END, read=lambda s: algorithm.name in s.averages)
    ours, plain = InMemoryLogger(), InMemoryLogger()
    options = {"eval_dataloader": batches(4, images=True), "max_duration": "4ep"}

    run(algorithms=algorithm, callbacks=averaged, loggers=ours, **options).fit()
    run(loggers=plain, **options).fit()

    losses = (logger.series("metrics/eval/loss") for logger in (ours, plain))
    equal = [a == b for a, b in zip(*losses, strict=True)]
    assert averaged.values == [False, False, True, True]
    assert equal == [True, True, True, False]  # the average of one model is that model


@BOTH
def test_averaged_model_before_the_first_update_is_an_error(algorithm):
    with pytest.raises(KeyError):
        algorithm.averaged_model(run(algorithms=algorithm).state)


# --- 16-bit, scripted and partly frozen models ---

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
