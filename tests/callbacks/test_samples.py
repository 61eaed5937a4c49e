"""Samples and predictions are those of the evaluated model, and go to tables."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA
from composable.callbacks import Generate, Predictions
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.hugging_face import build, tokens
from tests.support.observers import Gambler, Raise
from tests.support.runs import make_trainer

TEXTS = ["abc", "cab"]


class Letters:
    """A tokenizer: a letter is a token."""

    def encode(self, text):
        return [ord(letter) - ord("a") + 1 for letter in text]

    def decode(self, ids):
        return "".join(chr(ord("a") - 1 + i) for i in ids)


def gpt2(*callbacks, **options):
    """Build a Trainer of a small GPT-2 with dropout and averaged weights."""
    ids = tokens(6, batch=8)
    data = [{"input_ids": part, "labels": part} for part in ids.split(2)]
    return make_trainer(
        build("gpt2").train(),
        data,
        loss_fn=None,
        algorithms=EMA(half_life="2ba"),
        callbacks=list(callbacks),
        loggers=InMemoryLogger(),
        **options,
    )


def tables(trainer, name):
    """Return the tables of a name, each with its batch."""
    return [(now.batch, found[name]) for now, found in trainer.history.tables if name in found]


@pytest.mark.parametrize("kind", ["texts", "tensor"])
def test_samples_are_those_of_the_evaluated_weights(kind):
    ids = torch.tensor([Letters().encode(text) for text in TEXTS])
    given = {"prompts": TEXTS, "tokenizer": Letters()} if kind == "texts" else {"prompts": ids}
    trainer = gpt2(Generate(**given, max_new_tokens=4))
    trainer.fit()

    (first, _), (last, rows) = tables(trainer, "samples")

    model = trainer.state.model.eval()
    found = [model.generate(one[None], max_new_tokens=4)[0] for one in ids]
    as_text = Letters().decode if kind == "texts" else lambda ids: " ".join(map(str, ids))
    assert (first, last) == (4, 8)  # at the end of each epoch
    assert rows == [
        {"prompt": as_text(prompt.tolist()), "text": as_text(row[3:].tolist())}
        for prompt, row in zip(ids, found, strict=True)
    ]


def test_samples_depend_on_the_seed_and_the_batch_alone():
    def run(*callbacks):
        generate = Generate(torch.tensor([[1, 2]]), "1ba", do_sample=True, max_new_tokens=5)
        trainer = gpt2(*callbacks, generate, seed=3)
        trainer.fit()
        return tables(trainer, "samples")

    samples = run()
    assert samples == run(Gambler())
    assert len({str(rows) for _, rows in samples}) > 1


def test_model_without_generate_is_an_error_at_the_start():
    trainer = make_trainer(callbacks=Generate(torch.tensor([[1]])), loggers=InMemoryLogger())

    with pytest.raises(TypeError, match="a model with a method generate, and Linear has none"):
        trainer.fit()

    assert trainer.state.timestamp.batch == 0


# --- Predictions


def classified(interval="1ep", **options):
    """Build a Trainer that logs predictions, and is evaluated after every batch."""
    callbacks = [Predictions(interval, num_examples=3), *options.pop("callbacks", ())]
    return make_trainer(
        callbacks=callbacks,
        eval_dataloader=batches(8),
        eval_interval="1ba",
        algorithms=EMA(half_life="2ba"),
        loggers=InMemoryLogger(),
        **options,
    )


def test_predictions_are_those_of_the_evaluated_model():
    trainer = classified("2ba")
    trainer.fit()
    found = tables(trainer, "predictions/eval")

    inputs, targets = next(iter(batches(8)))
    classes = trainer.state.model.eval()(inputs).argmax(1)
    assert [batch for batch, _ in found] == [2, 4, 6]
    assert [(row["output"], row["target"]) for row in found[-1][1]] == [
        (str(int(one)), str(int(target))) for one, target in zip(classes[:3], targets, strict=False)
    ]


def test_standalone_evaluation_is_logged():
    trainer = classified("9ep")
    trainer.fit()
    trainer.eval()

    assert len(tables(trainer, "predictions/eval")) == 1


def test_resumed_run_logs_the_same_predictions(tmp_path):
    whole = classified("2ba")
    whole.fit()

    with pytest.raises(RuntimeError, match="killed"):
        classified(
            "2ba",
            callbacks=[Raise(RuntimeError("killed"), batch=2)],
            save_folder=tmp_path,
            save_interval="1ba",
        ).fit()
    resumed = classified("2ba", save_folder=tmp_path, autoresume=True)
    resumed.fit()

    assert tables(resumed, "predictions/eval") == tables(whole, "predictions/eval")[1:]


def test_examples_of_any_outputs_are_described():
    class Named(nn.Module):
        def forward(self, x):
            return {"logits": x.new_zeros(len(x), 30), "norm": x.norm(dim=1).round()}

    trainer = make_trainer(
        Named(),
        eval_dataloader=[(torch.eye(4), torch.arange(4))],
        loss_fn=lambda outputs, targets: cross_entropy(outputs["logits"], targets),
        callbacks=[
            Predictions(num_examples=1),
            Predictions(describe=lambda inputs, outputs, target: {"class": int(target)}),
        ],
        loggers=InMemoryLogger(),
        train_dataloader=None,
        optimizers=None,
    )
    trainer.eval()

    (_, shown), (_, given) = tables(trainer, "predictions/eval")
    assert shown == [
        {
            "input": "[1.0, 0.0, 0.0, 0.0]",
            "output": "logits: float32 [30], norm: 1.0",
            "target": "0",
        }
    ]
    assert given == [{"class": i} for i in range(4)]
