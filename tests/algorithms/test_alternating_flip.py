"""Alternating flip, against the loop of its paper, and the indices that it needs.

The laws of runs are those of paired augmentation too.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from composable import Callback
from composable.algorithms import AlternatingFlip, PairedAugment, SelectiveBackprop
from composable.batches.spec import BatchSpec
from composable.core.event import Event
from composable.core.state import State
from composable.data import Indexed, PerExample
from composable.data.indexed import indices_of
from composable.functional import alternating_flip, draw_alternating_flip
from composable.testing import check_algorithm
from tests.support.data import examples
from tests.support.models import conv_net, same
from tests.support.outcomes import resumes_exactly
from tests.support.runs import VISION


def test_equals_the_loop_of_the_paper():
    images = torch.randn(12, 3, 4, 5)
    indices = torch.randperm(12)
    first = draw_alternating_flip(indices, epoch=0, seed=3)
    flipped_once = torch.stack(
        [image.flip(-1) if flip else image for image, flip in zip(images, first, strict=True)]
    )

    for epoch in range(4):  # airbench: flip at random once, and then all images every other epoch
        expected = flipped_once.flip(-1) if epoch % 2 else flipped_once
        assert torch.equal(alternating_flip(images, indices, epoch=epoch, seed=3), expected)


def test_first_epoch_is_a_fair_draw_that_depends_on_the_seed():
    draws = torch.stack(
        [draw_alternating_flip(torch.arange(4000), epoch=0, seed=seed) for seed in range(8)]
    )

    assert ((draws.double().mean(1) - 0.5).abs() < 0.04).all()
    agreement = (draws[0] == draws[1:]).double().mean(1)
    assert ((agreement - 0.5).abs() < 0.04).all()


def test_draw_of_an_example_depends_on_its_index_alone():
    whole = draw_alternating_flip(torch.arange(100), epoch=1, seed=9)

    assert torch.equal(
        draw_alternating_flip(torch.tensor([7, 93]), epoch=1, seed=9), whole[[7, 93]]
    )
    assert torch.equal(draw_alternating_flip(torch.arange(100).int(), epoch=1, seed=9), whole)


def test_images_and_indices_must_have_the_same_number():
    with pytest.raises(ValueError, match="and indices and draw"):
        alternating_flip(torch.zeros(2, 1, 1, 1), torch.arange(3), epoch=0)


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


def shifted(inputs, amount):
    return inputs + amount.reshape(-1, *[1] * (inputs.ndim - 1))


BOTH = pytest.mark.parametrize(
    "algorithm", [AlternatingFlip(), PairedAugment(shifted)], ids=lambda one: one.name
)


def loader(workers=0, wrap=lambda data: data):
    inputs, targets = examples(10, images=True)
    data = Indexed(wrap(list(zip(inputs, targets, strict=True))))
    return DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)


@BOTH
def test_algorithm_keeps_the_laws_on_indexed_batches(algorithm):
    check_algorithm(algorithm, model=conv_net(), dataloader=list(loader()), loss_fn=cross_entropy)


def test_dense_targets_are_flipped_with_their_images():
    images, indices = torch.randn(6, 2, 3, 4), torch.arange(6)
    masks = images[:, 0] > 0
    state = State(torch.nn.Identity(), batch=(images, masks, indices))

    new = AlternatingFlip()(Event.AFTER_DATALOADER, state)

    assert torch.equal(new.targets, new.inputs[:, 0] > 0)
    assert not torch.equal(new.targets, masks)
    assert new.batch[2] is indices


def test_dense_targets_among_others_are_flipped_with_their_images():
    images = torch.randn(6, 2, 3, 4)
    batch = {"x": images, "mask": images[:, 0] > 0, "y": torch.arange(6), "index": torch.arange(6)}
    state = State(torch.nn.Identity(), batch=batch, batch_spec=BatchSpec("x", ("mask", "y")))

    new = AlternatingFlip(index_key="index")(Event.AFTER_DATALOADER, state)

    assert torch.equal(new.batch["mask"], new.inputs[:, 0] > 0)
    assert not torch.equal(new.batch["mask"], batch["mask"])
    assert new.batch["y"] is batch["y"]


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


@BOTH
def test_batches_without_indices_are_refused(algorithm):
    with pytest.raises(ValueError, match=f"{algorithm.name} needs the index of each example"):
        VISION.trainer(algorithms=[algorithm]).fit()
