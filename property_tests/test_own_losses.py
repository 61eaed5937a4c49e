"""Law: microbatches of a model that computes its own loss give the gradients of the batch."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.testing import assert_close

from property_tests.test_accumulation import gradients_of, splits
from tests.support.hub_models import HEADS, LENGTH
from tests.support.strategies import fewest

lengths = st.lists(st.integers(2, LENGTH), min_size=1, max_size=6)


def gradients_by_hand(model, batch):
    """Return the gradients and the loss of a batch, as PyTorch computes them."""
    loss = model(**batch)[0]
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    found = zip(names, gradients, strict=True)
    return {name: gradient for name, gradient in found if gradient is not None}, loss.detach()


@pytest.mark.parametrize("head", HEADS)
@fewest
@given(first=lengths, second=lengths, split=splits())
@example(first=[LENGTH] * 4, second=[2, 6, 3], split={"microbatch_size": 1})
@example(first=[2, 6, 3, 5], second=[6, 2, 4, 3, 5], split={"grad_accum": 2})
def test_microbatches_give_the_gradients_of_the_loss_that_a_model_computes(
    head, first, second, split
):
    """Law of accumulation: Microbatches give the gradients of a loss that is a mean over the
    terms of the loss that a model of Transformers computes, for each head, with padding,
    without a setting.
    """
    head = HEADS[head]
    model, loader = head.build(), [head.batch(first), head.batch(second, seed=1)]

    found = gradients_of(model, loader, loss_fn=None, **split)

    assert_close(found, [gradients_by_hand(model, batch) for batch in loader])
