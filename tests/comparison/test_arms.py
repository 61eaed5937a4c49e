"""Arms: lists, recipes and functions, and those that follow from others."""

from functools import partial

import pytest
import torch

from composable import IncompatibleAlgorithmsError
from composable.algorithms import EMA, SWA, AugMix, LabelSmoothing, MixUp, RandAugment
from composable.comparison.arms import Arm, as_arms, check_composed
from composable.recipes import Recipe

SMOOTHING, EMA_20 = LabelSmoothing(0.1), EMA(half_life="20ba")


def names(arms):
    return [arm.name for arm in arms]


def test_the_baseline_comes_first_and_has_no_algorithms_by_default():
    baseline, other = as_arms({"mixup": [MixUp()]})
    assert (baseline.name, baseline.recipe({})) == ("baseline", Recipe())
    assert other.recipe({}) == Recipe([MixUp()])


def test_the_baseline_may_be_one_of_the_arms():
    arms = as_arms({"a": [SMOOTHING], "b": [], "c": [EMA_20]}, baseline="b")
    assert names(arms) == ["b", "a", "c"]


def test_the_function_of_an_arm_gets_its_own_hyperparameters_only():
    arm = Arm("smooth", lambda smoothing, scale=1.0: [LabelSmoothing(smoothing * scale)])
    assert list(arm.takes) == ["smoothing", "scale"]
    assert arm.recipe({"smoothing": 0.2, "lr": 3}).algorithms == (LabelSmoothing(0.2),)


def test_a_function_may_return_a_recipe():
    recipe = Recipe([SMOOTHING], partial(torch.optim.SGD, lr=0.1))
    assert Arm("own", lambda: recipe).recipe({}) is recipe


@pytest.mark.parametrize("returned", [None, SMOOTHING, "mixup"])
def test_a_function_that_returns_something_else_is_an_error(returned):
    with pytest.raises(TypeError, match=r"arm 'own' returned .* must return a list"):
        Arm("own", lambda: returned).recipe({})


@pytest.mark.parametrize(
    ("arms", "error", "message"),
    [
        ([SMOOTHING], TypeError, "must be a mapping from names to arms"),
        ({}, ValueError, "at least one arm beside the baseline"),
        ({"": []}, TypeError, "a name must be a string, and not empty"),
        ({1: []}, TypeError, "arms has the name 1"),
        ({"a": MixUp}, TypeError, r"arm 'a' is the class MixUp; pass \[MixUp\(\)\]"),
        ({"a": SMOOTHING}, TypeError, "arm 'a' is an algorithm; pass a list"),
        ({"a": "mixup"}, TypeError, "arm 'a' is 'mixup'; it must be a list of algorithms"),
        ({"a": lambda **all: []}, TypeError, "has the parameter \\*\\*all"),
        ({"baseline": []}, ValueError, "pass baseline='baseline'"),
    ],
)
def test_invalid_arms_are_errors(arms, error, message):
    with pytest.raises(error, match=message):
        as_arms(arms)


def test_a_baseline_that_is_no_arm_is_an_error():
    with pytest.raises(ValueError, match=r"baseline='c' must be one of the arms: \['a', 'b'\]"):
        as_arms({"a": [], "b": []}, baseline="c")


def test_the_arms_of_a_loop_have_values_of_any_type():
    baseline, other = as_arms({"other": 3}, {"lr": 1}, of_loop=True)
    assert baseline.arguments({"depth": 2}) == {"arm": {"lr": 1}, "depth": 2}
    assert (other.value, other.takes, check_composed(other, [{}])) == (3, {}, ())


def test_incompatible_algorithms_are_found_with_the_name_of_the_arm():
    with pytest.raises(IncompatibleAlgorithmsError, match="arm 'two' cannot be composed: "):
        check_composed(Arm("two", [EMA_20, SWA()]), [{}])


def test_values_that_an_algorithm_refuses_are_named():
    arm = Arm("smooth", lambda smoothing: [LabelSmoothing(smoothing)])
    with pytest.raises(ValueError, match=r"arm 'smooth' with {'smoothing': 3} cannot be"):
        check_composed(arm, [{"smoothing": 0.1}, {"smoothing": 3}])


def test_warnings_of_the_plan_become_notes_once():
    arm = Arm("two", [RandAugment(), AugMix()])
    (note, *more) = check_composed(arm, [{"lr": 1}, {"lr": 2}])
    assert note.startswith("two: ")
    assert not more


def test_a_function_that_fails_is_named():
    arm = Arm("wrong", lambda alpha=0.1: 1 / 0)
    message = "the function of arm 'wrong' fails: ZeroDivisionError: division by zero"
    with pytest.raises(ValueError, match=message):
        check_composed(arm, [{}])
