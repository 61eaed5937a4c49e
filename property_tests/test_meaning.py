"""Laws: what the methods mean, for every algorithm of the library.

An algorithm joins by its specimen. What has to be known of it besides stands in the tables here:
the function that it calls, and for a surgery the setting that changes nothing.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F
from composable import Algorithm, Event, Key, Stage, State
from composable.algorithms import (
    SWA,
    ChannelsLast,
    GhostBatchNorm,
    GyroDropout,
    LowPrecisionGroupNorm,
    LowPrecisionLayerNorm,
    StochasticDepth,
)
from composable.algorithms.ema import tensors_of
from property_tests.outcomes import differences
from property_tests.specimens import SPECIMENS, specimens
from tests.runs import PROBLEMS, VISION, batches, conv_net, mlp, trainer

ORDER, TAKES_OVER = list(Event), {Event.EVAL_START, Event.PREDICT_START}
SURGEONS = [one for one in SPECIMENS if Event.INIT in one.telling.events]
AVERAGERS = [one for one in SPECIMENS if one.telling.stage is Stage.AVERAGE]


def start(specimen, seed=0, model=None):
    """The state before the first batch of a run on which an algorithm can act."""
    problem = next(problem for problem in PROBLEMS if specimen.acts_on(problem))
    state = problem.trainer(max_duration="4ba").state
    return state.evolve(
        model=problem.model(seed=seed).train() if model is None else model,
        batch=next(iter(problem.batches())),
        key=Key(seed),
        optimizers=(),
    )


def called(model, state):
    """What a model makes of the batch, with the same random numbers each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model(state.inputs)


# --- the algorithm does exactly what the function does ---


def given_to(algorithm: Algorithm, *left_out: str) -> dict[str, Any]:
    """The hyperparameters of an algorithm, by name."""
    names = {field.name for field in attrs.fields(type(algorithm))} - {"name", *left_out}
    return {name: getattr(algorithm, name) for name in names}


def surgery(function: Callable[..., nn.Module], *left_out: str) -> Any:
    """What a function makes of the model."""
    return lambda a, s: {"model": function(s.model, **given_to(a, *left_out))}


def drawn_surgery(function: Callable[..., nn.Module], **more: Any) -> Any:
    """What a function that draws makes of the model."""
    return lambda a, s: {
        "model": function(s.model, **given_to(a), **more, generator=s.key.fold(a.name).generator())
    }


def on_inputs(function: Callable[..., Any], *left_out: str) -> Any:
    """What a function that draws makes of the inputs."""
    return lambda a, s: {
        "batch": (
            function(s.inputs, **given_to(a, *left_out), generator=s.generator(a.name)),
            s.targets,
        )
    }


def mixing(function: Callable[..., Any]) -> Any:
    """What a function that mixes makes of the batch."""

    def mixed(a: Algorithm, s: State) -> Mapping[str, Any]:
        options = given_to(a, "interpolate_loss")
        result = function(s.inputs, s.targets, **options, generator=s.generator(a.name))
        return {"batch": (result.inputs, result.mixed_targets)}

    return mixed


def resized(a: Any, s: State) -> Mapping[str, Any]:
    """What `resize_batch` makes of the inputs, at the scale of the time."""
    when = ("initial_scale", "finetune_fraction", "delay_fraction")
    scale = F.progressive_scale(s.elapsed, **{name: getattr(a, name) for name in when})
    options = given_to(a, *when)
    small = F.resize_batch(s.inputs, **options, scale_factor=scale, generator=s.generator(a.name))
    return {"batch": (small.inputs, s.targets)}


def shortened(a: Any, s: State) -> Mapping[str, Any]:
    """What `set_sequence_length` makes of the batch, at the length of the time."""
    how = ("truncate", "preserve_end_of_sequence")
    length = F.warmed_up_length(s.elapsed, **given_to(a, *how))
    options = {name: getattr(a, name) for name in how}
    return {"batch": F.set_sequence_length(s.batch, length, **options)}


def selected(a: Any, s: State) -> Mapping[str, Any]:
    """What is left of the batch."""
    acts = F.should_select(
        s.elapsed, s.timestamp.batch, start=a.start, end=a.end, interrupt=a.interrupt
    )
    chosen = F.select_using_loss(a.score(s), keep=a.keep, generator=s.generator(a.name))
    return {"batch": (s.inputs[chosen], s.targets[chosen])} if acts else {}


def clipped(a: Any, s: State) -> Mapping[str, Any]:
    """What `clip_gradients` makes of the gradients."""
    options = {"method": a.clipping_type, "threshold": a.clipping_threshold}
    params = dict(s.model.named_parameters())
    return {"gradients": F.clip_gradients(s.current_gradients(), params=params, **options)}


def averaged(a: Any, s: State) -> Mapping[str, Any]:
    """What `ema` makes of the average."""
    average = s.memory[a.name]["average"]
    return {"memory": {a.name: {"average": F.ema(average, tensors_of(s), smoothing=a.share_kept)}}}


def frozen(a: Any, s: State) -> Mapping[str, Any]:
    """The parameters of the layers that `frozen_layers` names."""
    return {
        "frozen": frozenset(F.frozen_layers(s.model, elapsed=s.elapsed, **given_to(a)).parameters)
    }


def perturbed(a: Any, s: State) -> Mapping[str, Any]:
    """The weights of the second pass."""
    params = dict(s.model.named_parameters())
    return {
        "second_pass": F.sam_perturbation(
            params, s.current_gradients(), rho=a.rho, epsilon=a.epsilon
        )
    }


def run_mean(a: Any, s: State) -> Mapping[str, Any]:
    """What `swa` makes of the average."""
    average = s.memory[a.name]["average"]
    mean = F.swa(average, tensors_of(s), s.memory[a.name]["count"])
    return {"memory": {a.name: {"average": mean, "count": 2, "seen": 0}}}


FUNCTIONS: dict[str, Callable[[Any, State], Mapping[str, Any]]] = {
    "Alibi": surgery(F.alibi, "train_sequence_length_scaling"),
    "AugMix": on_inputs(F.augmix, "mean", "std"),
    "BlurPool": surgery(F.blurpool),
    "ChannelsLast": surgery(F.channels_last),
    "ColOut": lambda a, s: {
        "batch": tuple(F.colout(s.inputs, s.targets, **given_to(a), generator=s.generator(a.name)))
    },
    "CutMix": mixing(F.cutmix),
    "CutOut": on_inputs(F.cutout),
    "EMA": averaged,
    "Factorize": surgery(F.factorize),
    "GatedLinearUnits": drawn_surgery(F.gated_linear_units),
    "GhostBatchNorm": surgery(F.ghost_batchnorm),
    "GradientClipping": clipped,
    "GyroDropout": drawn_surgery(F.gyro_dropout, iters_per_epoch=1, max_epoch=4),
    "LabelSmoothing": lambda a, s: {
        "batch": (
            s.inputs,
            F.smooth_labels(s.targets, smoothing=a.smoothing, num_classes=s.outputs.shape[1]),
        )
    },
    "LayerFreezing": frozen,
    "LowPrecisionGroupNorm": surgery(F.low_precision_groupnorm),
    "LowPrecisionLayerNorm": surgery(F.low_precision_layernorm),
    "MixUp": mixing(F.mixup),
    "NoOpModel": surgery(F.no_op_model),
    "ProgressiveResizing": resized,
    "RandAugment": on_inputs(F.randaugment, "mean", "std"),
    "SAM": perturbed,
    "SWA": run_mean,
    "SelectiveBackprop": selected,
    "SeqLengthWarmup": shortened,
    "SqueezeExcite": drawn_surgery(F.squeeze_excite),
    "StochasticDepth": surgery(F.stochastic_depth, "drop_warmup"),
    "WeightStandardization": surgery(F.weight_standardization),
}
"""What the functions make of a state in the place of an algorithm: the fields that change."""


def test_every_algorithm_is_compared_with_its_function():
    assert FUNCTIONS.keys() == {one.name for one in SPECIMENS}


def where(algorithm: Any) -> Event:
    """The event at which an algorithm calls its function."""
    if isinstance(algorithm, SWA):
        return Event.EPOCH_END if algorithm.by_epoch else Event.BATCH_END
    return min(algorithm.events - TAKES_OVER, key=ORDER.index)


@pytest.mark.parametrize("specimen", SPECIMENS, ids=repr)
@given(st.data(), st.integers(0, 2**32 - 1), st.integers(0, 3))
@settings(max_examples=10)
def test_an_algorithm_does_exactly_what_its_function_does(specimen, data, seed, batch):
    algorithm = data.draw(specimen.instances)
    state = start(specimen, seed)
    outputs = state.model(state.inputs)
    cross_entropy(outputs, state.targets).backward()
    old = {name: tensor.detach() + 1 for name, tensor in tensors_of(state).items()}
    at = attrs.evolve(state.timestamp, batch=batch)
    memory = {"average": old, "count": 1, "seen": 0}
    state = state.evolve(outputs=outputs, timestamp=at).remember(algorithm.name, memory)
    event = where(algorithm)
    acts = algorithm.match(event, state)

    new = algorithm(event, state)

    expected = FUNCTIONS[specimen.name](algorithm, state) if acts else {}
    if "second_pass" in expected:
        assert not differences(new.second_pass(state), expected["second_pass"])
    for field in ("batch", "gradients", "memory", "frozen"):
        assert not differences(getattr(new, field), expected.get(field, getattr(state, field)))
    model = expected.get("model", state.model)
    assert repr(new.model) == repr(model)
    assert not differences(new.model.state_dict(), model.state_dict())


# --- neutral settings ---


NEUTRAL: dict[str, Algorithm] = {
    "ChannelsLast": ChannelsLast(),
    "GhostBatchNorm": GhostBatchNorm(ghost_batch_size=100),
    "GyroDropout": GyroDropout(p=0.0),
    "LowPrecisionGroupNorm": LowPrecisionGroupNorm(),  # without autocast
    "LowPrecisionLayerNorm": LowPrecisionLayerNorm(),
    "StochasticDepth": StochasticDepth(target=nn.ReLU, drop_rate=0.0),
}
"""Settings in which a surgery computes what the model did."""

NEVER_NEUTRAL = {
    "Alibi": "it takes away positions",
    "Factorize": "it replaces a layer only where a pair saves work, which can't hold every weight",
    "GatedLinearUnits": "its gate multiplies by a layer that is drawn anew",
    "BlurPool": "its blur has one strength; it is the identity on what is the same everywhere",
    "NoOpModel": "it computes nothing",
    "SqueezeExcite": "its attention is a sigmoid, which is never 1",
    "WeightStandardization": "it has one scale; on standardized weights it is the identity",
}
"""Surgeries that have no such setting, and why."""


def without_dropout(model):
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return model


def test_every_surgery_has_a_neutral_setting_or_says_why_not():
    assert NEUTRAL.keys() | NEVER_NEUTRAL.keys() == {one.name for one in SURGEONS}
    assert not NEUTRAL.keys() & NEVER_NEUTRAL.keys()


@pytest.mark.parametrize("specimen", [s for s in SURGEONS if s.name in NEUTRAL], ids=repr)
@pytest.mark.parametrize("training", [True, False])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5)
def test_a_surgery_with_its_neutral_setting_computes_what_the_model_did(specimen, training, seed):
    state = start(specimen, seed)
    # Which numbers a dropout draws for which pixel depends on the memory layout.
    state = state.evolve(model=without_dropout(state.model))
    plain = state.model

    changed = NEUTRAL[specimen.name](Event.INIT, state).model

    plain, changed = copy.deepcopy(plain).train(training), changed.train(training)
    assert_close(called(changed, state), called(plain, state))


@given(
    value=st.floats(-3, 3), seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["conv", "pool"])
)
@settings(max_examples=10)
def test_blurring_changes_nothing_about_what_is_the_same_everywhere(value, seed, kind):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = nn.MaxPool2d(2) if kind == "pool" else nn.Conv2d(2, 3, 3, stride=2)
    flat = torch.full((2, 2, 9, 9), value)

    for first in (True, False):
        blurred = F.blurpool(layer, min_channels=0, blur_first=first)
        assert_close(blurred(flat), layer(flat))


@given(st.integers(0, 2**32 - 1))
def test_a_layer_without_a_stride_has_an_identity_for_its_blur(seed):
    x = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(seed))
    conv = F.BlurConv2d(3, 4, 3, padding=1)

    assert torch.equal(conv(x), nn.functional.conv2d(x, conv.weight, conv.bias, padding=1))
    assert torch.equal(F.BlurMaxPool2d(3, stride=1)(x), nn.MaxPool2d(3, stride=1)(x))


@given(st.integers(0, 2**32 - 1))
def test_standardizing_standardized_weights_changes_nothing(seed):
    weight = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(seed)).double()
    once = F.standardize_weight(weight)

    assert_close(F.standardize_weight(once), once, rtol=1e-3, atol=1e-3)


# --- twice, and state dicts ---


TWICE: dict[str, str] = {}
"""Surgeries that change a model of theirs once more, and why."""


@pytest.mark.parametrize("specimen", SURGEONS, ids=repr)
@given(data=st.data())
@settings(max_examples=5)
def test_surgery_twice_is_surgery_once_or_says_why_not(specimen, data):
    algorithm = data.draw(specimen.instances)

    once = algorithm(Event.INIT, start(specimen))
    twice = algorithm(Event.INIT, once)

    assert (twice.model is once.model) is (specimen.name not in TWICE)


@pytest.mark.parametrize("specimen", SURGEONS, ids=repr)
@given(data=st.data())
@settings(max_examples=5)
def test_the_state_dict_of_a_changed_model_loads_into_a_fresh_one(specimen, data):
    algorithm = data.draw(specimen.instances)
    state, fresh = start(specimen, seed=1), start(specimen, seed=2)
    changed = algorithm(Event.INIT, state).model
    with torch.no_grad():
        for tensor in changed.parameters():
            tensor += 0.1

    loaded = algorithm(Event.INIT, fresh).model
    loaded.load_state_dict(copy.deepcopy(changed.state_dict()))

    assert not differences(loaded.state_dict(), changed.state_dict())
    for training in (True, False):
        outputs = [called(model.train(training), state) for model in (loaded, changed)]
        assert torch.equal(*outputs)


# --- averages, and the mass of labels ---


@pytest.mark.parametrize("specimen", AVERAGERS, ids=repr)
@given(data=st.data(), seed=st.integers(0, 100))
@settings(max_examples=5)
def test_the_average_of_weights_that_never_move_is_what_they_are(specimen, data, seed):
    evaluated = []

    def still(*algorithms):
        run = trainer(
            mlp(seed=seed),
            optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
            eval_dataloader=batches(),
            algorithms=algorithms,
            max_duration="3ep",
        )
        evaluated.append(run.fit().metrics["eval"])

    algorithm = data.draw(specimen.instances)
    if isinstance(algorithm, SWA):  # whose own learning rate would move them
        algorithm = attrs.evolve(algorithm, schedule_swa_lr=False, swa_lr=None)
    still(), still(algorithm)

    assert evaluated[0]["loss"] == pytest.approx(evaluated[1]["loss"], rel=1e-6)


@pytest.mark.parametrize("specimen", specimens(VISION, extras=False), ids=repr)
@given(data=st.data())
@settings(max_examples=5)
def test_what_the_loss_gets_has_a_mass_of_one_for_each_example(specimen, data):
    seen = []

    def watching(outputs, targets, **options):
        seen.append(targets)
        return cross_entropy(outputs, targets, **options)

    VISION.trainer(
        conv_net(), algorithms=[data.draw(specimen.instances)], loss_fn=watching, max_duration="4ba"
    ).fit()

    for targets in seen:
        if targets.is_floating_point():
            assert (targets >= 0).all()
            assert_close(targets.sum(1), torch.ones(len(targets)))
