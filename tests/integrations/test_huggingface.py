"""The algorithms in Hugging Face's Trainer."""

from functools import partial

import pytest
import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments
from transformers.modeling_outputs import ImageClassifierOutput

from composable.algorithms import EMA, WeightStandardization
from composable.integrations.huggingface import LogitsModel, LoopAdapterCallback, LoopAdapterMixin
from composable.utils.reproducibility import seed_context, seed_step
from tests.integrations import table
from tests.integrations.table import (
    ASKS,
    ON_SEQUENCES,
    SETS,
    SGD,
    SIX,
    WITHIN,
    acts,
    dataset,
    evaluated,
    ours,
    refused_in,
    start,
    works_in,
)
from tests.support.campaign import drawn
from tests.support.models import same, weights

KEYS = {"loss_fn": None, "input_key": "pixel_values", "target_key": "labels"}
# What these replace or need isn't in a residual net.
NOT_ON_RESNET = {
    "Dropout",
    "GyroDropout",
    "LowPrecisionGroupNorm",
    "LowPrecisionLayerNorm",
    *ON_SEQUENCES,
}


def resnet():
    """Strided convolutions, a max-pool and normalisations with statistics; from a config."""
    config = ResNetConfig(
        num_channels=2, embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic"
    )
    config.num_labels = 3
    with seed_context(0):
        return LogitsModel(ResNetForImageClassification(config))


class Classifier(nn.Module):
    """A model of the table, as this Trainer calls one."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, pixel_values, labels=None):
        logits = self.net(pixel_values)
        loss = None if labels is None else cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)


def net(name):
    """Build the model on which an algorithm is tested."""
    return LogitsModel(Classifier(table.net(name))) if name in NOT_ON_RESNET else resnet()


class Examples(torch.utils.data.Dataset):
    """Examples as dictionaries."""

    def __init__(self, name=""):
        self.inputs, self.labels = dataset(name, 14)

    def __len__(self):
        return 14

    def __getitem__(self, i):
        return {"pixel_values": self.inputs[i], "labels": self.labels[i]}


def loader(name=""):
    return DataLoader(Examples(name), batch_size=5)


def probe(name=""):
    return next(iter(loader(name)))


class Plain(transformers.Trainer):
    """Without shuffling; dropout is seeded, which nothing does where a callback is alone."""

    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=5)

    def compute_loss(self, *args, **kwargs):
        seed_step(17, self.state.global_step)
        return super().compute_loss(*args, **kwargs)


class Composed(LoopAdapterMixin, Plain):
    """The same Trainer with transforms."""

    compute_loss = LoopAdapterMixin.compute_loss


def arguments(folder, **changes):
    defaults = {
        "num_train_epochs": 2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return TrainingArguments(folder, **{**defaults, **changes})


def begin(name):
    """LoopAdapter of a row of the table."""
    return table.begin(name, net(name), **KEYS)


def run(trainer, t, folder, optimizers=SGD, *, name="", model=None, **options):
    """Train a Trainer of a class for two epochs."""
    model = t.model.model if model is None else model
    made = trainer(
        model,
        args=arguments(folder, **options.pop("arguments", {})),
        train_dataset=Examples(name),
        eval_dataset=Examples(name),
        optimizers=(optimizers(model.parameters()), None),
        **options,
    )
    made.train()
    return made


def trained_by_us(name, **options):
    return ours(name, loader(name), model=net(name), inputs=probe(name), **KEYS, **options)


@pytest.mark.parametrize("name", drawn(works_in("HF, mixin"), 20))
def test_mixin_matches_the_trainer(name, tmp_path):
    t = begin(name)
    made = run(Composed, t, tmp_path, name=name, adapter=t)
    predicted = torch.from_numpy(made.predict(Examples(name)).predictions[:5])
    result = evaluated(t, probe(name))

    assert same(result, trained_by_us(name))
    torch.testing.assert_close(predicted, result[-1])  # of another size of batch


@pytest.mark.parametrize("name", drawn(works_in("HF, callback"), 10))
def test_callback_matches_the_trainer(name, tmp_path):
    t = begin(name)
    run(Plain, t, tmp_path, name=name, callbacks=[LoopAdapterCallback(t)])

    assert same(evaluated(t, probe(name)), trained_by_us(name))


CALLED_WITHOUT = r"acts at \w+, and this loop made an? \w+ without t\."
ANOTHER_MODEL = "none of the model's parameters"


@pytest.mark.parametrize("name", refused_in("HF, callback"))
def test_callback_rejects_algorithm(name, tmp_path):
    def train():
        t, given = begin(name), net(name)
        options = {"callbacks": [LoopAdapterCallback(t)], "arguments": {"eval_strategy": "epoch"}}
        run(Plain, t, tmp_path, name=name, model=getattr(t.model, "model", given.model), **options)

    refusals = "|".join([CALLED_WITHOUT, ANOTHER_MODEL, ASKS])
    with pytest.raises((RuntimeError, ValueError), match=refusals):
        train()


@pytest.mark.parametrize("name", refused_in("HF, mixin"))
def test_mixin_rejects_algorithm(name, tmp_path):
    def train():
        t = begin(name)
        run(Composed, t, tmp_path, name=name, model=net(name).model, adapter=t)

    with pytest.raises((RuntimeError, ValueError), match=f"{ANOTHER_MODEL}|{ASKS}"):
        train()


@pytest.mark.parametrize("name", SETS)
def test_every_algorithm_changes_the_result(name):
    result = trained_by_us(name)

    assert acts(name, result, batches=loader(name), model=net(name), inputs=probe(name), **KEYS)


@pytest.mark.parametrize(("name", "kind"), [(SIX, torch.optim.AdamW), (WITHIN, SGD)])
def test_matches_the_trainer_with_another_optimizer_or_window(name, kind, tmp_path):
    t = begin(name)
    run(Composed, t, tmp_path, kind, adapter=t)

    assert same(evaluated(t, probe()), trained_by_us(name, optimizers=partial(kind)))


def test_averaged_weights_are_used_for_evaluation(tmp_path):
    t = start([EMA("2ba")], resnet(), **KEYS)
    made = run(Composed, t, tmp_path, adapter=t, arguments={"eval_strategy": "epoch"})
    before = weights(t.model)
    with t.evaluating():
        predicted = torch.from_numpy(made.predict(Examples()).predictions[:5])
    torch.testing.assert_close(predicted, trained_by_us("EMA")[-1])

    logged = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]
    with t.evaluating() as model:
        whole = Examples()[0:14]
        expected = model.loss(model(whole), whole).item()

    assert logged[-1] == pytest.approx(expected)
    assert same(weights(t.model), before)


def score_of(model):
    """Return the loss that an evaluation reports, for a model of Transformers."""
    whole = Examples()[0:14]
    with torch.no_grad():
        outputs = model.eval()(pixel_values=whole["pixel_values"])
    return cross_entropy(outputs.logits, whole["labels"]).item()


def begin_resnet():
    return start([EMA("2ba")], resnet(), **KEYS)


@pytest.mark.parametrize("load_best", [False, True])
def test_every_file_has_the_weights_that_were_scored(load_best, tmp_path):
    t = begin_resnet()
    saving = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": load_best,
        "metric_for_best_model": "loss",
        "greater_is_better": True,  # so that the first is the best
    }

    made = run(Composed, t, tmp_path, adapter=t, arguments=saving)

    logged = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]
    folders = sorted(tmp_path.glob("checkpoint-*"), key=lambda one: int(one.name[11:]))
    for folder, loss in zip(folders, logged, strict=True):
        loaded = ResNetForImageClassification.from_pretrained(folder)
        assert score_of(loaded) == pytest.approx(loss)
    expected = max(logged) if load_best else logged[-1]
    assert score_of(t.model.model) == pytest.approx(expected)
    assert made.evaluate()["eval_loss"] == pytest.approx(expected)
    made.save_model(tmp_path / "last")
    last = ResNetForImageClassification.from_pretrained(tmp_path / "last")
    assert score_of(last) == pytest.approx(expected)


def test_resumed_training_continues_from_the_training_weights(tmp_path):
    whole = begin_resnet()
    run(Composed, whole, tmp_path / "whole", adapter=whole)
    first = begin_resnet()
    run(Composed, first, tmp_path / "run", adapter=first, arguments={"save_strategy": "epoch"})
    second = begin_resnet()
    model = second.model.model
    made = Composed(
        model,
        adapter=second,
        args=arguments(tmp_path / "run"),
        train_dataset=Examples(),
        optimizers=(SGD(model.parameters()), None),
    )

    made.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))

    assert same(weights(second.model), weights(whole.model))
    for t in (second, whole):
        t.state = t.weights.remove(t.state)
    assert same(weights(second.model), weights(whole.model))


def test_checkpoints_of_changed_models_are_not_those_of_from_pretrained(tmp_path):
    t = start([WeightStandardization()], resnet(), **KEYS)

    made = run(Composed, t, tmp_path, adapter=t, arguments={"save_strategy": "epoch"})

    with pytest.raises(ValueError, match="layers were replaced: load these weights into"):
        ResNetForImageClassification.from_pretrained(tmp_path / "checkpoint-3")
    with pytest.raises(RuntimeError, match="would not build this model"):
        made.save_model(tmp_path / "last")
