"""Combinations can be nested a hundred deep, and no deeper."""

import pytest

from composable import Plan, always, during, every, when
from composable.algorithms import LabelSmoothing
from tests.support.runs import make_trainer

KINDS = {
    "when": lambda inner: when(always, inner),
    "every": lambda inner: every("1ba", inner),
    "during": lambda inner: during("0ba", "1dur", inner),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_are_the_limit(kind):
    algorithm = LabelSmoothing(0.1)
    for _ in range(100):
        algorithm = KINDS[kind](algorithm)

    # Words of more than 50 letters are broken.
    assert "LabelSmoothing" in "".join(Plan.compile([algorithm]).explain().split())
    make_trainer(algorithms=algorithm, max_duration="1ba").fit()
    with pytest.raises(ValueError, match="at most 100 deep"):
        KINDS[kind](algorithm)
