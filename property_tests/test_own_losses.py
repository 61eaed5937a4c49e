"""Law: microbatches of a model that computes its own loss give the gradients of the batch."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.testing import assert_close

from composable import SplitLossError
from composable.integrations import adapt_loop
from property_tests.test_accumulation import splits
from tests.support.hub_models import HEADS, LENGTH
from tests.support.models import weights
from tests.support.runs import gradients_of, make_trainer
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


WATCHED = "answers"
"""The head whose loss is found in the forward pass only, which an own loop makes itself."""


@pytest.mark.parametrize("name", HEADS)
def test_own_loop_accumulates_the_loss_that_a_model_computes(name):
    head = HEADS[name]
    batches = [head.batch([LENGTH, 3]), head.batch([2, 6, 4], seed=1), head.batch([5], seed=2)]
    model, plain = head.build(), head.build()
    keys = {"input_key": next(iter(batches[0])), "target_key": "labels"}
    options = {"accumulate_batches": 2, "max_duration": "1ep", "loss_fn": None}
    optimizer, other = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, plain))
    make_trainer(plain, batches, optimizers=other, **keys, **options).fit()
    t = adapt_loop([], model, optimizer, **keys, seed=17)

    with pytest.raises(SplitLossError) if name == WATCHED else nullcontext():
        for i, batch in enumerate(t.epoch(batches, accumulate_batches=2)):
            (t.loss(t.model(**batch)) / 2).backward()
            if i:
                optimizer.step()
                optimizer.zero_grad()
        assert_close(weights(model), weights(plain))
