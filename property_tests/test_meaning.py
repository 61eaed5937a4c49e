"""Laws: what the methods mean, for every algorithm of the library.

Its case says which function it calls, and of a surgery which setting changes nothing.
"""

import copy
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F
from composable import Event, Key
from composable.resume.modules import module_tensors
from composable.utils.reproducibility import preserve_rng
from tests.support.algorithm_cases import ALGORITHMS, cases_on
from tests.support.cases import AlgorithmCase
from tests.support.meaning import Meaning, hyperparameters_of
from tests.support.models import conv_net
from tests.support.observers import Watch
from tests.support.outcomes import differences
from tests.support.runs import PROBLEMS, VISION
from tests.support.strategies import fewer, fewest, seeds

ORDER, TAKES_OVER = list(Event), {Event.EVAL_START, Event.PREDICT_START}
SURGEONS = [one for one in ALGORITHMS if Event.INIT in one.example.events]


def start(case, seed=0, model=None):
    """Build the state before the first batch of a run on which an algorithm can act."""
    problem = next(problem for problem in PROBLEMS if case.acts_on(problem))
    state = problem.trainer(max_duration="4ba").state
    return state.evolve(
        model=problem.model(seed=seed).train() if model is None else model,
        batch=next(iter(problem.batches())),
        key=Key(seed),
        optimizers=(),
    )


def called(model, state):
    """Return the outputs of a model, with the same random numbers at each call."""
    with preserve_rng():
        torch.manual_seed(0)
        return model(state.inputs)


# --- the algorithm does exactly what the function does ---


def where(case: AlgorithmCase, algorithm: Any) -> Event:
    """Return the event at which an algorithm calls its function."""
    if case.acts_at:
        return case.acts_at(algorithm)
    return min(algorithm.events - TAKES_OVER, key=ORDER.index)


def meaning(case: AlgorithmCase) -> Meaning:
    assert case.meaning, f"give the case of {case.name} meaning=: see tests/support/meaning.py"
    return case.meaning


@pytest.mark.parametrize("case", ALGORITHMS, ids=repr)
@given(st.data(), seeds, st.integers(0, 3))
@fewest
def test_an_algorithm_does_exactly_what_its_function_does(case, data, seed, batch):
    """Law of methods: An algorithm gives exactly the result of its function."""
    name = data.draw(st.sampled_from([case.name, "Other"]))
    algorithm = attrs.evolve(data.draw(case.instances), name=name)
    state = start(case, seed)
    outputs = state.model(state.inputs)
    cross_entropy(outputs, state.targets).backward()
    old = {name: tensor.detach() + 1 for name, tensor in module_tensors(state.model).items()}
    at = attrs.evolve(state.timestamp, batch=batch)
    state = state.evolve(outputs=outputs, timestamp=at).with_average(algorithm.name, old)
    state = state.remember(algorithm.name, dict(case.memory)) if case.memory else state
    event = where(case, algorithm)
    acts = algorithm.match(event, state)

    new = algorithm(event, state)

    expected = meaning(case)(algorithm, state) if acts else {}
    if "second_pass" in expected:
        assert not differences(new.second_pass(state), expected["second_pass"])
    for field in ("whole_loss", "batch", "gradients", "memory", "averages", "frozen"):
        assert not differences(getattr(new, field), expected.get(field, getattr(state, field)))
    model = expected.get("model", state.model)
    assert repr(new.model) == repr(model)
    assert not differences(new.model.state_dict(), model.state_dict())


@pytest.mark.parametrize("case", ALGORITHMS, ids=repr)
@given(data=st.data())
def test_an_algorithm_shows_its_hyperparameters(case, data):
    algorithm = data.draw(case.instances)
    shown = {
        name: getattr(value, "__name__", repr(value))
        for name, value in hyperparameters_of(algorithm).items()
    }

    listed = ", ".join(f"{name}={value}" for name, value in shown.items())
    assert repr(algorithm) == f"{case.name}({listed})"


OF_EVALUATIONS = {Event.EVAL_BATCH_START, Event.EVAL_BEFORE_FORWARD}
OF_TRAINING = [one for one in ALGORITHMS if not OF_EVALUATIONS & one.example.events]


@pytest.mark.parametrize("case", OF_TRAINING, ids=repr)
def test_evaluation_sees_the_examples_as_they_are(case):
    problem = next(problem for problem in PROBLEMS if case.acts_on(problem))
    batches, seen = problem.batches(), Watch(Event.EVAL_BEFORE_FORWARD, read=lambda s: s.batch)
    train = problem.batches()

    problem.trainer(
        loader=train, eval_dataloader=batches, algorithms=[case.example], callbacks=[seen]
    ).fit()

    assert len(seen.values) == 2 * len(batches)
    assert all(any(one is batch for batch in batches) for one in seen.values)


# --- neutral settings ---


def without_dropout(model):
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return model


@pytest.mark.parametrize("case", ALGORITHMS, ids=repr)
def test_every_surgery_has_a_neutral_setting_or_a_reason_why_not(case):
    """Law of methods: Model surgery with its neutral setting (a drop rate of 0, one ghost batch)
    does not change the model's outputs, or its case gives the reason why there is no such setting.
    """
    assert bool(case.neutral) is (case in SURGEONS), "say in neutral= which, or why there is none"


@pytest.mark.parametrize("case", [s for s in SURGEONS if not isinstance(s.neutral, str)], ids=repr)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:LowPrecision.* computes in float32")
@given(seed=seeds)
@fewest
def test_a_surgery_with_its_neutral_setting_computes_what_the_model_did(case, training, seed):
    """Law of methods: Model surgery with its neutral setting (a drop rate of 0, one ghost batch)
    does not change the model's outputs, or its case gives the reason why there is no such setting.
    """
    state = start(case, seed)
    # Which numbers a dropout draws for which pixel depends on the memory layout.
    state = state.evolve(model=without_dropout(state.model))
    plain = state.model

    changed = case.neutral(Event.INIT, state).model

    plain, changed = copy.deepcopy(plain).train(training), changed.train(training)
    assert_close(called(changed, state), called(plain, state))


@given(value=st.floats(-3, 3), seed=seeds, kind=st.sampled_from(["conv", "pool"]))
@fewer
def test_blur_preserves_constant_images_and_acts_in_no_layer_without_a_stride(value, seed, kind):
    """Law of methods: A blur is the identity on constant images, and in a layer without a
    stride.
    """
    x = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(seed))
    with preserve_rng():
        torch.manual_seed(seed)
        layer = nn.MaxPool2d(2) if kind == "pool" else nn.Conv2d(2, 3, 3, stride=2)
        conv = F.BlurConv2d(3, 4, 3, padding=1)
    flat = torch.full((2, 2, 9, 9), value)

    for first in (True, False):
        blurred = F.blurpool(layer, min_channels=0, blur_first=first)
        assert_close(blurred(flat), layer(flat))
    assert torch.equal(conv(x), nn.functional.conv2d(x, conv.weight, conv.bias, padding=1))
    assert torch.equal(F.BlurMaxPool2d(3, stride=1)(x), nn.MaxPool2d(3, stride=1)(x))


# --- state dicts ---


@pytest.mark.parametrize("case", SURGEONS, ids=repr)
@given(data=st.data())
@fewest
def test_state_dict_loads_into_a_new_model_with_the_same_surgery(case, data):
    """Law of methods: The state dict of a modified model loads into a new model with the same
    modification.
    """
    algorithm = data.draw(case.instances)
    state, fresh = start(case, seed=1), start(case, seed=2)
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


# --- the mass of labels ---


@pytest.mark.parametrize("case", cases_on(VISION, extras=False), ids=repr)
@given(data=st.data())
@fewest
def test_targets_of_the_loss_sum_to_one(case, data):
    """Law of methods: Label mass is preserved: the targets passed to the loss sum to one for each
    example.
    """
    seen = []

    def watching(outputs, targets, **options):
        seen.append(targets)
        return cross_entropy(outputs, targets, **options)

    VISION.trainer(
        conv_net(), algorithms=[data.draw(case.instances)], loss_fn=watching, max_duration="4ba"
    ).fit()

    for targets in seen:
        if targets.is_floating_point():
            assert (targets >= 0).all()
            assert_close(targets.sum(1), torch.ones(len(targets)))
