"""Divisors: what the losses of PyTorch are means over."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from composable.batches.divisors import divisor_of
from composable.functional import linear_cross_entropy
from composable.losses.watch import LossWatch

ROWS, CLASSES = 6, 4


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


LOGITS, MAPS = draw(ROWS, CLASSES), draw(2, CLASSES, 3)
INDICES = torch.tensor([0, 1, -100, 3, 1, 2])
MAP = torch.tensor([[0, -100, 2], [1, 3, 0]])
SHARES = draw(ROWS, CLASSES, seed=1).softmax(1)
CLASS_WEIGHTS = torch.tensor([1.0, 10.0, 0.5, 3.0], dtype=torch.float64)
VALUES, OTHERS = draw(ROWS, 3), draw(ROWS, 3, seed=1)
WEIGHTS = draw(ROWS, 3, seed=2).abs()
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
LENGTHS = torch.full((ROWS,), 5), torch.tensor([2, 3, 1, 2, 2, 3])
CTC = draw(5, ROWS, CLASSES).log_softmax(-1), torch.ones(ROWS, 3).long() * torch.tensor([1, 2, 3])

MEANS = {
    "cross_entropy": partial(F.cross_entropy, LOGITS, INDICES),
    "cross_entropy, ignored": partial(F.cross_entropy, LOGITS, INDICES.abs() % 4, ignore_index=1),
    "cross_entropy, weights": partial(F.cross_entropy, LOGITS, INDICES, CLASS_WEIGHTS),
    "cross_entropy, smoothed": partial(
        F.cross_entropy, LOGITS, INDICES, CLASS_WEIGHTS, label_smoothing=0.1
    ),
    "cross_entropy, maps": partial(F.cross_entropy, MAPS, MAP, weight=CLASS_WEIGHTS),
    "cross_entropy, shares": partial(F.cross_entropy, LOGITS, SHARES),
    "cross_entropy, weighted shares": partial(
        F.cross_entropy, LOGITS, SHARES, weight=CLASS_WEIGHTS, label_smoothing=0.1
    ),
    "cross_entropy, one row": partial(F.cross_entropy, LOGITS[0], INDICES[0], CLASS_WEIGHTS),
    "cross_entropy, one row of shares": partial(F.cross_entropy, LOGITS[0], SHARES[0]),
    "nll_loss": partial(F.nll_loss, LOGITS.log_softmax(1), INDICES, CLASS_WEIGHTS),
    "binary_cross_entropy": partial(F.binary_cross_entropy, LOGITS.sigmoid(), SHARES),
    "binary_cross_entropy, weights": partial(
        F.binary_cross_entropy, LOGITS.sigmoid(), SHARES, CLASS_WEIGHTS
    ),
    "binary_cross_entropy_with_logits": partial(
        F.binary_cross_entropy_with_logits, LOGITS, SHARES, pos_weight=CLASS_WEIGHTS
    ),
    "mse_loss": partial(F.mse_loss, VALUES, OTHERS),
    "mse_loss, weights": partial(F.mse_loss, VALUES, OTHERS, weight=WEIGHTS),
    "l1_loss": partial(F.l1_loss, VALUES, OTHERS),
    "l1_loss, weights": partial(F.l1_loss, VALUES, OTHERS, weight=WEIGHTS),
    "smooth_l1_loss": partial(F.smooth_l1_loss, VALUES, OTHERS, beta=0.5),
    "huber_loss": partial(F.huber_loss, VALUES, OTHERS, delta=0.5),
    "huber_loss, weights": partial(F.huber_loss, VALUES, OTHERS, weight=WEIGHTS),
    "kl_div": partial(F.kl_div, LOGITS.log_softmax(1), SHARES),
    "poisson_nll_loss": partial(F.poisson_nll_loss, VALUES, OTHERS.exp()),
    "gaussian_nll_loss": partial(F.gaussian_nll_loss, VALUES, OTHERS, WEIGHTS),
    "soft_margin_loss": partial(F.soft_margin_loss, VALUES[:, 0], SIGNS),
    "hinge_embedding_loss": partial(F.hinge_embedding_loss, VALUES[:, 0], SIGNS),
    "margin_ranking_loss": partial(F.margin_ranking_loss, VALUES[:, 0], OTHERS[:, 0], SIGNS),
    "cosine_embedding_loss": partial(F.cosine_embedding_loss, VALUES, OTHERS, SIGNS),
    "multi_margin_loss": partial(F.multi_margin_loss, LOGITS, INDICES.abs() % 4),
    "multi_margin_loss, weights": partial(
        F.multi_margin_loss, LOGITS, INDICES.abs() % 4, weight=CLASS_WEIGHTS
    ),
    "multilabel_margin_loss": partial(
        F.multilabel_margin_loss, LOGITS, torch.tensor([[1, 2, -1, 0]] * ROWS)
    ),
    "multilabel_soft_margin_loss": partial(
        F.multilabel_soft_margin_loss, LOGITS, SHARES.round(), CLASS_WEIGHTS
    ),
    "triplet_margin_loss": partial(F.triplet_margin_loss, VALUES, OTHERS, VALUES.flip(0)),
    "triplet_margin_with_distance_loss": partial(
        F.triplet_margin_with_distance_loss, VALUES, OTHERS, VALUES.flip(0)
    ),
}
if hasattr(F, "linear_cross_entropy"):
    MEANS["linear_cross_entropy"] = partial(
        F.linear_cross_entropy, LOGITS, draw(CLASSES, CLASSES), INDICES, weight=CLASS_WEIGHTS
    )


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")  # of kl_div
@pytest.mark.parametrize("name", MEANS)
def test_mean_times_its_divisor_is_the_sum(name):
    loss = MEANS[name]
    found = divisor_of(loss.func, loss.args, {**loss.keywords, "reduction": "mean"})

    mean, total = loss(reduction="mean"), loss(reduction="sum")

    torch.testing.assert_close(mean * found.value, total)
    assert divisor_of(loss.func, loss.args, {**loss.keywords, "reduction": "sum"}).value is None
    assert divisor_of(loss.func, loss.args, {**loss.keywords, "reduction": "none"}) is None


@pytest.mark.parametrize("name", MEANS)
def test_targets_that_determine_the_divisor_give_it(name):
    loss = MEANS[name]
    found = divisor_of(loss.func, loss.args, loss.keywords)
    if found.count is not None:
        assert found.count(found.targets) == found.value


def test_every_loss_function_of_torch_is_in_the_table():
    names = [name for name in dir(F) if name.endswith(("_loss", "entropy", "_div", "with_logits"))]
    tested = {name.partition(",")[0] for name in MEANS} | {"ctc_loss"}
    assert set(names) == tested


def test_batchmean_is_divided_by_the_rows():
    found = divisor_of(F.kl_div, (LOGITS, SHARES), {"reduction": "batchmean"})
    assert found.value == ROWS


def test_mean_of_sequences_is_over_the_sequences():
    args = *CTC, *LENGTHS
    found = divisor_of(F.ctc_loss, args, {})
    losses = F.ctc_loss(*args, reduction="none") / LENGTHS[1]
    torch.testing.assert_close(F.ctc_loss(*args) * found.value, losses.sum())


def test_deprecated_arguments_are_read():
    def value(**options):
        return divisor_of(F.mse_loss, (VALUES, OTHERS), options)

    assert value(size_average=False).value is None
    assert value(reduce=False) is None
    assert value(size_average=True, reduce=True).value == VALUES.numel()


def test_class_weights_are_told_apart_and_weights_of_elements_are_not():
    def options(function, weight):
        return divisor_of(function, (VALUES, OTHERS), {"weight": weight}).options

    assert options(F.mse_loss, WEIGHTS) == options(F.mse_loss, WEIGHTS.clone())
    first, again, other = (
        divisor_of(F.cross_entropy, (LOGITS, INDICES, weight), {}).options
        for weight in (CLASS_WEIGHTS, CLASS_WEIGHTS, CLASS_WEIGHTS.clone())
    )
    assert first == again != other


def test_linear_cross_entropy_is_a_mean_over_the_labels():
    with LossWatch() as watch:
        loss = linear_cross_entropy(LOGITS, draw(CLASSES, CLASSES), INDICES)
    (term,) = watch.terms_of(loss).terms
    assert term.divisor.value == 5
