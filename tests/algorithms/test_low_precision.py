"""Norms in low precision, in the loop, are those of the functions, after all other surgery."""

import pytest
import torch

from composable import Stage
from composable.algorithms import LowPrecisionGroupNorm, LowPrecisionLayerNorm
from composable.functional import low_precision_groupnorm
from tests.support.surgery import convolutional, images
from tests.support.tiny import make_trainer

BOTH = pytest.mark.parametrize("algorithm", [LowPrecisionGroupNorm, LowPrecisionLayerNorm])


@pytest.mark.filterwarnings("ignore:LowPrecisionGroupNorm computes in float32")
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
