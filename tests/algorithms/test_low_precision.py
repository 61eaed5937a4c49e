"""Norms in low precision, in the loop, are those of the functions, after all other surgery."""

import pytest
import torch

from composable import Stage
from composable.algorithms import LowPrecisionGroupNorm, LowPrecisionLayerNorm
from composable.functional import low_precision_groupnorm, low_precision_layernorm
from tests.algorithms.surgery import check_surgery, convolutional, images
from tests.helpers import make_trainer

BOTH = pytest.mark.parametrize("algorithm", [LowPrecisionGroupNorm, LowPrecisionLayerNorm])


def test_training_is_that_of_the_model_of_the_function():
    check_surgery(
        LowPrecisionLayerNorm(precision=torch.bfloat16),
        lambda model: low_precision_layernorm(model, precision=torch.bfloat16),
    )


def test_group_norms_are_those_of_the_function():
    model = convolutional()
    model[1] = torch.nn.GroupNorm(2, 4)
    for precision in (None, torch.float16):
        algorithm = LowPrecisionGroupNorm(precision=precision)
        trainer = make_trainer(model, algorithms=[algorithm], train_dataloader=images())
        expected = low_precision_groupnorm(model, precision=precision)
        assert repr(trainer.state.model) == repr(expected)
        trainer.fit()


@BOTH
def test_they_come_after_the_replacement_of_modules(algorithm):
    assert algorithm().stage is Stage.PRECISION


@BOTH
@pytest.mark.parametrize(
    ("precision", "error"), [("amp_bf16", TypeError), (torch.float32, ValueError)]
)
def test_hyperparameters_are_checked(algorithm, precision, error):
    with pytest.raises(error, match=r"precision=.* must be torch.float16, torch.bfloat16, or None"):
        algorithm(precision=precision)
