"""Functions of scripts are sent to workers, with the packages that they use."""

import copy
import pickle

import cloudpickle
import pytest

import composable
import composable.functional as F
from composable import algorithms, optim
from composable.comparison.trials.payload import pickled


def test_a_function_that_uses_the_package_is_sent():
    def build(algorithms, seed):
        return composable.Trainer, composable.functional.mixup, F.cutmix

    sent = pickle.loads(pickled("build", build, build))

    assert sent(1, 2) == (composable.Trainer, F.mixup, F.cutmix)


@pytest.mark.parametrize(
    "package", [composable, F, algorithms, optim], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("library", [pickle, cloudpickle])
def test_a_package_is_pickled_by_its_name(package, library):
    assert pickle.loads(library.dumps(package)) is package
    assert copy.deepcopy(package) is package
