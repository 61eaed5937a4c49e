"""MixUp, CutMix, RandAugment and AugMix against torchvision: `make vision`.

Each is compared in two halves: the images, given the same draw, and the distribution of the draw,
where both define the same one. The names of the tests of differences say which they do not.
"""

import pytest
import torch
from torch.nn.functional import interpolate
from torch.testing import assert_close
from torchvision.transforms import v2

import composable.functional as F

COUNT = 4000
FAR = 1.95 * (2 / COUNT) ** 0.5
"""The distance of two samples that equal distributions exceed once in a thousand times."""


def images(count=4, side=32):
    """Return smooth images, in gray levels."""
    small = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return (interpolate(small, side, mode="bicubic").clamp(0, 1) * 255).to(torch.uint8)


def distance(first, second):
    """Return the largest difference of two empirical distribution functions."""
    both = torch.cat([first, second]).sort().values
    shares = [
        torch.searchsorted(one.sort().values, both, right=True) / len(one)
        for one in (first, second)
    ]
    return (shares[0] - shares[1]).abs().max()


def generator():
    torch.manual_seed(0)  # for torchvision
    return torch.Generator().manual_seed(1)


def fixed(transform, **params):
    """Let a transform use these parameters instead of its draw."""
    transform.make_params = lambda _: params
    return transform


# --- MixUp and CutMix ---

NEIGHBOURS = torch.arange(4).roll(1)
LABELS = torch.tensor([0, 2, 1, 2])


@pytest.mark.parametrize("share", [0.5, 0.8, 1.0])
def test_mixup_of_a_draw(share):
    x = images() / 255
    theirs, soft = fixed(v2.MixUp(num_classes=3), lam=share)(x, LABELS)
    ours = F.apply_mixup(x, LABELS, F.MixUpDraw(NEIGHBOURS, torch.tensor(share)))

    assert_close(ours.inputs, theirs)
    assert_close(ours.soft_targets(3), soft)


def test_mixup_folds_the_weight_and_exchanges_the_pair():
    x = images() / 255
    theirs, soft = fixed(v2.MixUp(num_classes=3), lam=0.3)(x, LABELS)
    ours = F.apply_mixup(x, LABELS, F.MixUpDraw(torch.arange(4).roll(-1), torch.tensor(0.7)))

    assert_close(ours.inputs.roll(1, 0), theirs)
    assert_close(ours.soft_targets(3).roll(1, 0), soft)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_mixup_draws_the_same_weights(alpha):
    draws, theirs = generator(), v2.MixUp(alpha=alpha, num_classes=3)
    ours = torch.stack([F.draw_mixup(4, alpha=alpha, generator=draws).weight for _ in range(COUNT)])
    shares = torch.tensor([theirs.make_params([])["lam"] for _ in range(COUNT)])

    assert distance(ours.float(), torch.maximum(shares, 1 - shares)) < FAR


def test_cutmix_of_a_draw():
    x = images()
    theirs, soft = fixed(
        v2.CutMix(num_classes=3), box=(3, 5, 20, 32), lam_adjusted=1 - 17 * 27 / 1024
    )(x, LABELS)
    ours = F.apply_cutmix(x, LABELS, F.CutMixDraw(NEIGHBOURS, torch.tensor([[5, 32], [3, 20]])))

    assert torch.equal(ours.inputs, theirs)
    assert_close(ours.soft_targets(3), soft)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_cutmix_draws_the_same_boxes_but_for_a_pixel(alpha):
    """In torchvision, half of a side is rounded down, and so its sides are even."""
    side, draws, theirs = 224, generator(), v2.CutMix(alpha=alpha, num_classes=3)
    boxes = torch.stack(
        [F.draw_cutmix(4, (side, side), alpha=alpha, generator=draws).box for _ in range(COUNT)]
    ).clamp(0, side)
    image = torch.zeros(1, 3, side, side)
    params = [theirs.make_params([image])["box"] for _ in range(COUNT)]
    others = torch.tensor(params).view(-1, 2, 2).permute(0, 2, 1).flip(1)

    for edge in (0, 1):
        for dimension in (0, 1):
            first, second = (one[:, dimension, edge].float() for one in (boxes, others))
            assert distance(first + torch.rand(COUNT) * 2, second + torch.rand(COUNT) * 2) < FAR
    areas = [(one[..., 1] - one[..., 0]).prod(-1) / side**2 for one in (boxes, others)]
    assert distance(*areas) < FAR + 2 / side


# --- RandAugment and AugMix ---

OPERATIONS = (
    *("AutoContrast", "Equalize", "Posterize", "Rotate", "Solarize", "ShearX", "ShearY"),
    *("TranslateX", "TranslateY", "Color", "Contrast", "Brightness", "Sharpness"),
)
"""The names of torchvision, in the order of our numbers."""
STRENGTHS = {
    "Posterize": [1.0, 2.0, 4.0],
    "Rotate": [-30.0, 12.0, 27.0],
    "Solarize": [30.0, 128.0, 240.0],
    "ShearX": [-0.3, 0.1],
    "ShearY": [-0.3, 0.1],
    "TranslateX": [-0.3, 0.2],
    "TranslateY": [-0.3, 0.2],
    "AutoContrast": [0.0],
    "Equalize": [0.0],
}
CASES = [(name, s) for name in OPERATIONS for s in STRENGTHS.get(name, [0.1, 0.5, 1.4])]
BILINEAR = {"interpolation": v2.InterpolationMode.BILINEAR}
BLURRED_AT_BORDERS = ("Rotate", "ShearX", "ShearY")


def magnitude(name, strength, side):
    """Return our strength in the unit of torchvision; its translations have the other sign."""
    return {
        "Posterize": strength,
        "Rotate": strength,
        "Solarize": strength / 255,
        "ShearX": strength,
        "ShearY": strength,
        "TranslateX": -strength * side,
        "TranslateY": -strength * side,
    }.get(name, strength - 1)


def drawn(kind, chosen, **options):
    """Return a transform of torchvision that takes these operations and strengths in turn."""
    transform, left = kind(**BILINEAR, **options), iter(chosen)

    def take(_):
        name, strength = next(left)
        return name, (lambda bins, height, width: [magnitude(name, strength, width)] * bins, False)

    transform._get_random_item = take
    return transform


@pytest.mark.parametrize(("name", "strength"), CASES)
def test_operations_of_a_strength(name, strength):
    x, number = images(), OPERATIONS.index(name)
    draw = F.RandAugmentDraw(torch.full((1, 4), number), torch.full((1, 4), strength))
    ours = F.apply_randaugment(x, draw).int()
    theirs = drawn(v2.RandAugment, [(name, strength)], num_ops=1)(x).int()

    inside = torch.ones_like(x, dtype=torch.bool)
    if name in BLURRED_AT_BORDERS:  # where torchvision blends with black, and Pillow does not
        white = torch.full_like(x, 255)
        inside = drawn(v2.RandAugment, [(name, strength)], num_ops=1)(white) == 255
        assert inside.float().mean() > 0.5
    assert (ours - theirs).abs()[inside].max() <= 1


def test_two_operations_of_an_image():
    chosen = [("Solarize", 100.0), ("TranslateX", 0.2)]
    operations, strengths = zip(*[(OPERATIONS.index(n), s) for n, s in chosen], strict=True)
    draw = F.RandAugmentDraw(
        *(torch.tensor(one)[:, None].expand(2, 4) for one in (operations, strengths))
    )

    ours = F.apply_randaugment(images(), draw)
    assert torch.equal(ours, drawn(v2.RandAugment, chosen, num_ops=2)(images()))


def test_mixture_of_a_draw():
    chains = [[("Solarize", 100.0), ("TranslateX", 0.2)], [("Equalize", 0.0), ("Brightness", 0.6)]]
    numbers, strengths = (
        torch.tensor([[part(one) for one in chain] for chain in chains]).T.unsqueeze(-1)
        for part in (lambda one: OPERATIONS.index(one[0]), lambda one: one[1])
    )
    shares, weight = torch.tensor([0.3, 0.7]), 0.6
    x = images(1)
    theirs = drawn(v2.AugMix, [*chains[0], *chains[1]], mixture_width=2, chain_depth=2)
    given = iter([torch.tensor([[1 - weight, weight]]), shares[None]])
    theirs._sample_dirichlet = lambda _: next(given)
    ours = F.apply_augmix(
        x, F.AugMixDraw(numbers, strengths, shares[:, None], torch.tensor([weight]))
    )

    difference = ours.int() - theirs(x).int()
    assert difference.min() >= 0
    assert difference.max() <= 1  # torchvision rounds down


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_mixtures_have_the_same_weights(alpha):
    draw = F.draw_augmix(COUNT, alpha=alpha, generator=generator())
    theirs = v2.AugMix(alpha=alpha)
    shares = theirs._sample_dirichlet(torch.full((COUNT, 3), alpha))
    weights = theirs._sample_dirichlet(torch.full((COUNT, 2), alpha))[:, 1]

    assert distance(draw.weight.float(), weights) < FAR
    for ours, other in zip(draw.chain_weights, shares.T, strict=True):
        assert distance(ours.float(), other) < FAR


def test_chains_have_the_same_operations_and_lengths():
    draw = F.draw_augmix(COUNT, generator=generator())
    lengths = (draw.operations >= 0).sum(0).flatten().bincount()[1:] / (3 * COUNT)
    shares = draw.operations[draw.operations >= 0].bincount(minlength=13) / (6 * COUNT)

    assert set(v2.AugMix._AUGMENTATION_SPACE) == set(OPERATIONS)
    assert_close(lengths, torch.full((3,), 1 / 3), atol=0.02, rtol=0)
    assert_close(shares, torch.full((13,), 1 / 13), atol=0.01, rtol=0)


def test_ranges_of_augmix_end_where_those_of_torchvision_do():
    """At severity 10; in between, our levels are uniform, and in torchvision multiples."""
    draw = F.draw_augmix(COUNT, severity=10, augmentations="original", generator=generator())
    space = v2.AugMix._AUGMENTATION_SPACE
    for number, name in enumerate(OPERATIONS):
        largest = space[name][0](10, 1, 1)
        ours = draw.strengths[draw.operations == number]
        if name in ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"):
            assert_close(ours.abs().max().float(), largest.max(), rtol=0.04, atol=0)
        elif name in OPERATIONS[9:]:
            assert 1 - largest.max() - 0.01 <= ours.min()
            assert ours.max() <= 1 + largest.max() + 0.01
        elif name == "Solarize":
            assert 255 * largest.min() <= ours.min()
            assert ours.max() <= 255 * largest.max() + 1
        elif name == "Posterize":
            assert {*ours.tolist()} <= {*largest.tolist()}
