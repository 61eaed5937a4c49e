"""The adapter for models of Transformers."""

import pytest
import torch
from torch.testing import assert_close

from composable.metrics import accuracy, perplexity
from composable.models import HuggingFaceModel
from tests.support.hub_models import HEADS
from tests.support.models import weights
from tests.support.runs import make_trainer

LENGTHS = [2, 6, 3, 5]


@pytest.mark.parametrize("head", ["causal", "classes", "answers", "pictures"])
def test_adapter_trains_and_evaluates_like_the_model(head):
    head = HEADS[head]
    loader = [head.batch(LENGTHS, seed=seed) for seed in range(3)]
    metrics = {"perplexity": perplexity}
    options = {"loss_fn": None, "eval_dataloader": loader, "microbatch_size": 1}
    plain = make_trainer(head.build(), loader, metrics=metrics, **options).fit()

    found = make_trainer(HuggingFaceModel(head.build(), metrics), loader, **options).fit()

    assert_close(weights(found.model.model), weights(plain.model), rtol=0, atol=0)
    assert dict(found.metrics["eval"]) == dict(plain.metrics["eval"])


def test_metrics_of_the_adapter_take_logits_and_labels():
    head = HEADS["pictures"]
    model, batch = head.build().eval(), head.batch(LENGTHS)
    expected = accuracy(model(**batch).logits, batch["labels"]).mean().item()

    trainer = make_trainer(HuggingFaceModel(model, {"accuracy": accuracy}), loss_fn=None)

    assert trainer.eval([batch])["eval"]["accuracy"] == pytest.approx(expected)


def test_loss_without_labels_is_an_error():
    head = HEADS["causal"]
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long)}

    with pytest.raises(ValueError, match="GPT2LMHeadModel returned no loss"):
        make_trainer(HuggingFaceModel(head.build()), [batch], loss_fn=None).fit()
