"""Alternating flip and paired augmentation, and the indices that they need."""

from importlib import import_module
from itertools import product

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader

import composable.functional as F
from composable import Callback, chain
from composable.algorithms import AlternatingFlip, PairedAugment, SelectiveBackprop
from composable.core.event import Event
from composable.core.state import State
from composable.data import Indexed, PerExample
from composable.data.indexed import indices_of
from tests.support.data import examples
from tests.support.models import same
from tests.support.outcomes import resumes_exactly
from tests.support.runs import VISION


def shifted(inputs, amount):
    return inputs + amount.reshape(-1, *[1] * (inputs.ndim - 1))


def test_equals_the_loop_of_the_paper():
    images = torch.randn(12, 3, 4, 5)
    indices = torch.randperm(12)
    first = F.draw_alternating_flip(indices, epoch=0, seed=3)
    flipped_once = torch.stack(
        [image.flip(-1) if flip else image for image, flip in zip(images, first, strict=True)]
    )

    for epoch in range(4):  # airbench: flip at random once, and then all images every other epoch
        expected = flipped_once.flip(-1) if epoch % 2 else flipped_once
        assert torch.equal(F.alternating_flip(images, indices, epoch=epoch, seed=3), expected)


def test_draw_of_an_example_depends_on_its_index_alone():
    whole = F.draw_alternating_flip(torch.arange(100), epoch=1, seed=9)

    assert torch.equal(
        F.draw_alternating_flip(torch.tensor([7, 93]), epoch=1, seed=9), whole[[7, 93]]
    )
    assert torch.equal(F.draw_alternating_flip(torch.arange(100).int(), epoch=1, seed=9), whole)


# --- paired augmentation ---


def test_amounts_are_opposite_in_each_pair_of_epochs_and_new_in_the_next_pair():
    draws = [F.draw_paired_augment(torch.arange(50), epoch=epoch, seed=3) for epoch in range(6)]

    for first in (0, 2, 4):
        assert torch.equal(draws[first], -draws[first + 1])
    magnitudes = torch.stack([draws[first].abs() for first in (0, 2, 4)])
    assert len(magnitudes.unique()) == 150


def test_signs_are_those_of_the_alternating_flip():
    for epoch, seed in product(range(4), range(8)):
        signs = F.draw_paired_augment(torch.arange(50), epoch=epoch, seed=seed) < 0
        assert torch.equal(signs, F.draw_alternating_flip(torch.arange(50), epoch=epoch, seed=seed))


def test_amounts_are_uniform_and_depend_on_the_seed_and_the_index_alone():
    draws = torch.stack(
        [F.draw_paired_augment(torch.arange(4000), epoch=2, seed=seed) for seed in range(4)]
    )
    levels = torch.linspace(-1, 1, 4000)

    for draw in draws:
        assert (draw.sort().values - levels).abs().max() < 0.1
        assert ((draw != 0) & (draw.abs() < 1)).all()
    assert (torch.corrcoef(draws) - torch.eye(4)).abs().max() < 0.1
    one = F.draw_paired_augment(torch.tensor([7, 93]).int(), epoch=2, seed=1)
    assert torch.equal(one, draws[1][[7, 93]])


def test_smallest_amount_has_a_sign(monkeypatch):
    module = import_module("composable.functional.paired_augment")
    monkeypatch.setattr(module, "hash_integers", lambda numbers, seed: torch.zeros_like(numbers))
    draw = F.draw_paired_augment(torch.arange(2), epoch=0)

    assert (draw != 0).all()


def test_function_passes_the_amounts_of_the_examples():
    inputs, indices = torch.randn(3, 2, 4), torch.tensor([5, 1, 9])
    first, second = (
        F.paired_augment(inputs, indices, shifted, epoch=epoch, seed=3) for epoch in (4, 5)
    )

    assert_close(first + second, 2 * inputs)
    assert_close((first - inputs)[:, 0, 0], F.draw_paired_augment(indices, epoch=4, seed=3))


# --- indices ---


class Rows(list):
    """A data set that gets the epoch."""

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_indexed_adds_the_index_and_keeps_the_rest():
    inner = Rows([(1.0, 2), (3.0, 4)])
    data = Indexed(inner)
    data.set_epoch(5)

    assert (data[1], data[-1], len(data), inner.epoch) == ((3.0, 4, 1), (3.0, 4, 1), 2, 5)
    assert Indexed([torch.tensor(7.0)])[0] == (torch.tensor(7.0), 0)
    with pytest.raises(TypeError, match="dataset=3 must be a map-style dataset"):
        Indexed(3)


@pytest.mark.parametrize(
    ("batch", "key"),
    [
        ((torch.zeros(2), torch.zeros(2), torch.tensor([4, 5])), None),
        ([torch.zeros(2), torch.tensor([4, 5])], 1),
        ({"x": torch.zeros(2), "index": torch.tensor([4, 5])}, None),
        ({"x": torch.zeros(2), "id": torch.tensor([4, 5])}, "id"),
    ],
)
def test_indices_are_found(batch, key):
    assert indices_of(batch, key, "it").tolist() == [4, 5]


@pytest.mark.parametrize(
    ("batch", "key"),
    [
        ((torch.zeros(2), torch.tensor([4, 5])), None),
        ((torch.zeros(2), torch.zeros(2), torch.zeros(2)), None),
        ({"x": torch.zeros(2)}, None),
        ({"x": torch.zeros(2)}, "id"),
        ((torch.zeros(2),), 3),
        (torch.tensor([1, 2]), None),
        (torch.tensor([1, 2]), "id"),
    ],
)
def test_batch_without_indices_is_an_error_that_names_the_data_set(batch, key):
    with pytest.raises(ValueError, match=r"AlternatingFlip needs the index of each example.*Ind"):
        indices_of(batch, key, "AlternatingFlip")


# --- runs ---

BOTH = pytest.mark.parametrize(
    "algorithm", [AlternatingFlip(), PairedAugment(shifted)], ids=lambda one: one.name
)


def loader(workers=0, wrap=lambda data: data):
    inputs, targets = examples(10, images=True)
    data = Indexed(wrap(list(zip(inputs, targets, strict=True))))
    return DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)


@BOTH
@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_run_resumes_and_does_not_depend_on_workers(algorithm, workers, tmp_path):
    def run(use=0, **options):
        return VISION.trainer(
            loader=loader(use, lambda data: PerExample(data, 17)),
            algorithms=[algorithm, SelectiveBackprop(start=0.0, end=1.0)],
            max_duration="3ep",
            **options,
        ).fit()

    resumes_exactly(run, tmp_path, 4, use=workers)


class Inputs(Callback):
    """Records the inputs of every example, by index and epoch."""

    def __init__(self):
        self.seen = {}

    def before_forward(self, state, logger):
        inputs, _, indices = state.batch
        for one, index in zip(inputs, indices.tolist(), strict=True):
            self.seen[state.timestamp.epoch, index] = one


def test_flips_do_not_depend_on_the_batches_of_a_step():
    plain, accumulated = Inputs(), Inputs()
    for recorder, count in ((plain, 1), (accumulated, 2)):
        VISION.trainer(
            loader=loader(),
            algorithms=[AlternatingFlip()],
            callbacks=[recorder],
            accumulate_batches=count,
        ).fit()

    assert plain.seen.keys() == {(epoch, i) for epoch in range(2) for i in range(10)}
    assert same(plain.seen, accumulated.seen)
    assert all(torch.equal(plain.seen[0, i].flip(-1), plain.seen[1, i]) for i in range(10))


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
