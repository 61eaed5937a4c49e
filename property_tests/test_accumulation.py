"""Law: however a batch is split into microbatches, its gradients are those of the batch."""

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable._support.tree import map_tensors
from composable.algorithms import GhostBatchNorm
from tests.support.algorithm_cases import algorithm_sets, cases_on, problems
from tests.support.campaign import second_once
from tests.support.data import IGNORED, batches
from tests.support.models import CLASSES, FEATURES, mlp, same
from tests.support.runs import PROBLEMS, gradients_of, trained
from tests.support.strategies import few, fewer, seeds

DOUBLE = torch.float64


@st.composite
def splits(draw):
    """Draw how to split: into a number of microbatches, or into microbatches of a size."""
    argument = draw(st.sampled_from(["grad_accum", "microbatch_size"]))
    return {argument: draw(st.integers(1, 9))}


@few
@given(splits(), st.integers(1, 12), st.integers(1, 8))
def test_microbatches_give_the_gradients_of_the_plain_loss_of_the_batch(split, count, size):
    """Law of accumulation: Microbatches give the gradients of a loss that is a mean over
    examples.
    """
    loader, model = batches(count, size, dtype=DOUBLE), mlp(dtype=DOUBLE)
    expected = []
    for inputs, targets in loader:
        loss = cross_entropy(model(inputs), targets)
        names, parameters = zip(*model.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, parameters)
        expected.append((dict(zip(names, gradients, strict=True)), loss.detach()))

    assert_close(gradients_of(model, loader, **split), expected)


uneven = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@few
@given(uneven, st.integers(2, 4), splits() | st.just({}))
def test_batches_of_the_loader_give_the_gradients_of_one_batch(sizes, n, split):
    together = [sum(sizes[i : i + n]) for i in range(0, len(sizes), n)]
    grouped = batches(sizes, dtype=DOUBLE)

    ours = gradients_of(mlp(dtype=DOUBLE), grouped, accumulate_batches=n, **split)
    assert_close(ours, gradients_of(mlp(dtype=DOUBLE), batches(together, dtype=DOUBLE)))


@few
@given(st.integers(1, 20), st.integers(1, 4), st.integers(2, 4), seeds)
def test_batches_of_the_loader_are_microbatches_bit_for_bit(count, size, n, seed):
    options = {"seed": seed, "max_duration": "2ep"}
    whole = trained(mlp(dropout=0.5), batches(count, n * size), microbatch_size=size, **options)

    grouped = trained(mlp(dropout=0.5), batches(count, size), accumulate_batches=n, **options)
    assert same(grouped, whole)


def sees_microbatches(case):
    return bool(case.sees_microbatches)


@st.composite
def sets_that_see_the_batch(draw):
    """Draw a problem, and algorithms that don't depend on how a batch is split."""
    problem = draw(problems)
    return problem, draw(algorithm_sets(problem, but=sees_microbatches))


def in_double(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


def gradients_with(problem, algorithms, seed, **split):
    """Return the gradients of each batch for a model that processes examples independently."""
    model = problem.model(one_by_one=True, dtype=DOUBLE)
    loader = [map_tensors(in_double, batch) for batch in problem.batches()]
    options = {**problem.options, "algorithms": algorithms, "seed": seed, "check_effects": False}
    return gradients_of(model, loader, **options, **split)


@fewer
@pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning")
@given(splits(), sets_that_see_the_batch(), seeds)
def test_with_any_algorithms_microbatches_give_the_gradients_of_the_batch(split, drawn, seed):
    """Law of accumulation: Microbatches give the gradients of a loss that is a mean over
    examples or tokens, with any algorithms except those that declare a dependence on
    microbatches; the declarations are tested too.
    """
    problem, algorithms = drawn

    whole = gradients_with(problem, algorithms, seed)
    in_parts = gradients_with(problem, algorithms, seed, **split)

    assert_close(in_parts, whole)


EACH = second_once(
    (problem, case)
    for problem in PROBLEMS
    for case in cases_on(problem)
    if case.kind is not GhostBatchNorm  # a model of one example at a time has no batch norm
)


@pytest.mark.parametrize(("problem", "case"), EACH, ids=repr)
def test_an_algorithm_sees_how_a_batch_is_split_only_if_it_says_so(problem, case):
    """Law of accumulation: Microbatches give the gradients of a loss that is a mean over
    examples or tokens, with any algorithms except those that declare a dependence on
    microbatches; the declarations are tested too.
    """
    whole = gradients_with(problem, case.example, 17)
    in_parts = gradients_with(problem, case.example, 17, grad_accum=3)

    if case.sees_microbatches:
        with pytest.raises(AssertionError, match="not close"):
            assert_close(in_parts, whole)
    else:
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
    """Draw a batch of sequences, and targets of which some, or all of a row, are ignored."""
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


def one_with_tokens(first):
    """Return two sequences, of which one has tokens."""
    targets = torch.full((2, 3), IGNORED)
    targets[first] = torch.tensor([0, 1, 2])
    return torch.randn(2, 3, FEATURES, dtype=DOUBLE), targets


def mean_over_labels(outputs, targets):
    kept = targets != IGNORED
    return (outputs.square().sum(1) * kept).sum() / kept.sum().clamp(min=1)


def count_labels(batch):
    return (batch[1] != IGNORED).sum().item()


@pytest.mark.parametrize(
    "options",
    [
        {"loss_mean_over": "tokens"},
        {"loss_mean_over": count_labels, "loss_fn": mean_over_labels},
    ],
    ids=["tokens", "function"],
)
@few
@given(split=splits(), batch=sequences())
@example(split={"microbatch_size": 1}, batch=one_with_tokens(0))
@example(split={"microbatch_size": 1}, batch=one_with_tokens(1))
def test_microbatches_with_unequal_counts_give_the_gradients_of_the_batch(options, split, batch):
    """Law of accumulation: Microbatches give the gradients of a loss that is a mean over
    tokens, with a different number in each example, or none (`loss_mean_over="tokens"`).

    Law of accumulation: Microbatches give the gradients of a loss that is a mean over a
    quantity that your function counts.
    """
    model = Tagger()

    whole = gradients_of(model, [batch], **options)
    in_parts = gradients_of(model, [batch], **options, **split)

    assert_close(in_parts, whole)
