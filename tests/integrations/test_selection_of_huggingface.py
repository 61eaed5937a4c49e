"""SelectiveBackprop on models of Transformers, whose outputs hold a loss without dimensions."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

from composable import Event
from composable.algorithms import SelectiveBackprop
from tests.integrations.loops import Run
from tests.support.hugging_face import WORDS, build
from tests.support.observers import Watch

transformers = pytest.importorskip("transformers")

EXAMPLES = [
    {
        "input_ids": torch.randint(WORDS, (8,), generator=torch.Generator().manual_seed(i)),
        "labels": torch.tensor(i % 3),
    }
    for i in range(8)
]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = build("bert as a classifier", num_labels=3)

    def forward(self, batch):
        return self.bert(**batch)

    def loss(self, outputs, batch):
        return cross_entropy(outputs.logits, batch["labels"])


class AveragingClassifier(Classifier):
    def loss(self, outputs, batch):
        return outputs.loss


def trainer_of(model, batch, **options):
    run = Run([SelectiveBackprop(0.0, keep=0.5, interrupt=0)], lambda: model, epochs=2)
    options |= {"loss_fn": None, "input_key": "input_ids", "train_dataloader": [batch]}
    return run.trainer(**options)


@pytest.mark.parametrize("kind", [dict, transformers.BatchEncoding])
def test_trains_on_the_selected_examples(kind):
    watch = Watch(Event.AFTER_FORWARD, read=lambda state: state.outputs.logits.shape)

    trainer_of(Classifier(), kind(default_collate(EXAMPLES)), callbacks=watch).fit()

    assert watch.values == [(4, 3), (4, 3)]


def test_scores_are_the_losses_of_batches_of_one():
    model, batch = Classifier().eval(), default_collate(EXAMPLES)
    loss = trainer_of(model, batch).state.loss_fn

    scores = loss.per_example(model(batch), batch)

    alone = [default_collate([example]) for example in EXAMPLES]
    torch.testing.assert_close(scores, torch.stack([loss(model(one), one) for one in alone]))


def test_rejects_a_loss_that_the_model_averaged():
    trainer = trainer_of(AveragingClassifier(), default_collate(EXAMPLES))

    with pytest.raises(ValueError, match=r"AveragingClassifier\.loss .* cross_entropy\(outputs"):
        trainer.fit()
