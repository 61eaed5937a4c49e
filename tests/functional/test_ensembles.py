"""Averages of probabilities, and the weights of mixtures."""

from math import inf, log

import pytest
import torch
from torch.testing import assert_close

from composable.functional import average_probabilities, distillation_loss, mixture_weights


def loss(weights, logs):
    return float(-(weights.log()[:, None] + logs).logsumexp(0).mean())


def drawn(models=4, examples=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return -5 * torch.rand(models, examples, generator=generator, dtype=torch.float64)


def test_an_average_without_weight_is_that_of_the_other_models():
    one, two = torch.randn(2, 5, 3).unbind()

    found = average_probabilities([one, two], weights=torch.tensor([1.0, 0.0]))

    assert_close(found, one.log_softmax(1))


def test_two_mixtures_are_those_of_each_position():
    logits = torch.randn(2, 4, 6, 3)

    found = average_probabilities(list(logits), class_dim=-1)

    assert_close(found.exp(), logits.softmax(-1).mean(0))


@pytest.fixture(scope="module")
def best():
    return mixture_weights(drawn(), iterations=100_000)


@pytest.mark.parametrize("iterations", [1, 10, 100])
def test_the_loss_of_a_mixture_is_within_its_bound(iterations, best):
    logs = drawn()

    found = mixture_weights(logs, iterations=iterations)

    assert loss(best, logs) <= loss(found, logs) <= loss(best, logs) + log(len(logs)) / iterations
    assert float(found.sum()) == pytest.approx(1)


def test_the_weights_of_a_mixture_satisfy_the_conditions_of_an_optimum(best):
    logs = drawn()

    ratios = (logs - (best.log()[:, None] + logs).logsumexp(0)).exp().mean(1)

    assert bool((ratios <= 1 + 1e-6).all())
    assert_close(ratios[best > 1e-3], torch.ones_like(ratios[best > 1e-3]))


def test_one_of_equal_models_is_as_good_as_all():
    logs = drawn(1).expand(3, -1)

    assert_close(mixture_weights(logs), torch.full((3,), 1 / 3, dtype=torch.float64))


def test_the_best_models_are_kept_and_fitted_again():
    logs = drawn(6)
    whole = mixture_weights(logs)

    found = mixture_weights(logs, top=2)

    kept = whole.topk(2).indices.sort().values
    assert torch.equal(found.nonzero().flatten(), kept)
    assert_close(found[kept], mixture_weights(logs[kept]))


def test_very_unlikely_examples_leave_the_weights_finite():
    logs = torch.tensor([[-1e4, -1e4, 0.0], [-2e4, -1.0, -1e4]])

    assert_close(mixture_weights(logs).sum(), torch.tensor(1.0))


# --- distillation ---


def test_the_gradient_is_that_of_softened_probabilities():
    logits, teacher = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4)

    distillation_loss(logits, teacher, temperature=3.0).backward()

    expected = 3.0 * ((logits / 3).softmax(1) - (teacher / 3).softmax(1)) / 5
    assert_close(logits.grad, expected.detach())


def test_positions_without_weight_do_not_count_and_neither_do_batches_of_them():
    logits, teacher = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    weights = torch.tensor([1.0, 0.0, 3.0, 0.0])

    found = distillation_loss(logits, teacher, weights=weights)

    ones = [distillation_loss(logits[i : i + 1], teacher[i : i + 1]) for i in range(4)]
    assert_close(found, (ones[0] + 3 * ones[2]) / 4)
    nothing = distillation_loss(logits, teacher, weights=torch.zeros(4))
    (slope,) = torch.autograd.grad(nothing, logits)
    assert nothing == 0
    assert torch.equal(slope, torch.zeros(4, 3))


def test_classes_that_the_student_alone_masks_have_a_divergence():
    logits, teacher = torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    mask = torch.tensor([False, False, False, True, True]).reshape(1, 5, 1)

    assert distillation_loss(logits, teacher.masked_fill(mask, -inf)).isfinite()
    assert distillation_loss(logits.masked_fill(mask, -inf), teacher) == inf
