"""What recipes share: they set arguments of the Trainer, and refuse values out of range by name."""

import re

import pytest
import torch

from composable.algorithms import EMA
from composable.recipes import (
    Recipe,
    lora,
    small_gpt,
    small_gpt_rotary,
    speedrun_gpt,
    speedrun_vision,
    strong_regularization,
)

OF_MUON = [
    ("lr", -1.0),
    ("lr", "fast"),
    ("adamw_lr", -1.0),
    ("momentum", 1.0),
    ("weight_decay", -0.1),
    ("dtype", torch.int64),
]
REFUSED = [
    *((recipe, *one) for recipe in (small_gpt, small_gpt_rotary, speedrun_gpt) for one in OF_MUON),
    (speedrun_gpt, "table_lr", -1.0),
    (speedrun_gpt, "n", 1),
    (speedrun_gpt, "rows", 0),
    (small_gpt, "max_sequence_length", 0),
    (small_gpt, "sequence_length", 0),
    (small_gpt_rotary, "min_sequence_length", 512),
    (small_gpt_rotary, "length_warmup", 1.5),
    (speedrun_vision, "lr", -1.0),
    (speedrun_vision, "momentum", 1.0),
    (speedrun_vision, "max_shift", -1),
    (speedrun_vision, "smoothing", 2.0),
    (strong_regularization, "lr", 0.0),
    (strong_regularization, "lr", "fast"),
    (strong_regularization, "weight_decay", -1.0),
    (strong_regularization, "dropout", 1.0),
    (strong_regularization, "layer_drop", 1.5),
    (strong_regularization, "blocks", 3, "target"),
    (lora, "full_lr", 0.0),
    (lora, "factor", -1),
    (lora, "weight_decay", -0.1),
]
"""Recipes, each with an argument, a value that it refuses, and the name that the message has."""
TYPES = (str, torch.dtype)


@pytest.mark.parametrize(
    ("recipe", "argument", "value", "named"), [(*row, row[1])[:4] for row in REFUSED]
)
def test_an_argument_out_of_range_is_refused_by_name(recipe, argument, value, named):
    error = TypeError if isinstance(value, TYPES) or argument == "blocks" else ValueError
    required = {"full_lr": 1e-4} if recipe is lora else {}
    with pytest.raises(error, match=f"^{named}={re.escape(repr(value))} must"):
        recipe(**{**required, argument: value})


def test_a_warm_up_that_is_no_time_is_refused():
    with pytest.raises(ValueError, match="soon"):
        lora(full_lr=1e-4, warmup="soon")


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword"):
        small_gpt(**{"learning_rate": 1.0})


def test_the_arguments_are_those_that_the_recipe_sets():
    ema = EMA(half_life="20ba")

    assert Recipe([ema]).arguments() == {"algorithms": [ema]}
    assert Recipe([ema], print).arguments() == {"algorithms": [ema], "optimizers": print}


@pytest.mark.parametrize("given", [EMA(half_life="20ba"), "EMA", {"EMA": 1}, None, 3])
def test_algorithms_must_be_a_list(given):
    with pytest.raises(TypeError, match=r"^algorithms=.* must be a list of algorithms"):
        Recipe(given)
