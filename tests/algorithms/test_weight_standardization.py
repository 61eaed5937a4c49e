"""Weight standardization in the loop does what the function does, once."""

import pytest

from composable.algorithms import WeightStandardization
from composable.functional import weight_standardization
from tests.algorithms.surgery import check_surgery


@pytest.mark.parametrize("ignored", [0, 1])
def test_training_is_that_of_the_model_of_the_function(ignored):
    check_surgery(
        WeightStandardization(n_last_layers_ignore=ignored),
        lambda model: weight_standardization(model, n_last_layers_ignore=ignored),
    )


@pytest.mark.parametrize(
    ("ignored", "error", "message"),
    [
        (-1, ValueError, "n_last_layers_ignore=-1 must be at least 0"),
        (0.5, TypeError, "n_last_layers_ignore=0.5 must be an integer, at least 0"),
    ],
)
def test_hyperparameters_are_checked(ignored, error, message):
    with pytest.raises(error, match=message):
        WeightStandardization(n_last_layers_ignore=ignored)
