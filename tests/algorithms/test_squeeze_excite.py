"""Squeeze-and-excitation in the loop does what the function does, once, from its own key."""

import pytest
import torch

from composable import Key
from composable.algorithms import SqueezeExcite
from composable.functional import squeeze_excite
from tests.support.surgery import check_surgery, convolutional, images
from tests.support.tiny import make_trainer


def excited(algorithm, seed):
    trainer = make_trainer(
        convolutional(), algorithms=[algorithm], train_dataloader=images(), seed=seed
    )
    return trainer.state.model[4].squeeze_excite.squeeze


@pytest.mark.parametrize("latent", [3, 0.5])
def test_training_is_that_of_the_model_of_the_function(latent):
    options = {"latent_channels": latent, "min_channels": 4}
    check_surgery(
        SqueezeExcite(**options),
        lambda model: squeeze_excite(
            model, generator=Key(17).fold("SqueezeExcite").generator(), **options
        ),
    )


def test_the_new_weights_depend_on_the_seed_and_the_name_alone():
    first, same, seed, name = (
        excited(SqueezeExcite(min_channels=4, **options), seed)
        for options, seed in [({}, 1), ({}, 1), ({}, 2), ({"name": "other"}, 1)]
    )

    assert torch.equal(first, same)
    assert not torch.equal(first, seed)
    assert not torch.equal(first, name)
