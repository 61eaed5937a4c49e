"""Label smoothing in the loop does what the function does, for the loss alone."""

import pytest
import torch

from composable.algorithms import LabelSmoothing, MixUp
from tests.support.models import weights
from tests.support.runs import make_trainer


@pytest.mark.parametrize("mix", [{}, {"interpolate_loss": True}, {"per_sample": True}])
def test_works_with_mixed_batches(mix):
    ours = make_trainer(algorithms=[MixUp(1.0, **mix), LabelSmoothing(0.3)])
    ours.fit()
    theirs = make_trainer(
        algorithms=[MixUp(1.0, **mix)], loss_fn=torch.nn.CrossEntropyLoss(label_smoothing=0.3)
    )
    theirs.fit()

    torch.testing.assert_close(weights(ours.state.model), weights(theirs.state.model))
