"""The metrics of GLUE, by torchmetrics in an evaluation, against their definitions."""

import math
import warnings
from functools import partial

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassMatthewsCorrCoef,
)
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef
from torchmetrics.wrappers import LambdaInputTransformer

from composable.metrics import OfLoss, accuracy, perplexity, token_accuracy
from tests.support.runs import make_trainer

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(40, 2, generator=GENERATOR)
LABELS = torch.randint(2, (40,), generator=GENERATOR)
SCORES = torch.randn(40, 1, generator=GENERATOR)
RATINGS = SCORES[:, 0] + torch.randn(40, generator=GENERATOR)

classes = partial(LambdaInputTransformer, transform_pred=lambda logits: logits.argmax(-1))
scores = partial(LambdaInputTransformer, transform_pred=lambda outputs: outputs.squeeze(-1))


def counts():
    predicted = LOGITS.argmax(1)
    return [
        int((predicted.eq(p) & LABELS.eq(y)).sum()) for p, y in [(1, 1), (1, 0), (0, 1), (0, 0)]
    ]


def f1():
    tp, fp, fn, _ = counts()
    return 2 * tp / (2 * tp + fp + fn)


def matthews():
    tp, fp, fn, tn = counts()
    return (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))


with warnings.catch_warnings():  # it keeps all predictions
    warnings.simplefilter("ignore")
    SPEARMAN = SpearmanCorrCoef()
GLUE = {
    "accuracy": (MulticlassAccuracy(2, average="micro"), LOGITS, LABELS),
    "f1": (classes(BinaryF1Score()), LOGITS, LABELS),
    "matthews": (MulticlassMatthewsCorrCoef(2), LOGITS, LABELS),
    "pearson": (scores(PearsonCorrCoef()), SCORES, RATINGS),
    "spearman": (scores(SPEARMAN), SCORES, RATINGS),
}
EXPECTED = {
    "accuracy": LOGITS.argmax(1).eq(LABELS).double().mean().item(),
    "f1": f1(),
    "matthews": matthews(),
    "pearson": stats.pearsonr(SCORES[:, 0], RATINGS).statistic,
    "spearman": stats.spearmanr(SCORES[:, 0], RATINGS).statistic,
}


def evaluate(metrics, outputs, targets, sizes=(16, 16, 8), **options):
    loader = list(zip(outputs.split(sizes), targets.split(sizes), strict=True))
    trainer = make_trainer(nn.Identity(), loss_fn=None, metrics=metrics, optimizers=None, **options)
    return trainer.eval(loader)["eval"]


@pytest.mark.parametrize("name", GLUE)
def test_metric_of_torchmetrics_equals_its_definition_each_time(name):
    metric, outputs, targets = GLUE[name]
    metric.update(outputs[:5], targets[:5])  # an evaluation resets it

    for _ in range(2):
        found = evaluate({name: metric}, outputs, targets)

        assert found == {name: pytest.approx(EXPECTED[name], abs=1e-6)}


def collection():
    return MetricCollection({"accuracy": MulticlassAccuracy(2, average="micro")})


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        (collection(), "accuracy"),
        ({"glue": collection()}, "glue/accuracy"),
        (MulticlassAccuracy(2, average="micro"), "MulticlassAccuracy"),
    ],
)
def test_collections_and_single_metrics_are_named(metrics, name):
    assert evaluate(metrics, LOGITS, LABELS) == {name: pytest.approx(EXPECTED["accuracy"])}


# --- perplexity and token accuracy ---

TOKENS = torch.randn(5, 4, 6, generator=GENERATOR)
KEPT = torch.arange(4) < torch.tensor([[4], [1], [3], [0], [2]])
TARGETS = TOKENS.argmax(-1).add(torch.tensor([0, 0, 1, 0])).remainder(6).where(KEPT, -100)


def token_loss(outputs, targets):
    return cross_entropy(outputs.mT, targets)


def token_evaluation(metrics, **options):
    trainer = make_trainer(
        nn.Identity(),
        loss_fn=token_loss,
        metrics=metrics,
        optimizers=None,
        loss_mean_over="tokens",
        **options,
    )
    sizes = [2, 1, 2]
    return trainer.eval(list(zip(TOKENS.split(sizes), TARGETS.split(sizes), strict=True)))["eval"]


def test_perplexity_and_token_accuracy_are_those_of_all_tokens_at_once():
    bits = OfLoss(lambda loss: loss / math.log(2))
    metrics = {"perplexity": perplexity, "tokens": token_accuracy, "bits": bits}

    found = token_evaluation({**metrics, "examples": accuracy})

    loss = token_loss(TOKENS, TARGETS).item()
    right = (TOKENS.argmax(-1) == TARGETS)[TARGETS != -100].double().mean().item()
    assert found["perplexity"] == pytest.approx(math.exp(loss))
    assert found["bits"] == pytest.approx(loss / math.log(2))
    assert found["tokens"] == pytest.approx(right)
    assert found["examples"] != pytest.approx(right)


def test_shifted_token_accuracy_compares_with_the_next_label():
    found = token_accuracy(TOKENS, TARGETS, shift=True)

    labels = TARGETS[:, 1:]
    expected = (TOKENS[:, :-1].argmax(-1) == labels)[labels != -100].float()
    assert torch.equal(found, expected)


def test_a_function_of_the_loss_needs_a_loss():
    with pytest.raises(
        ValueError, match=r"\['perplexity'\] is a function of the loss.*pass loss_fn"
    ):
        evaluate({"perplexity": perplexity}, LOGITS, LABELS)
