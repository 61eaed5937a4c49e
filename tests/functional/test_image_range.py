"""Operations that clip to [0, 1] warn of images of another range."""

import warnings

import pytest
import torch
from torch import nn

import composable.functional as F
from composable.algorithms import AugMix, RandAugment
from composable.functional import ImageRangeWarning
from tests.support.models import CLASSES
from tests.support.runs import make_trainer

IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NORMALIZED = (IMAGES - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


@pytest.mark.parametrize("function", [F.randaugment, F.augmix])
@pytest.mark.parametrize("images", [NORMALIZED, IMAGES * 255, IMAGES * 2 - 1])
def test_functions_warn_of_images_of_another_range(function, images):
    with pytest.warns(ImageRangeWarning, match=r"not in \[0, 1\].* before normalizing"):
        function(images)


@pytest.mark.parametrize("function", [F.randaugment, F.augmix])
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


@pytest.mark.parametrize("algorithm", [RandAugment, AugMix])
def test_algorithms_need_the_normalization_of_the_loader(algorithm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(algorithm(mean=MEAN, std=STD), NORMALIZED)
    with pytest.warns(ImageRangeWarning, match="pass its mean and std"):
        fit(algorithm(), NORMALIZED)
    with pytest.warns(ImageRangeWarning, match="must match the data loader's"):
        fit(algorithm(mean=[127.0] * 3, std=[64.0] * 3), NORMALIZED)
