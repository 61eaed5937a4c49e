"""The algorithms in Hugging Face's Trainer."""

import pytest
import torch
import transformers
from torch.utils.data import DataLoader
from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments

from composable.algorithms import EMA, GradientClipping
from composable.integrations.huggingface import LogitsModel, TransformsCallback, TransformsMixin
from composable.utils.reproducibility import seed_context
from tests.integrations.table import (
    ALL,
    SETS,
    SGD,
    WITHIN,
    acts,
    evaluated,
    ours,
    refused_in,
    start,
    works_in,
)
from tests.runs import examples, same, weights

KEYS = {"loss_fn": None, "input_key": "pixel_values", "target_key": "labels"}


def resnet():
    """Strided convolutions, a max-pool and normalisations with statistics; from a config."""
    config = ResNetConfig(
        num_channels=2, embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic"
    )
    config.num_labels = 3
    with seed_context(0):
        return LogitsModel(ResNetForImageClassification(config))


class Images(torch.utils.data.Dataset):
    """Examples as dictionaries."""

    def __len__(self):
        return 14

    def __getitem__(self, i):
        inputs, labels = examples(14, images=True)
        return {"pixel_values": inputs[i], "labels": labels[i]}


def loader():
    return DataLoader(Images(), batch_size=5)


PROBE = next(iter(loader()))


class Plain(transformers.Trainer):
    """Without shuffling; it keeps the logits of its evaluations."""

    def get_train_dataloader(self):
        return loader()


class Composed(TransformsMixin, Plain):
    """The same Trainer with transforms."""


def arguments(folder, **changes):
    return TrainingArguments(
        folder,
        num_train_epochs=2,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **changes,
    )


def run(trainer, t, folder, optimizers=SGD, **options):
    """Train a Trainer of a class for two epochs."""
    made = trainer(
        t.model.model,
        args=arguments(folder, **options.pop("arguments", {})),
        train_dataset=Images(),
        eval_dataset=Images(),
        optimizers=(optimizers(t.model.parameters()), None),
        **options,
    )
    made.train()
    return made


def trained_by_us(name, **options):
    return ours(name, loader(), model=resnet, probe=[PROBE], **KEYS, **options)


@pytest.mark.parametrize("name", works_in("HF, mixin"))
def test_in_huggingface_with_the_mixin(name, tmp_path):
    t = start(SETS[name], resnet(), **KEYS)
    made = run(Composed, t, tmp_path, transforms=t)
    predicted = torch.from_numpy(made.predict(Images()).predictions[:5])
    result = evaluated(t, PROBE)

    assert same(result, trained_by_us(name))
    torch.testing.assert_close(predicted, result[-1])  # of another size of batch


@pytest.mark.parametrize("name", works_in("HF, callback"))
def test_in_huggingface_by_callback(name, tmp_path):
    t = start(SETS[name], resnet(), **KEYS)
    run(Plain, t, tmp_path, callbacks=[TransformsCallback(t)])

    assert same(evaluated(t, PROBE), trained_by_us(name))


@pytest.mark.parametrize("name", refused_in("HF, callback"))
def test_refused_in_huggingface_by_callback(name, tmp_path):
    t = start(SETS[name], resnet(), **KEYS)
    changes = {"eval_strategy": "epoch"}

    with pytest.raises(RuntimeError, match=r"acts at \w+, and this loop made an? \w+ without t\."):
        run(Plain, t, tmp_path, callbacks=[TransformsCallback(t)], arguments=changes)


@pytest.mark.parametrize("name", SETS)
def test_every_algorithm_acts_on_this_model(name):
    assert acts(name, trained_by_us(name), loader=loader(), model=resnet, probe=[PROBE], **KEYS)


def test_with_an_adaptive_optimizer_too(tmp_path):
    adamw = torch.optim.AdamW
    t = start(SETS[ALL], resnet(), **KEYS)
    run(Composed, t, tmp_path, lambda parameters: adamw(parameters), transforms=t)

    assert same(evaluated(t, PROBE), trained_by_us(ALL, optimizers=lambda p: adamw(p)))


def test_the_trainer_counts_the_batches_of_an_epoch(tmp_path):
    t = start(SETS[WITHIN], resnet(), **KEYS)
    run(Composed, t, tmp_path, transforms=t)

    assert same(evaluated(t, PROBE), trained_by_us(WITHIN))


def test_an_evaluation_of_the_trainer_has_the_averaged_weights(tmp_path):
    t = start([EMA("2ba")], resnet(), **KEYS)
    made = run(Composed, t, tmp_path, transforms=t, arguments={"eval_strategy": "epoch"})
    before = weights(t.model)

    logged = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]
    with t.evaluating() as model:
        whole = Images()[0:14]
        expected = model.loss(model(whole), whole).item()

    assert logged[-1] == pytest.approx(expected)
    assert same(weights(t.model), before)


def test_an_average_by_callback_is_there_to_evaluate_with(tmp_path):
    t = start([EMA("2ba")], resnet(), **KEYS)
    made = run(Plain, t, tmp_path, callbacks=[TransformsCallback(t)])

    with t.evaluating():
        predicted = torch.from_numpy(made.predict(Images()).predictions[:5])

    torch.testing.assert_close(predicted, trained_by_us("EMA")[-1])


def test_accumulated_batches_are_refused(tmp_path):
    t = start([GradientClipping("norm", 1.0)], resnet(), **KEYS)
    changes = {"gradient_accumulation_steps": 2}

    with pytest.raises(ValueError, match="gradient_accumulation_steps=2 must be 1"):
        run(Plain, t, tmp_path, callbacks=[TransformsCallback(t)], arguments=changes)
