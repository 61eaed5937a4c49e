"""Arms: lists, recipes and functions, and those that follow from others."""

from functools import partial

import pytest
import torch

from composable import IncompatibleAlgorithmsError
from composable.algorithms import EMA, SWA, AugMix, LabelSmoothing, MixUp, RandAugment
from composable.comparison.plan.arms import (
    Arm,
    add_one_in,
    as_arms,
    check_composed,
    distinct,
    leave_one_out,
    repeat,
)
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
    assert arm.takes == ("smoothing", "scale")
    assert arm.requires == ("smoothing",)
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


def test_leave_one_out_removes_each_algorithm_in_turn():
    arms = leave_one_out([Arm("all", [SMOOTHING, EMA_20]), Arm("one", [SMOOTHING])])
    assert names(arms) == ["all without LabelSmoothing", "all without EMA"]
    assert [arm.recipe({}).algorithms for arm in arms] == [(EMA_20,), (SMOOTHING,)]


def test_leave_one_out_keeps_the_optimizer_of_a_recipe():
    recipe = Recipe([SMOOTHING, EMA_20], partial(torch.optim.SGD, lr=0.1))
    assert leave_one_out([Arm("all", recipe)])[0].recipe({}).optimizers is recipe.optimizers


@pytest.mark.parametrize("value", [[SMOOTHING], lambda: [SMOOTHING, EMA_20]])
def test_leave_one_out_needs_two_algorithms(value):
    with pytest.raises(ValueError, match="leave_one_out=True needs an arm of two or more"):
        leave_one_out([Arm("one", value)])


def test_add_one_in_adds_each_algorithm_to_the_baseline_once():
    arms = [Arm("all", [SMOOTHING, EMA_20]), Arm("other", [EMA_20, MixUp()])]
    plain = add_one_in(Arm("baseline", []), arms)
    assert names(plain) == ["LabelSmoothing", "EMA", "MixUp"]
    smooth = add_one_in(Arm("smooth", [SMOOTHING]), arms)
    assert names(smooth) == ["smooth + EMA", "smooth + MixUp"]
    assert smooth[0].recipe({}).algorithms == (SMOOTHING, EMA_20)


def test_algorithms_of_one_class_are_named_by_their_calls():
    arms = [Arm("weak", [MixUp(alpha=0.1)]), Arm("strong", [MixUp(alpha=0.5)])]
    added = names(add_one_in(Arm("baseline", []), arms))
    assert len(set(added)) == 2
    assert all("alpha=" in name for name in added)


@pytest.mark.parametrize(
    ("baseline", "arms", "message"),
    [
        (lambda: [], [[SMOOTHING]], "needs a baseline that is a list or a Recipe"),
        ([SMOOTHING], [[SMOOTHING]], "needs an arm with algorithms"),
    ],
)
def test_add_one_in_needs_a_list_and_an_algorithm(baseline, arms, message):
    with pytest.raises(ValueError, match=message):
        add_one_in(Arm("baseline", baseline), [Arm("arm", one) for one in arms])


def test_derived_arms_that_equal_another_are_left_out():
    arms = as_arms({"both": [SMOOTHING, EMA_20], "ema": [EMA_20]})
    derived = [*leave_one_out(arms[1:]), *add_one_in(arms[0], arms[1:])]
    kept = distinct(arms, derived)
    assert names(kept) == ["baseline", "both", "ema", "both without EMA"]


def test_derived_arms_of_the_name_of_another_are_an_error():
    arms = as_arms({"EMA": [SMOOTHING], "all": [EMA_20, MixUp()]})
    with pytest.raises(ValueError, match="two arms have the name 'EMA'"):
        distinct(arms, add_one_in(arms[0], arms[2:]))


def test_the_repeated_baseline_is_the_same_under_another_name():
    again = repeat(Arm("plain", [SMOOTHING]))
    assert (again.name, again.recipe({}).algorithms) == ("plain (repeated)", (SMOOTHING,))


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
