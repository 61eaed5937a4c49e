"""A warning points at the line of the user that it is about."""

import warnings

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Control, Event, Trainer, during
from composable.algorithms import EMA, GradientClipping, MixUp
from tests.support.algorithms import GradientNoise
from tests.support.data import batches
from tests.support.models import linear
from tests.support.observers import Asks
from tests.support.runs import sgd

OPTIONS = {
    "train_dataloader": batches(12),
    "max_duration": "1ep",
    "loss_fn": cross_entropy,
    "optimizers": sgd,
    "progress_bar": False,
    "device": "cpu",
    "seed": 17,
}


def with_nan():
    inputs, targets = batches(12)[0]
    return [(inputs * torch.nan, targets), *batches(12)]


def damaged(folder):
    """Build a folder whose latest checkpoint is damaged."""
    Trainer(linear(), **OPTIONS, save_folder=folder, save_interval="1ba").fit()
    for checkpoint in folder.glob("*-ba3"):
        (checkpoint / "tensors.safetensors").write_bytes(b"")
    return {"save_folder": folder, "autoresume": True}


def changed(folder):
    """Return options that differ from those of a saved run."""
    Trainer(linear(), **OPTIONS, save_folder=folder).fit()
    return {"load_path": folder, "algorithms": [EMA("2ba")]}


BUILDING = {
    "AmbiguousOrderWarning": lambda folder: {
        "algorithms": [GradientClipping("norm", 1.0), GradientNoise()]
    },
    "IdleAlgorithmWarning": lambda folder: {"algorithms": during("8ep", "9ep", MixUp())},
    "BrokenCheckpointWarning": damaged,
    "ChangedRunWarning": changed,
}
FITTING = {
    "NonFiniteLossWarning": {"train_dataloader": with_nan(), "nonfinite_loss": "skip"},
    "UnsupportedRequestWarning": {"callbacks": Asks(Event.BATCH_END, 0, Control.EVALUATE)},
}


def build(options):
    return Trainer(linear(), **options)


def fit(trainer):
    return trainer.fit()


def said_by(call, argument):
    """Return the categories of the warnings in a call, and the lines that they point to."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(argument)
    return {(one.category.__name__, one.filename, one.lineno) for one in caught}


def line_of(function):
    """Return the line of a function's only statement."""
    return function.__code__.co_firstlineno + 1


@pytest.mark.parametrize("kind", BUILDING)
def test_a_warning_of_the_constructor_points_at_its_call(kind, tmp_path):
    options = {**OPTIONS, **BUILDING[kind](tmp_path)}

    assert said_by(build, options) == {(kind, __file__, line_of(build))}


@pytest.mark.parametrize("kind", FITTING)
def test_a_warning_of_a_fit_points_at_its_call(kind):
    trainer = build({**OPTIONS, **FITTING[kind]})

    assert said_by(fit, trainer) == {(kind, __file__, line_of(fit))}


MANAGER = """
from contextlib import contextmanager
from composable._support.warn import warn_user

@contextmanager
def manager():
    warn_user("no data", UserWarning)
    yield
"""


def enter(manager):
    manager().__enter__()


def test_a_warning_of_a_context_manager_points_at_the_line_that_enters_it():
    module = {"__name__": "composable.somewhere"}
    exec(MANAGER, module)

    assert said_by(enter, module["manager"]) == {("UserWarning", __file__, line_of(enter))}
