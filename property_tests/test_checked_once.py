"""Law: the fields of an algorithm are checked when it is constructed, and not in training."""

import sys
from pathlib import Path

import attrs
import pytest

import composable
from composable._support import checks
from composable.trainer.loop import train_batch
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.runs import PROBLEMS

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
