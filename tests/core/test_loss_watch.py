"""The terms of a loss: what a watch follows, and what it doesn't."""

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from composable.losses.loss import divided_by
from composable.losses.watch import LossWatch

OUTPUTS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
TARGETS = torch.tensor([0, 1, 2, 3, -100, 1])
MASK = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
SCALE = torch.tensor(3.0)
PARAMETER = nn.Parameter(torch.ones(2, 3))


def entropy(outputs=OUTPUTS, **options):
    return F.cross_entropy(outputs, TARGETS, **options)


def terms_of(loss, *batch):
    """Return the terms of what a function computes while it is watched."""
    with LossWatch(*batch) as watch:
        found = loss()
    return watch.terms_of(found)


def in_place():
    loss = torch.zeros(())
    loss += entropy()
    loss *= 2
    loss -= 1
    return loss


FOLLOWED = {
    "the call": (entropy, [(1.0, 5)], 0.0),
    "factors": (lambda: 2 * entropy() / 4, [(0.5, 5)], 0.0),
    "casts": (lambda: entropy().double().to(torch.float32).squeeze(), [(1.0, 5)], 0.0),
    "constants": (lambda: 1 - entropy() + 2, [(-1.0, 5)], 3.0),
    "sums": (lambda: sum([entropy(), 0.5 * entropy(OUTPUTS + 1)]), [(1.0, 5), (0.5, 5)], 0.0),
    "in place": (in_place, [(2.0, 5)], -1.0),
    "mean": (lambda: OUTPUTS.square().mean(), [(1.0, 24)], 0.0),
    "mean over dimensions": (lambda: torch.mean(OUTPUTS, dim=(0, 1)), [(1.0, 24)], 0.0),
    "sum": (lambda: OUTPUTS.square().sum(), [(1.0, None)], 0.0),
    "sum by sum": (
        lambda: (entropy(reduction="none") * MASK).sum() / MASK.sum(),
        [(1.0, 3)],
        0.0,
    ),
    "interpolation": (
        lambda: torch.lerp(entropy(), entropy(OUTPUTS + 1), 0.25),
        [(0.75, 5), (0.25, 5)],
        0.0,
    ),
    "another divisor": (
        lambda: divided_by(F.mse_loss(OUTPUTS, OUTPUTS * 0), 24, SCALE),
        [(1.0, 3)],
        0.0,
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_follows(name):
    function, terms, constant = FOLLOWED[name]

    found = terms_of(function)

    assert [(term.factor, term.divisor.value) for term in found.terms] == terms
    assert found.constant == constant


def test_a_sum_over_parameters_is_a_constant():
    found = terms_of(lambda: entropy() + PARAMETER.square().flatten().sum())

    assert len(found.terms) == 1
    assert torch.equal(found.sum_of_constants, PARAMETER.square().sum())


def changed_in_place():
    loss = entropy()
    loss += OUTPUTS.square().mean().exp()
    return loss


NOT_FOLLOWED = {
    "roots": lambda: F.mse_loss(OUTPUTS, OUTPUTS * 0).sqrt(),
    "products": lambda: entropy() * entropy(),
    "quotients": lambda: entropy() / entropy(),
    "a divisor with a gradient": lambda: OUTPUTS.square().sum() / OUTPUTS.exp().sum(),
    "a clamped count": lambda: OUTPUTS.square().sum() / MASK.sum().clamp(min=1),
    "another term": lambda: entropy() + OUTPUTS.norm(),
    "another term, in place": changed_in_place,
    "no reduction": lambda: entropy(reduction="none"),
    "a part": lambda: OUTPUTS.mean(0),
    "a copy of the values": lambda: torch.tensor(entropy().item()),
    "a number": lambda: OUTPUTS.square().sum() / MASK.sum().item(),
    "a number of 1 or more": lambda: OUTPUTS.square().sum() / max(1, (MASK > 1).sum()),
    "a length of 0": lambda: OUTPUTS.square().sum() / max(1, len(MASK[MASK > 1])),
    "a shape of 0": lambda: OUTPUTS.square().sum() / max(1, MASK[MASK > 1].shape[0]),
    "what a value decides": lambda: entropy() if (MASK > 0).any() else OUTPUTS.sum(),
    "values that differ": lambda: sum(OUTPUTS[one == MASK].mean() for one in MASK.unique()),
    "a sum over outputs and parameters": lambda: entropy() + (OUTPUTS * PARAMETER.sum()).norm(),
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_does_not_follow(name):
    assert terms_of(NOT_FOLLOWED[name]) is None


def test_what_is_read_after_the_loss_changes_nothing():
    with LossWatch() as watch:
        loss = 2 * entropy()
        assert loss.item()

    assert [term.factor for term in watch.terms_of(loss).terms] == [2.0]


def test_values_that_a_module_of_torch_reads_decide_nothing():
    module = nn.AdaptiveLogSoftmaxWithLoss(4, 4, [2])  # none of the targets is in the second part

    found = terms_of(lambda: module(OUTPUTS, torch.tensor([0, 1, 1, 0, 0, 1])).loss)

    assert [term.divisor.value for term in found.terms] == [6]


def test_a_forward_pass_may_read_what_is_no_result():
    watch = LossWatch()
    with watch.around_forward():
        loss = entropy() / 2 if MASK.bool().any() else None
        other = entropy() / max(1, MASK.sum())

    assert [term.factor for term in watch.terms_of(loss).terms] == [0.5]
    assert watch.terms_of(other) is None


NOTHING = torch.zeros(6, dtype=torch.long)
OF_NOTHING = {
    "weights of classes": lambda outputs: F.cross_entropy(
        outputs, NOTHING, torch.tensor([0.0, 1, 1, 1]), label_smoothing=0.5
    ),
    "weights of elements": lambda outputs: F.mse_loss(
        outputs, outputs.detach() + 1, weight=torch.zeros(6, 4)
    ),
    "a count": lambda outputs: outputs.square().sum() / NOTHING.sum(),
    "a count, in place": lambda outputs: outputs.square().sum().div_(NOTHING.float().sum()),
}


@pytest.mark.parametrize("name", OF_NOTHING)
def test_mean_over_nothing_is_the_sum_and_has_its_gradient(name):
    outputs = OUTPUTS.detach().requires_grad_()

    with LossWatch() as watch:
        loss = OF_NOTHING[name](outputs)
    loss.backward()

    (term,) = watch.terms_of(loss).terms
    assert (term.divisor.value, term.divisor.factor) == (0, 1)
    assert outputs.grad.isfinite().all()
    if name == "weights of elements":
        assert loss == 0
    if name.startswith("a count"):
        torch.testing.assert_close(loss, outputs.square().sum())
        torch.testing.assert_close(outputs.grad, 2 * outputs.detach())


BATCH = OUTPUTS.detach(), torch.stack([TARGETS, 3 - TARGETS.abs() % 4], 1)
OTHER = torch.zeros(2, 4), torch.tensor([[0, 2], [-100, 1]])


def by_shift(targets):
    return F.cross_entropy(OUTPUTS[:-1], F.pad(targets[:, 0], (0, 1), value=-100)[1:-1])


def by_mask(targets):
    losses, kept = entropy(reduction="none"), (targets[:, 1] >= 2).float()
    return (losses * kept).sum() / kept.sum()


FROM_BATCH = {
    "a column": (lambda targets: F.cross_entropy(OUTPUTS, targets[:, 0].contiguous()), 1),
    "clamped": (
        lambda targets: F.cross_entropy(OUTPUTS, targets[:, 1].clamp(0, 2), ignore_index=2),
        1,
    ),
    "shifted": (by_shift, 0),
    "a mask": (by_mask, 1),
}


@pytest.mark.parametrize("name", FROM_BATCH)
def test_divisor_of_another_batch_follows_from_its_targets(name):
    loss, expected = FROM_BATCH[name]

    (term,) = terms_of(lambda: loss(BATCH[1]), BATCH).terms

    assert term.divisor.of_batch(BATCH) == term.divisor.value
    assert term.divisor.of_batch(OTHER) == expected


OF_ROWS = {
    "as loaded": (lambda targets: targets, True),
    "flattened": (lambda targets: targets.flatten(), True),
    "without the first": (lambda targets: targets[:, 1:], True),
    "from the end": (lambda targets: targets[..., 1:].contiguous().view(-1), True),
    "a mask": (lambda targets: targets[:, 1] != -100, True),
    "rows": (lambda targets: targets[1:], False),
    "rows by their dimension": (lambda targets: targets[..., 1:, :], False),
    "rows of one": (lambda targets: targets[:, 0][..., 1:], False),
    "a new dimension": (lambda targets: targets[None][:, 1:], False),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_targets_of_rows_are_told_apart_from_those_of_the_whole(name):
    targets, by_rows = OF_ROWS[name]

    source = terms_of(lambda: targets(BATCH[1]).float().mean(), BATCH).terms[0].divisor.source

    assert source.is_of_any_size
    assert source.by_rows == by_rows


def test_other_elements_of_the_same_memory_are_not_those_of_the_batch():
    found = terms_of(lambda: BATCH[1].view(torch.int32).float().mean(), BATCH)

    assert found.terms[0].divisor.source is None


def changed(targets):
    targets = targets.clone()
    targets[0] = 2
    return targets


@pytest.mark.parametrize(
    "targets",
    [
        lambda targets: targets[:, 0].where(MASK > 0, -100),
        lambda targets: targets[MASK.bool()][:, 0].repeat(2),
        lambda targets: changed(targets[:, 0]),
        lambda targets: targets.view(-1)[:6],
        lambda targets: targets.sum(1).clamp(0, 3),
    ],
)
def test_divisor_is_unknown_for_targets_of_other_tensors_or_positions(targets):
    found = terms_of(lambda: F.cross_entropy(OUTPUTS, targets(BATCH[1])), BATCH)

    assert found.terms[0].divisor.of_batch is None


def test_calls_without_weight_have_no_gradient():
    inputs, weight = torch.randn(3, 2, requires_grad=True), torch.tensor([1.0, 0.0])
    first, second = terms_of(
        lambda: F.cross_entropy(inputs, torch.ones(3).long(), weight) + inputs.square().mean()
    ).terms

    (torch.where(first.divisor.value == 0, 0.0, first.value) + second.value).backward()

    torch.testing.assert_close(inputs.grad, inputs.detach() / 3)


def test_factors_that_are_tensors_are_told_apart_by_their_identity():
    def form(scale):
        return terms_of(lambda: entropy() * scale.double()).form

    assert form(SCALE) == form(SCALE)
    assert form(SCALE) != form(SCALE.clone())


def test_a_changed_result_has_no_terms():
    with LossWatch() as watch:
        loss = entropy()
    loss.detach().add_(1)

    assert watch.terms_of(loss) is None


def test_sees_the_same_with_and_without_a_graph():
    def twice():
        return 2 * entropy()

    with torch.no_grad():
        without = terms_of(twice)
    assert terms_of(twice).form == without.form


def test_watching_a_loss_takes_microseconds():
    def seconds(function):
        times = []
        for _ in range(200):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(lambda: terms_of(entropy)) - seconds(entropy) < 500e-6
