"""The value that recipes return."""

import pytest

from composable.algorithms import EMA
from composable.recipes import Recipe


def test_the_arguments_are_those_that_the_recipe_sets():
    ema = EMA(half_life="20ba")

    assert Recipe([ema]).arguments() == {"algorithms": [ema]}
    assert Recipe([ema], print).arguments() == {"algorithms": [ema], "optimizers": print}


@pytest.mark.parametrize("given", [EMA(half_life="20ba"), "EMA", {"EMA": 1}, None, 3])
def test_algorithms_must_be_a_list(given):
    with pytest.raises(TypeError, match=r"^algorithms=.* must be a list of algorithms"):
        Recipe(given)
