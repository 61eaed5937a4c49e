"""Grids, and as many configurations for every arm."""

import pytest

from composable.comparison.arms import Arm
from composable.comparison.grids import configurations, grids_of, hyperparameters, sample

PLAIN, MIXED = Arm("plain", []), Arm("mixed", lambda alpha=0.2: [])


def build(algorithms, seed, lr=0.1, width=8, optimizers=None, max_duration="1ep"):
    raise AssertionError("not called")


REQUIRED = ("algorithms", "seed")
TAKEN = hyperparameters("build", build, REQUIRED)


def test_the_function_takes_its_hyperparameters():
    assert TAKEN == ("lr", "width", "optimizers", "max_duration")
    assert hyperparameters("build", lambda algorithms, seed, **others: None, REQUIRED) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, "build=3 must be a function"),
        (lambda: None, "must take algorithms, seed by these names"),
        (lambda methods, number: None, "must take algorithms, seed by these names"),
    ],
)
def test_a_function_without_what_compare_passes_is_an_error(wrong, message):
    with pytest.raises(TypeError, match=message):
        hyperparameters("build", wrong, REQUIRED)


def test_shared_values_are_for_all_arms_and_nested_ones_for_one():
    tune = {"lr": [1, 2], "mixed": {"alpha": [0.1, 0.2]}}
    grids = grids_of(tune, [PLAIN, MIXED], TAKEN)
    assert grids == {"plain": {"lr": (1, 2)}, "mixed": {"lr": (1, 2), "alpha": (0.1, 0.2)}}


@pytest.mark.parametrize(
    ("tune", "error", "message"),
    [
        ([1], TypeError, "must be a mapping"),
        ({"lr": 0.1}, TypeError, "tune\\['lr'\\]=0.1 must be a list"),
        ({"lr": []}, ValueError, "at least one value"),
        ({"lr": [1, 1]}, ValueError, "has a value twice"),
        ({"lr": [[1]]}, TypeError, "must be finite numbers, strings"),
        ({"lr": [1.0, float("inf")]}, TypeError, "must be finite numbers, strings"),
        ({"learning_rate": [1]}, ValueError, r"\['learning_rate'\] for arm 'plain', which neither"),
        ({"alpha": [1]}, ValueError, r"for arm 'plain'.*it takes \['lr', 'width'\]"),
        ({"third": {"lr": [1]}}, ValueError, r"values for 'third'; the arms are \['plain', 'mi"),
        ({"seed": [1]}, ValueError, "which compare itself passes"),
        ({"max_duration": ["2ep"]}, ValueError, "which compare itself passes"),
    ],
)
def test_invalid_grids_are_errors(tune, error, message):
    with pytest.raises(error, match=message):
        grids_of(tune, [PLAIN, MIXED], TAKEN)


def test_a_build_function_with_any_hyperparameters_takes_all_names():
    assert grids_of({"depth": [1]}, [PLAIN], None) == {"plain": {"depth": (1,)}}


def test_a_required_hyperparameter_of_an_arm_needs_values():
    with pytest.raises(ValueError, match=r"arm 'needy' requires \['alpha'\]"):
        grids_of({}, [Arm("needy", lambda alpha: [])], TAKEN)


def test_configurations_are_the_product_of_the_values():
    tried, notes = configurations({"plain": {"lr": (1, 2), "width": (3, 4)}})
    assert len(tried["plain"]) == 4
    assert tried["plain"][1] == {"lr": 1, "width": 4}
    assert notes == []


def test_without_values_there_is_one_configuration():
    assert configurations({"plain": {}})[0] == {"plain": ({},)}


def test_larger_grids_are_sampled_down_to_the_smallest_and_a_note_says_so():
    tried, notes = configurations(
        {"plain": {"lr": (1, 2)}, "mixed": {"lr": (1, 2), "a": (3, 4, 5)}}
    )
    assert {arm: len(one) for arm, one in tried.items()} == {"plain": 2, "mixed": 2}
    assert notes == ["Every arm tries 2 configurations: a sample of the larger grids of mixed (6)."]


def test_an_arm_without_values_beside_tuned_ones_is_an_error():
    with pytest.raises(ValueError, match=r"tune leaves \['plain'\] a single configuration"):
        configurations({"plain": {}, "mixed": {"alpha": (1, 2)}})


def test_samples_of_equal_grids_are_equal_and_smaller_ones_part_of_larger_ones():
    items = list(range(20))
    assert sample(items, 5) == sample(items, 5)
    assert set(sample(items, 3)) < set(sample(items, 5)) < set(items)
    assert list(sample(items, 5)) == sorted(sample(items, 5))
    assert sample(items, 30) == tuple(items)
