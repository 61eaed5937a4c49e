"""CutMix; the laws of its draw stand in test_draws.py, and of any batch in property_tests."""

import sys

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable.functional import CutMixDraw, apply_cutmix, cutmix, draw_cutmix
from tests.support.tensors import seeded, uniform


@pytest.mark.parametrize(
    ("box", "weight"), [([[-1, 2], [4, 9]], 1 - 2 * 2 / 30), ([[-9, 9], [0, 6]], 0)]
)
def test_the_weight_is_what_remains_after_clipping(box, weight):
    x, box = uniform(2), torch.tensor(box)

    mixed = apply_cutmix(x, torch.arange(2), CutMixDraw(torch.tensor([1, 0]), box))

    assert_close(mixed.weight, torch.tensor(float(weight)))
    pasted = torch.zeros(5, 6, dtype=torch.bool)
    pasted[slice(*box[0].clamp(0)), slice(*box[1].clamp(0))] = True
    assert torch.equal(mixed.inputs, torch.where(pasted, x.flip(0), x))


def test_a_known_share_gives_a_known_side(monkeypatch):
    share = torch.tensor(0.75, dtype=torch.float64)
    module = sys.modules["composable.functional.cutmix"]  # the package has a function of its name
    monkeypatch.setattr(module, "draw_beta", lambda *_, **__: share)
    for size, sides in [((8,), [2]), ((8, 5), [4, 2]), ((8, 8, 16), [5, 5, 10])]:
        box = draw_cutmix(1, size, generator=seeded()).box

        assert (box[:, 1] - box[:, 0]).tolist() == sides  # 8 * 0.25 ** (1 / dims)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("classes", [(), (3,)], ids=["indices", "probabilities"])
@pytest.mark.parametrize("size", [(5, 6), (3, 4, 5)])
def test_maps_of_targets_are_pasted_like_the_images(per_sample, classes, size):
    x = uniform(size=size)
    maps = x[:, 0].long() if not classes else x / 7

    mixed = cutmix(x, maps, per_sample=per_sample, generator=seeded(2))

    at = mixed.inputs[:, 0].long() if not classes else mixed.inputs / 7
    assert torch.equal(mixed.targets, at)
    assert torch.equal(mixed.partner_targets, at)
    assert 0 < mixed.weight.mean() < 1


def test_the_loss_of_pasted_maps_is_that_of_each_pixel():
    x = uniform()
    maps = (x[:, 0] % 3).long()
    maps[0, 0, 0] = -100  # to be ignored, as ever
    outputs = torch.randn(4, 3, 5, 6, generator=seeded())

    mixed = cutmix(x, maps, generator=seeded(2))

    assert_close(mixed.loss(cross_entropy, outputs), cross_entropy(outputs, mixed.targets))


def test_a_class_for_each_place_of_a_signal_is_pasted_and_probabilities_are_not():
    x, draw = uniform(size=(7,)), draw_cutmix(4, (7,), generator=seeded(2))

    places = apply_cutmix(x, x[:, 0].long(), draw)
    probabilities = apply_cutmix(x, x[:, 0].softmax(1), draw)

    assert torch.equal(places.targets, places.inputs[:, 0].long())
    assert torch.equal(probabilities.targets, x[:, 0].softmax(1))
    assert torch.equal(probabilities.partner_targets, x[:, 0].softmax(1)[draw.permutation])
