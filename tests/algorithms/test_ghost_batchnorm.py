"""Ghost batch norm in the loop does what the function does, once."""

import pytest

from composable.algorithms import GhostBatchNorm
from composable.functional import ghost_batchnorm
from tests.algorithms.surgery import check_surgery


@pytest.mark.parametrize("size", [2, 3])
def test_training_is_that_of_the_model_of_the_function(size):
    check_surgery(
        GhostBatchNorm(ghost_batch_size=size),
        lambda model: ghost_batchnorm(model, ghost_batch_size=size),
    )


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ValueError, "ghost_batch_size=0 must be at least 1"),
        (1.5, TypeError, "ghost_batch_size=1.5 must be an integer, at least 1"),
    ],
)
def test_hyperparameters_are_checked(size, error, message):
    with pytest.raises(error, match=message):
        GhostBatchNorm(ghost_batch_size=size)
