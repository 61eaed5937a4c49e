"""Every algorithm of the library has one case, and acts on the problems that it names."""

import sys
from functools import cache
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable
from composable import Event
from composable._support import checks
from composable.algorithms import (
    SAM,
    ColOut,
    CutOut,
    GradientClipping,
    LabelSmoothing,
    ProgressiveResizing,
    SelectiveBackprop,
    SeqLengthWarmup,
)
from composable.testing.laws import LAWS
from composable.testing.runs import Case
from composable.trainer.loop import train_batch
from tests.support.algorithm_cases import ALGORITHMS, EXTRAS
from tests.support.campaign import drawn
from tests.support.cases import exported_algorithms
from tests.support.models import LENGTH
from tests.support.outcomes import differences, outcome
from tests.support.runs import LANGUAGE, PROBLEMS, VISION
from tests.support.strategies import single


def test_every_exported_algorithm_has_one_case():
    exported = exported_algorithms()

    assert {case.kind for case in ALGORITHMS} == set(exported)
    assert len(ALGORITHMS) == len(exported)


outcome_without = cache(outcome)


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
@pytest.mark.parametrize("case", ALGORITHMS + EXTRAS, ids=repr)
def test_an_algorithm_acts_on_the_problems_of_its_case_alone(problem, case):
    try:
        acts = bool(differences(outcome(problem, case.example), outcome_without(problem)))
    except Exception:
        acts = False

    assert acts is (case.acts_on(problem) and not case.no_effect)


def problem_of(case):
    return next(problem for problem in PROBLEMS if case.acts_on(problem))


SURGEONS = [one for one in ALGORITHMS if one.example.events == {Event.INIT} and one.meaning]


@pytest.mark.parametrize("case", [one for one in SURGEONS if not one.alone], ids=repr)
@single
@given(data=st.data())
def test_training_with_a_surgery_is_training_of_the_model_of_its_function(case, data):
    """Law of methods: Training with a model surgery is training of the model that its function
    returns.
    """
    algorithm, problem = data.draw(case.instances), problem_of(case)
    state = problem.trainer().state
    model = case.meaning(algorithm, state)["model"]

    assert not differences(outcome(problem, algorithm), outcome(problem, model=model))
    assert all(algorithm(event, state) is state for event in set(Event) - {Event.INIT})


NEUTRAL = [
    (VISION, LabelSmoothing(0.0)),
    (VISION, SelectiveBackprop(0.0, 1.0, keep=1.0, interrupt=0)),
    (VISION, ProgressiveResizing(initial_scale=1.0)),
    (VISION, ColOut(p_row=0.0, p_col=0.0)),
    (VISION, CutOut(num_holes=0)),
    (VISION, CutOut(length=0, per_sample=False)),
    (VISION, ProgressiveResizing("crop", finetune_fraction=1.0, delay_fraction=0.0)),
    (LANGUAGE, SeqLengthWarmup(min_seq_length=100, max_seq_length=100)),
    (LANGUAGE, SeqLengthWarmup(duration=0.0, max_seq_length=LENGTH, min_seq_length=1)),
    *((problem, SAM(0.0)) for problem in PROBLEMS),
    *((problem, GradientClipping("norm", 1e9)) for problem in PROBLEMS),
]


@pytest.mark.parametrize(("problem", "algorithm"), NEUTRAL)
def test_an_algorithm_with_its_neutral_setting_changes_no_weight(problem, algorithm):
    """Law of methods: A neutral setting of a method on batches changes no weight."""
    ours, plain = outcome(problem, algorithm), outcome(problem)

    if isinstance(algorithm, LabelSmoothing):  # the loss of class probabilities rounds
        assert_close(ours["weights"], plain["weights"])
    else:
        assert not differences(ours, plain)


SWITCHES = [(case, problem) for case in ALGORITHMS for problem in PROBLEMS if case.acts_on(problem)]
COMPILE = {"backend": "eager"}  # what freezes a flag is the trace, not the code


def verdict(case, problem, options):
    law = Case(
        case.example,
        model=problem.model,
        lone_model=problem.model,
        dataloader=list(problem.batches()),
        loss_fn=cross_entropy,
        no_effect=case.no_effect,
        options={**problem.options, "max_duration": "3ba", **options},
    )
    return LAWS["takes_effect"].check(law)


@pytest.mark.parametrize(
    ("case", "problem", "options"),
    [
        *((*one, {}) for one in SWITCHES),
        *((*one, {"compile": COMPILE}) for one in drawn(SWITCHES, 2)),
    ],
    ids=repr,
)
def test_a_method_changes_outputs_within_three_steps_or_says_why_not(case, problem, options):
    """Law of methods: A switch takes effect: within three steps, training with an algorithm gives
    other outputs than training without it, also in a compiled model, or its case gives the reason
    why not.
    """
    found = verdict(case, problem, options)

    assert found is None or getattr(found, "reason", found) == case.no_effect


LAYERS = Path(composable.__file__).parent / "functional/layers"  # check what their models call


def caller_of(frame):
    while frame.f_code.co_filename == checks.__file__:
        frame = frame.f_back
    return frame.f_code


def checked_in_training(trainer, names):
    """Return the arguments of these names that are checked in a run's batches, and where."""
    found, started = set(), []

    def profile(frame, event, _):
        if event == "call" and frame.f_code is train_batch.__code__:
            started.append(frame)
        if event != "call" or not started or frame.f_code.co_filename != checks.__file__:
            return
        by, name = caller_of(frame), frame.f_locals.get("name")
        if name in names and LAYERS not in Path(by.co_filename).parents:
            found.add((name, by.co_name))

    sys.setprofile(profile)
    try:
        trainer.fit()
    finally:
        sys.setprofile(None)
    assert started
    return found


@pytest.mark.parametrize("case", ALGORITHMS, ids=lambda case: case.kind.__name__)
def test_the_fields_of_an_algorithm_are_not_checked_again_in_training(case):
    problem = next(one for one in PROBLEMS if case.acts_on(one))
    names = {field.name for field in attrs.fields(case.kind)}

    found = checked_in_training(
        problem.trainer(algorithms=[case.example], max_duration="1ep"), names
    )

    assert not found
