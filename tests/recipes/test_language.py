"""Recipes for language models compose without warnings, train, and check their arguments."""

import functools

import pytest
import torch
from torch import nn

from composable import Event, Trainer
from composable.algorithms import Alibi, GradientClipping, Rotary, SeqLengthWarmup
from composable.optim import Muon, RowAdagrad
from composable.recipes import Recipe, small_gpt, small_gpt_rotary, speedrun_gpt
from examples import byte_gpt
from tests.support.observers import Watch

RECIPES = [small_gpt, small_gpt_rotary, functools.partial(speedrun_gpt, rows=500)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Train on few bytes, without evaluation."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(97, 123, (40 * byte_gpt.CONTEXT + 1,), generator=generator).byte()
    monkeypatch.setattr(byte_gpt, "texts", lambda: dict.fromkeys(["train", "validation"], text))
    monkeypatch.setattr(byte_gpt, "evaluators", lambda interval: None)


def built(recipe: Recipe, **options) -> Trainer:
    return byte_gpt.build(
        recipe.algorithms,
        0,
        optimizers=recipe.optimizers,
        schedulers=recipe.schedulers,
        max_duration="6ba",
        **options,
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_a_model_that_learns(recipe):
    losses = Watch(Event.BATCH_END, read=lambda state: float(state.loss))
    trainer = built(recipe(lr=0.02, adamw_lr=0.02))
    trainer.add_callback(losses)

    trainer.fit()

    assert losses.values[0] == pytest.approx(4.85, abs=0.1)  # ln 128
    assert losses.values[-1] < 4.0


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_builds_the_same_values_each_time(recipe):
    one, other = recipe(), recipe()

    assert one.algorithms == other.algorithms
    assert one.schedulers == other.schedulers
    assert muon_of(one).keywords == muon_of(other).keywords


def muon_of(recipe: Recipe):
    """Return the function that builds Muon."""
    return getattr(recipe.optimizers, "default", recipe.optimizers)


@pytest.mark.parametrize("recipe", RECIPES)
def test_muon_gets_the_hidden_matrices_and_the_learning_rates(recipe):
    trainer = built(recipe(lr=0.5, adamw_lr=0.25, weight_decay=0.125))

    (optimizer,) = trainer.state.optimizers
    optimizer = getattr(optimizer, "optimizers", [optimizer])[-1]
    assert isinstance(optimizer, Muon)
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert len(groups["matrices"]["params"]) == 6 * byte_gpt.LAYERS
    assert groups.pop("matrices")["lr"] == 0.5
    assert {group["lr"] for group in groups.values()} == {0.25}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.125}


def test_small_gpt_replaces_positions_by_biases_and_trains_on_short_sequences():
    shapes = Watch(Event.BATCH_END, read=lambda state: tuple(state.batch[0].shape))
    trainer = built(small_gpt(sequence_length=48))
    trainer.add_callback(shapes)

    trainer.fit()

    attention = trainer.state.model[2].attention
    assert attention.biased
    assert isinstance(trainer.state.model[1], nn.Identity)
    assert set(shapes.values) == {(4, 48)}


def test_speedrun_gpt_trains_a_table_by_rows():
    trainer = built(speedrun_gpt(rows=500, n=4, table_lr=0.5, weight_decay=0.125))
    tables, muon = trainer.fit().optimizers[0].optimizers

    (group,) = tables.param_groups
    assert isinstance(tables, RowAdagrad)
    assert [p is trainer.state.model[0].ngrams.weight for p in group["params"]] == [True]
    assert (group["initial_lr"], group["weight_decay"]) == (0.5, 0.0)
    assert trainer.state.model[0].ngrams.weight.grad is None
    assert (trainer.state.model[0].ngrams.weight != 0).any()
    assert "tables" not in {one["name"] for one in muon.param_groups}


def test_small_gpt_rotary_warms_up_the_length():
    lengths = Watch(Event.BATCH_END, read=lambda state: state.batch[0].shape[1])
    recipe = small_gpt_rotary(min_sequence_length=8, max_sequence_length=128, length_warmup=0.5)
    trainer = built(recipe)
    trainer.add_callback(lengths)

    trainer.fit()

    assert trainer.state.model[2].attention.rotation is not None
    assert lengths.values[0] == 8
    assert lengths.values == sorted(lengths.values)
    assert lengths.values[3:] == [128, 128, 128]


def test_the_algorithms_follow_from_the_arguments():
    assert small_gpt(max_sequence_length=512, sequence_length=32).algorithms == (
        Alibi(512, train_sequence_length_scaling=1.0),
        SeqLengthWarmup(duration=0.0, min_seq_length=32, max_seq_length=32),
        GradientClipping("norm", 1.0),
    )
    assert small_gpt_rotary(length_warmup=0.25).algorithms == (
        Rotary(),
        SeqLengthWarmup(duration=0.25, min_seq_length=32, max_seq_length=256),
        GradientClipping("norm", 1.0),
    )
