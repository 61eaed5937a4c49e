"""RandAugment and AugMix: their draws, mixtures and ranges; test_draws.py has their laws."""

import warnings
from math import log

import pytest
import torch
from torch import nn
from torch.nn.functional import kl_div
from torch.testing import assert_close

import composable.functional as F
from composable import Event, Key, State
from composable.algorithms import AugMix, RandAugment
from composable.functional import jensen_shannon_loss
from tests.support.models import CLASSES, linear
from tests.support.runs import make_trainer
from tests.support.tensors import FLOATS, noise, seeded

NAMES = [
    *("autocontrast", "equalize", "posterize", "rotate", "solarize", "shear_x", "shear_y"),
    *("translate_x", "translate_y", "color", "contrast", "brightness", "sharpness"),
]


def strengths(name, count=20000, **options):
    """Return the strengths that are drawn for one operation."""
    draw = F.draw_randaugment(count, depth=1, generator=seeded(), **options)
    return draw.strengths[draw.operations == NAMES.index(name)]


@pytest.mark.parametrize("augmentations", ["all", "safe", "original"])
def test_applies_drawn_operation_and_strength_to_each_image(augmentations):
    x = noise(96, 3, 20, 14)
    draw = F.draw_randaugment(96, depth=1, augmentations=augmentations, generator=seeded())

    result = F.apply_randaugment(x, draw)

    drawn = zip(draw.operations[0].tolist(), draw.strengths[0].tolist(), strict=True)
    for i, (number, strength) in enumerate(drawn):
        name = NAMES[number]
        operation = getattr(F.images, name)  # Pillow's: see test_image_operations.py
        sides = {"translate_x": x.shape[3], "translate_y": x.shape[2]}  # shares of these
        given = [] if number < 2 else [int(strength * sides[name]) if name in sides else strength]
        assert torch.equal(result[i : i + 1], operation(x[i : i + 1], *given))


def test_operations_are_applied_in_the_order_of_the_draw():
    x = noise(2, 3, 20, 14)
    draw = F.RandAugmentDraw(
        torch.tensor([[3, 2], [2, 3], [-1, 11]]),
        torch.tensor([[20.0, 2.0], [3.0, -15.0], [0.0, 0.5]]),
    )

    first, second = F.apply_randaugment(x, draw).split(1)

    assert torch.equal(first, F.images.posterize(F.images.rotate(x[:1], 20), 3))
    turned = F.images.rotate(F.images.posterize(x[1:], 2), -15)
    assert torch.equal(second, F.images.brightness(turned, 0.5))


@pytest.mark.parametrize(("augmentations", "count"), [("all", 13), ("safe", 9), ("original", 13)])
def test_operations_are_uniform(augmentations, count):
    draw = F.draw_randaugment(13000, augmentations=augmentations, generator=seeded())

    counts = draw.operations.flatten().bincount(minlength=13)

    assert (counts[count:] == 0).all()
    assert (counts[:count] / 26000 - 1 / count).abs().max() < 0.01


@pytest.mark.parametrize(
    ("name", "low", "high", "whole"),
    [
        ("posterize", 1, 4, True),
        ("solarize", 256 - 230, 256 - 2, True),
        ("rotate", -26, 26, True),
        ("shear_x", -0.27, 0.27, False),
        ("shear_y", -0.27, 0.27, False),
        ("translate_x", -0.3, 0.3, False),
        ("translate_y", -0.3, 0.3, False),
        ("color", 1 - 0.81, 9, False),
        ("contrast", 1 - 0.81, 9, False),
        ("sharpness", 1 - 0.81, 9, False),
        ("brightness", 1 - 0.81, 0.75 * 9, False),
    ],
)
def test_strengths_fill_their_range(name, low, high, whole):
    drawn = strengths(name, severity=9)

    assert low <= drawn.min() <= low + 0.01 * (high - low) + whole
    assert high - 0.01 * (high - low) - whole <= drawn.max() <= high
    assert torch.equal(drawn, drawn.round()) == whole
    if not whole or name == "rotate":  # either direction is equally likely
        neutral = 0 if low + high == 0 else 1
        assert (drawn - neutral).sign().mean().abs() < 0.1


FACTORS = pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])


@FACTORS
def test_original_factors_match_the_paper(name):
    drawn = strengths(name, severity=10, augmentations="original")

    assert 0.1 + 0.018 <= drawn.min() < 0.15
    assert 1.85 < drawn.max() <= 1.9
    assert (drawn.mean() - 1).abs() < 0.05


@FACTORS
@pytest.mark.parametrize("severity", [0.05, 0.5, 1.0])
def test_small_severity_gives_factors_near_one(name, severity):
    drawn = strengths(name, severity=severity)

    assert (drawn >= 1 - 0.09 * severity).all()
    assert (drawn <= 1).all()


def test_safe_set_accepts_any_number_of_channels():
    for channels in (2, 5):
        x = noise(40, channels, 20, 14)
        assert F.randaugment(x, augmentations="safe", generator=seeded()).shape == x.shape


# --- AugMix ---


@pytest.mark.parametrize(("scale", "tolerance"), [(1, 0.5 + 1e-4), (255, 1e-6)])
def test_mixture_matches_the_paper(scale, tolerance):
    """Of uint8 images, it is rounded to the nearest level."""
    x = noise(5, 3, 16, 12) if scale == 1 else noise(5, 3, 16, 12) / scale
    draw = F.draw_augmix(5, generator=seeded(1))

    mixed = F.apply_augmix(x, draw)

    per_chain = zip(draw.operations.unbind(1), draw.strengths.unbind(1), strict=True)
    chains = torch.stack([F.apply_randaugment(x, F.RandAugmentDraw(*one)) for one in per_chain])
    w, m = draw.chain_weights[..., None, None, None], draw.weight[:, None, None, None]
    exact = (1 - m) * x + m * (w * chains).sum(0)
    assert (mixed - exact).abs().max() <= tolerance


def test_default_depth_is_one_to_three():
    lengths = (F.draw_augmix(4000, generator=seeded()).operations >= 0).sum(0)

    shares = lengths.flatten().bincount(minlength=4) / lengths.numel()

    assert shares[0] == 0
    assert (shares[1:] - 1 / 3).abs().max() < 0.02


def test_chains_have_the_requested_depth():
    draw = F.draw_augmix(50, depth=4, width=2, generator=seeded())

    assert draw.operations.shape == (4, 2, 50)
    assert (draw.operations >= 0).all()


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_weights_are_those_of_a_dirichlet_distribution(alpha):
    weights = F.draw_augmix(20000, alpha=alpha, generator=seeded()).chain_weights

    variance = (1 / 3) * (2 / 3) / (3 * alpha + 1)
    assert_close(weights.mean(1), torch.full((3,), 1 / 3).double(), rtol=0, atol=0.01)
    assert_close(weights.var(1), torch.full((3,), variance).double(), rtol=0.06, atol=0)
    assert_close(weights[0].var(), weights[2].var(), rtol=0.1, atol=0)


# --- normalized images, and images of another range ---

IMAGES = torch.rand(4, 3, 8, 8, generator=seeded())
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NORMALIZED = (IMAGES - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
functions = pytest.mark.parametrize("function", [F.randaugment, F.augmix])
algorithms = pytest.mark.parametrize("algorithm", [RandAugment, AugMix])


def augmented(algorithm, inputs):
    state = State(linear(), batch=(inputs, None), key=Key(17))
    return algorithm(mean=MEAN, std=STD)(Event.AFTER_DATALOADER, state).inputs


@algorithms
def test_normalized_images_are_augmented_as_before_the_normalization(algorithm):
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    function = {RandAugment: F.randaugment, AugMix: F.augmix}[algorithm]

    inputs = augmented(algorithm, NORMALIZED)

    expected = function(IMAGES, generator=Key(17).fold(algorithm.__name__, 0).generator())
    assert ((inputs * std + mean - expected).abs() > 1e-4).float().mean() < 0.02


@algorithms
@pytest.mark.parametrize(
    ("inputs", "kind"), [((255 * IMAGES).byte(), "torch.uint8"), ((IMAGES,), "tuple")]
)
def test_rejects_normalized_images_of_another_kind(algorithm, inputs, kind):
    with pytest.raises(TypeError, match=f"images must be normalized.*{kind}; pass neither mean"):
        augmented(algorithm, inputs)


@algorithms
def test_a_batch_may_be_without_targets(algorithm):
    state = State(linear(), batch=(IMAGES,), key=Key(17))

    assert algorithm()(Event.AFTER_DATALOADER, state).inputs.shape == (4, 3, 8, 8)


@functions
@pytest.mark.parametrize("images", [NORMALIZED, IMAGES * 255, IMAGES * 2 - 1])
def test_functions_warn_of_images_of_another_range(function, images):
    with pytest.warns(F.ImageRangeWarning, match=r"not in \[0, 1\].* before normalizing"):
        function(images)


@functions
@pytest.mark.parametrize("images", [IMAGES, IMAGES * 1.2 - 0.1, IMAGES[:0], IMAGES.half()])
def test_functions_accept_small_overshoots(function, images):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function(images).shape == images.shape


def fit(algorithm, images):
    make_trainer(
        nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES)),
        train_dataloader=[(images, torch.arange(4) % CLASSES)],
        algorithms=[algorithm],
        max_duration="1ba",
    ).fit()


@algorithms
def test_algorithms_need_the_normalization_of_the_loader(algorithm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(algorithm(mean=MEAN, std=STD), NORMALIZED)
    with pytest.warns(F.ImageRangeWarning, match="pass its mean and std"):
        fit(algorithm(), NORMALIZED)
    with pytest.warns(F.ImageRangeWarning, match="must match the data loader's"):
        fit(algorithm(mean=[127.0] * 3, std=[64.0] * 3), NORMALIZED)


# --- the consistency loss of AugMix ---


def logits(count=3, shape=(4, 5)):
    return list(torch.randn((count, *shape), generator=seeded(), dtype=torch.float64))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_matches_the_mean_divergence_from_the_mean(count):
    predictions = [z.softmax(1) for z in logits(count)]
    mean = sum(predictions) / count

    expected = sum(kl_div(mean.log(), p, reduction="batchmean") for p in predictions) / count

    assert_close(jensen_shannon_loss(*logits(count)), expected)


def test_known_values():
    first, second, third = (100 * row[None] for row in torch.eye(3))

    assert_close(jensen_shannon_loss(first, second, third), torch.tensor(log(3)))
    assert_close(jensen_shannon_loss(first, second), torch.tensor(log(2)))
    assert_close(jensen_shannon_loss(first, first, second).item(), log(3) - 2 / 3 * log(2))
    assert jensen_shannon_loss(first, first + 7, first) == 0


def test_averages_over_the_batch_and_further_dimensions():
    maps = logits(3, (2, 5, 3, 4))
    rows = [z.movedim(1, -1).reshape(-1, 5) for z in maps]

    assert_close(jensen_shannon_loss(*maps), jensen_shannon_loss(*rows))


@pytest.mark.parametrize("dtype", FLOATS)
def test_extreme_logits_are_finite(dtype):
    first, second = torch.tensor([[1e4, -1e4, 0]]), torch.tensor([[-1e4, 1e4, 0]])
    first, second = (z.to(dtype).requires_grad_() for z in (first, second))

    loss = jensen_shannon_loss(first, second)
    loss.backward()

    assert loss.dtype == dtype
    assert_close(loss.item(), log(2), rtol=0, atol=4e-3)
    assert first.grad.isfinite().all()
