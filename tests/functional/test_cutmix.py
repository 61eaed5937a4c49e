"""CutMix; the laws of its draw stand in test_draws.py, and of any batch in property_tests."""

import sys

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable.functional import apply_cutmix, cutmix, draw_cutmix
from tests.support.tensors import seeded, uniform


def test_side_of_the_box_matches_the_formula(monkeypatch):
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


def test_loss_of_pasted_maps_matches_that_of_pixels():
    x = uniform()
    maps = (x[:, 0] % 3).long()
    maps[0, 0, 0] = -100  # to be ignored, as ever
    outputs = torch.randn(4, 3, 5, 6, generator=seeded())

    mixed = cutmix(x, maps, generator=seeded(2))

    assert_close(mixed.loss(cross_entropy, outputs), cross_entropy(outputs, mixed.targets))


def test_pastes_targets_of_signals_but_not_probabilities():
    x, draw = uniform(size=(7,)), draw_cutmix(4, (7,), generator=seeded(2))

    places = apply_cutmix(x, x[:, 0].long(), draw)
    probabilities = apply_cutmix(x, x[:, 0].softmax(1), draw)

    assert torch.equal(places.targets, places.inputs[:, 0].long())
    assert torch.equal(probabilities.targets, x[:, 0].softmax(1))
    assert torch.equal(probabilities.partner_targets, x[:, 0].softmax(1)[draw.permutation])
