"""EMA and SWA in the loop: their functions over the weights at each update, for evaluations."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import EMA, SWA
from composable.core.evaluation_mode import evaluation_mode
from composable.functional import ema, ema_smoothing
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.models import conv_net, same, weights
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
