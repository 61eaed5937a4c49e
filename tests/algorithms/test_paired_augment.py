"""Paired augmentation: opposite amounts in alternate epochs."""

from importlib import import_module

import pytest
import torch
from torch.testing import assert_close

from composable import chain
from composable.algorithms import PairedAugment
from composable.core.event import Event
from composable.core.state import State
from composable.functional import draw_alternating_flip, draw_paired_augment, paired_augment
from tests.algorithms.test_alternating_flip import Inputs, loader, shifted
from tests.support.runs import VISION


def test_amounts_are_opposite_in_each_pair_of_epochs_and_new_in_the_next_pair():
    draws = [draw_paired_augment(torch.arange(50), epoch=epoch, seed=3) for epoch in range(6)]

    for first in (0, 2, 4):
        assert torch.equal(draws[first], -draws[first + 1])
    magnitudes = torch.stack([draws[first].abs() for first in (0, 2, 4)])
    assert len(magnitudes.unique()) == 150


def test_signs_are_those_of_the_alternating_flip():
    for epoch in range(4):
        signs = draw_paired_augment(torch.arange(50), epoch=epoch, seed=3) < 0
        assert torch.equal(signs, draw_alternating_flip(torch.arange(50), epoch=epoch, seed=3))


def test_amounts_are_uniform_and_depend_on_the_seed_and_the_index_alone():
    draws = torch.stack(
        [draw_paired_augment(torch.arange(4000), epoch=2, seed=seed) for seed in range(4)]
    )
    levels = torch.linspace(-1, 1, 4000)

    for draw in draws:
        assert (draw.sort().values - levels).abs().max() < 0.1
        assert ((draw != 0) & (draw.abs() < 1)).all()
    assert (torch.corrcoef(draws) - torch.eye(4)).abs().max() < 0.1
    one = draw_paired_augment(torch.tensor([7, 93]).int(), epoch=2, seed=1)
    assert torch.equal(one, draws[1][[7, 93]])


def test_smallest_amount_has_a_sign(monkeypatch):
    module = import_module("composable.functional.paired_augment")
    monkeypatch.setattr(module, "hash_integers", lambda numbers, seed: torch.zeros_like(numbers))
    draw = draw_paired_augment(torch.arange(2), epoch=0)

    assert (draw != 0).all()


def test_function_passes_the_amounts_of_the_examples():
    inputs, indices = torch.randn(3, 2, 4), torch.tensor([5, 1, 9])
    first, second = (
        paired_augment(inputs, indices, shifted, epoch=epoch, seed=3) for epoch in (4, 5)
    )

    assert_close(first + second, 2 * inputs)
    assert_close((first - inputs)[:, 0, 0], draw_paired_augment(indices, epoch=4, seed=3))


def test_inputs_and_indices_must_have_the_same_number():
    with pytest.raises(ValueError, match=r"and indices \[batch\], not"):
        paired_augment(torch.zeros(2, 3), torch.arange(3), shifted, epoch=0)


def test_functions_are_shown_by_their_names():
    assert repr(PairedAugment(shifted)) == (
        "PairedAugment(transform=shifted, target_transform=None, index_key=None)"
    )


# --- runs ---


def test_targets_change_by_the_same_amounts_if_they_have_a_function():
    inputs, targets, indices = torch.zeros(6, 2), torch.zeros(6), torch.arange(6)
    state = State(torch.nn.Identity(), batch=(inputs, targets, indices))

    plain = PairedAugment(shifted)(Event.AFTER_DATALOADER, state)
    both = PairedAugment(shifted, lambda x, amount: x - amount)(Event.AFTER_DATALOADER, state)

    assert plain.targets is targets
    assert torch.equal(both.targets, -both.inputs[:, 0])
    assert torch.equal(both.inputs, plain.inputs)
    assert both.targets.abs().min() > 0


def test_two_instances_have_amounts_of_their_own_and_both_are_opposite_in_the_next_epoch():
    recorder = Inputs()
    VISION.trainer(
        loader=loader(),
        algorithms=[chain(PairedAugment(shifted), PairedAugment(shifted, name="second"))],
        callbacks=[recorder],
    ).fit()
    originals = [loader().dataset[i][0] for i in range(10)]

    for i in range(10):
        assert_close((recorder.seen[0, i] + recorder.seen[1, i]) / 2, originals[i])
