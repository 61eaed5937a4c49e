"""CutMix and CutOut; the laws of their draws stand in test_draws.py, of batches elsewhere."""

import itertools
from importlib import import_module

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F
from composable._support.devices import numbers
from composable.functional._boxes import inside, place_boxes
from tests.support.tensors import seeded, uniform


def test_side_of_the_box_matches_the_formula(monkeypatch):
    share = torch.tensor(0.75, dtype=torch.float64)
    module = import_module("composable.functional.cutmix")  # the package has a function of its name
    monkeypatch.setattr(module, "draw_beta", lambda *_, **__: share)
    for size, sides in [((8,), [2]), ((8, 5), [4, 2]), ((8, 8, 16), [5, 5, 10])]:
        box = F.draw_cutmix(1, size, generator=seeded()).box

        assert (box[:, 1] - box[:, 0]).tolist() == sides  # 8 * 0.25 ** (1 / dims)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("classes", [(), (3,)], ids=["indices", "probabilities"])
@pytest.mark.parametrize("size", [(5, 6), (3, 4, 5)])
def test_maps_of_targets_are_pasted_like_the_images(per_sample, classes, size):
    x = uniform(size=size)
    maps = x[:, 0].long() if not classes else x / 7

    mixed = F.cutmix(x, maps, per_sample=per_sample, generator=seeded(2))

    at = mixed.inputs[:, 0].long() if not classes else mixed.inputs / 7
    assert torch.equal(mixed.targets, at)
    assert torch.equal(mixed.partner_targets, at)
    assert 0 < mixed.weight.mean() < 1


def test_loss_of_pasted_maps_matches_that_of_pixels():
    x = uniform()
    maps = (x[:, 0] % 3).long()
    maps[0, 0, 0] = -100  # to be ignored, as ever
    outputs = torch.randn(4, 3, 5, 6, generator=seeded())

    mixed = F.cutmix(x, maps, generator=seeded(2))

    assert_close(mixed.loss(cross_entropy, outputs), cross_entropy(outputs, mixed.targets))


def test_pastes_targets_of_signals_but_not_probabilities():
    x, draw = uniform(size=(7,)), F.draw_cutmix(4, (7,), generator=seeded(2))

    places = F.apply_cutmix(x, x[:, 0].long(), draw)
    probabilities = F.apply_cutmix(x, x[:, 0].softmax(1), draw)

    assert torch.equal(places.targets, places.inputs[:, 0].long())
    assert torch.equal(probabilities.targets, x[:, 0].softmax(1))
    assert torch.equal(probabilities.partner_targets, x[:, 0].softmax(1)[draw.permutation])


# --- CutOut ---


@pytest.mark.parametrize(
    ("length", "size", "side"),
    [
        (0.5, (10, 12), 5),  # below 1, a share of the shorter side
        (0.26, (10, 12), 3),
        (0.5, (12, 7, 9), 4),
        (0.001, (10, 12), 1),  # at least a pixel
        (1, (10, 12), 1),  # from 1 on, pixels, also an odd number
        (5, (10, 12), 5),
        (1.0, (10, 12), 1),
        (11, (10, 12), 11),
        (0, (10, 12), 0),
    ],
)
def test_length_is_a_fraction_of_the_shorter_side_or_a_number_of_pixels(length, size, side):
    boxes = F.draw_cutout(1, size, length=length, generator=seeded())

    assert (boxes[..., 1] - boxes[..., 0]).flatten().tolist() == [side] * len(size)


def test_per_sample_gives_each_example_its_own_holes():
    own = F.cutout(torch.ones(50, 2, 8, 8), length=3, generator=seeded())
    shared = F.cutout(torch.ones(50, 2, 8, 8), length=3, per_sample=False, generator=seeded())

    assert len(own.unique(dim=0)) > 20
    assert len(shared.unique(dim=0)) == 1


def test_holes_remove_non_finite_values():
    x = torch.tensor([[[1.0, float("nan"), float("inf"), 4.0]]])
    hole = torch.tensor([[[1, 3]]])

    assert F.apply_cutout(x, hole).tolist() == [[[1, 0, 0, 4]]]
    assert F.apply_cutout(x, hole.unsqueeze(0)).tolist() == [[[1, 0, 0, 4]]]


# --- the places of boxes ---


def all_places(side, length, uniform_sampling):
    """Return every place of a box with this side in a row of pixels, once."""
    count = length + side - 1 if uniform_sampling else length
    share = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    sides = torch.full((count, 1), float(side), dtype=torch.float64)
    options = {"uniform_sampling": uniform_sampling}
    return place_boxes(share[:, None], sides, (length,), **options)


@pytest.mark.parametrize(("side", "length"), list(itertools.product(range(1, 9), range(1, 8))))
def test_uniform_boxes_cover_every_pixel_equally_often(side, length):
    covered = inside(all_places(side, length, True), (length,), torch.device("cpu"))

    assert covered.sum(0).tolist() == [side] * length
    assert covered.any(1).all()  # and each of them covers one at least


@pytest.mark.parametrize(("side", "length"), [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5), (8, 5)])
def test_centres_of_boxes_are_uniform(side, length):
    boxes = all_places(side, length, False)

    assert (boxes[:, 0, 1] - boxes[:, 0, 0]).tolist() == [side] * length
    assert (boxes[:, 0, 0] + side // 2).tolist() == list(range(length))


def test_largest_draw_is_within_the_image():
    almost = torch.tensor([[1 - 2**-53]], dtype=torch.float64)
    for length, side in itertools.product([1, 3, 7, 224, 1000], [1, 2, 5]):
        sides = torch.tensor([[float(side)]], dtype=torch.float64)

        centred = place_boxes(almost, sides, (length,), uniform_sampling=False)[0, 0]
        uniform = place_boxes(almost, sides, (length,), uniform_sampling=True)[0, 0]

        assert centred[0] + side // 2 == length - 1
        assert uniform[0] == length - 1


def test_numbers_are_read_only_on_the_cpu_and_outside_of_vmap():
    seen = []
    torch.func.vmap(lambda row: seen.append(numbers(row)) or row)(torch.zeros(3, 2))

    assert numbers(torch.tensor([[1, 2]])) == [[1, 2]]
    assert numbers(torch.empty(2, device="meta")) is None
    assert seen == [None]
