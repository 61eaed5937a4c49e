"""Law: however a batch is split into microbatches, its gradients are those of the batch."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import Event
from composable.algorithms import LabelSmoothing, SelectiveBackprop
from property_tests.strategies import mixups, seeds
from tests.runs import CLASSES, FEATURES, GradientNoise, Jitter, Watch, batches, mlp, trainer

IGNORED = -100
DOUBLE = torch.float64


@st.composite
def splits(draw):
    """How to split: into a number of microbatches, or into microbatches of a size."""
    argument = draw(st.sampled_from(["grad_accum", "microbatch_size"]))
    return {argument: draw(st.integers(1, 9))}


def gradients_of(model, loader, **options):
    """The gradients and the loss of each batch, under weights that never change."""
    watch = Watch(
        lambda state: ({n: g.clone() for n, g in state.grads().items()}, state.loss),
        Event.AFTER_TRAIN_BATCH,
    )
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer(model, loader, optimizers=still, callbacks=watch, max_duration="1ep", **options).fit()
    return watch.seen


@given(splits(), st.integers(1, 12), st.integers(1, 8))
def test_microbatches_give_the_gradients_of_the_batch(split, count, size):
    loader = batches(count, size, dtype=DOUBLE)  # the last batch may be short

    whole = gradients_of(mlp(dtype=DOUBLE), loader)
    in_parts = gradients_of(mlp(dtype=DOUBLE), loader, **split)

    assert_close(in_parts, whole)


@given(splits(), st.integers(1, 12), st.integers(1, 8))
def test_microbatches_give_the_gradients_of_the_plain_loss_of_the_batch(split, count, size):
    loader, model = batches(count, size, dtype=DOUBLE), mlp(dtype=DOUBLE)
    expected = []
    for inputs, targets in loader:
        loss = cross_entropy(model(inputs), targets)
        names, parameters = zip(*model.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, parameters)
        expected.append((dict(zip(names, gradients, strict=True)), loss.detach()))

    assert_close(gradients_of(model, loader, **split), expected)


algorithms_of_a_batch = st.tuples(
    st.one_of(st.none(), mixups),
    st.sampled_from([None, LabelSmoothing(0.2)]),
    st.sampled_from([None, SelectiveBackprop(start=0.0, end=1.0, keep=0.5, interrupt=2)]),
    st.sampled_from([None, Jitter()]),
    st.sampled_from([None, GradientNoise()]),
).map(lambda chosen: [one for one in chosen if one is not None])


@given(splits(), st.integers(1, 12), st.integers(1, 8), algorithms_of_a_batch, seeds)
def test_with_algorithms_that_draw_microbatches_give_the_gradients_of_the_batch(
    split, count, size, algorithms, seed
):
    loader = batches(count, size, dtype=DOUBLE)
    options = {"algorithms": algorithms, "seed": seed}

    whole = gradients_of(mlp(dtype=DOUBLE), loader, **options)
    in_parts = gradients_of(mlp(dtype=DOUBLE), loader, **options, **split)

    assert_close(in_parts, whole)


class Tagger(nn.Module):
    """Scores a class for each position of a sequence."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(FEATURES, CLASSES, dtype=DOUBLE)

    def forward(self, inputs):
        return self.score(inputs).movedim(-1, 1)


@st.composite
def sequences(draw):
    """A batch of sequences, and targets of which some are ignored, or all of a row."""
    count, length = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    inputs = torch.randn(count, length, FEATURES, generator=generator, dtype=DOUBLE)
    labels = st.sampled_from([IGNORED, *range(CLASSES)])
    rows = st.one_of(
        st.just([IGNORED] * length), st.lists(labels, min_size=length, max_size=length)
    )
    targets = torch.tensor(draw(st.lists(rows, min_size=count, max_size=count)))
    assume((targets != IGNORED).any())
    return inputs, targets


@given(splits(), sequences())
def test_microbatches_with_unequal_numbers_of_tokens_give_the_gradients_of_the_batch(split, batch):
    model, options = Tagger(), {"loss_mean_over": "tokens"}

    whole = gradients_of(model, [batch], **options)
    in_parts = gradients_of(model, [batch], **options, **split)

    assert_close(in_parts, whole)


@given(splits(), sequences())
def test_a_function_that_counts_weighs_microbatches(split, batch):
    def mean(outputs, targets):
        kept = targets != IGNORED
        return (outputs.square().sum(1) * kept).sum() / kept.sum().clamp(min=1)

    def count(batch):
        return (batch[1] != IGNORED).sum().item()

    model, options = Tagger(), {"loss_fn": mean, "loss_mean_over": count}

    whole = gradients_of(model, [batch], **options)
    in_parts = gradients_of(model, [batch], **options, **split)

    assert_close(in_parts, whole)


@pytest.mark.parametrize("first", [0, 1])
def test_a_microbatch_without_a_token_has_no_share(first):
    inputs = torch.randn(2, 3, FEATURES, dtype=DOUBLE)
    targets = torch.full((2, 3), IGNORED)
    targets[first] = torch.tensor([0, 1, 2])
    model = Tagger()

    whole = gradients_of(model, [(inputs, targets)])
    in_parts = gradients_of(model, [(inputs, targets)], loss_mean_over="tokens", microbatch_size=1)

    assert_close(in_parts, whole)
    assert all(gradient.isfinite().all() for gradient in in_parts[0][0].values())
