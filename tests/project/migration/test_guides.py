"""The scripts of the migration guides run, side by side, and train the same weights."""

import re
from functools import partial
from types import SimpleNamespace

import attrs
import lightning.pytorch as L
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import composable
from composable import algorithms, callbacks, distributed, loggers, optim
from composable.metrics import accuracy
from tests.support.cases import ROOT
from tests.support.models import same

GUIDES = {path.stem: path.read_text() for path in (ROOT / "docs/migrate").glob("*.md")}
BLOCK = re.compile(r"^````\{container\} side-by-side\n(.*?)^````$", re.M | re.S)
CODE = re.compile(r"^```\w+\n(.*?)^```$", re.M | re.S)

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:It is recommended to use .self.log"),
]


def pairs(guide):
    """Return the scripts that a guide shows: theirs and ours."""
    return [CODE.findall(block) for block in BLOCK.findall(GUIDES[guide])]


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16, 10)
    )


def names():
    """Return what the scripts import and define before."""
    torch.manual_seed(1)
    images, targets = torch.rand(64, 3, 8, 8), torch.randint(10, (64,))
    data = TensorDataset(images, targets)
    packages = (composable, algorithms, callbacks, distributed, loggers, optim)
    return {name: getattr(one, name) for one in packages for name in one.__all__} | {
        "DataLoader": DataLoader,
        "L": L,
        "ModelCheckpoint": ModelCheckpoint,
        "StepLR": StepLR,
        "TensorDataset": TensorDataset,
        "accuracy": accuracy,
        "attrs": attrs,
        "cross_entropy": cross_entropy,
        "model": net(),
        "net": net,
        "partial": partial,
        "test": DataLoader(data, 2),
        "timm": SimpleNamespace(create_model=lambda name, num_classes: net()),
        "torch": torch,
        "train": DataLoader(data, 2),
        "transformers": transformers,
        "x": images,
        "x_test": images,
        "y": targets,
        "y_test": targets,
    }


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_guide_shows_scripts_side_by_side():
    assert [name for name in GUIDES if name != "index" and not pairs(name)] == []
    assert all(len(pair) == 2 for name in GUIDES for pair in pairs(name))


@pytest.mark.parametrize("guide", ["composer", "keras", "timm"])
def test_the_script_of_a_guide_trains(guide):
    _, ours = pairs(guide)[0]
    seen = names()

    exec(ours, seen)

    state = seen["trainer"].state
    assert str(state.timestamp.get("ep")) == "3ep"
    assert 0 <= state.metrics["eval"]["accuracy"] <= 1


def test_lightning_trains_the_same_weights():
    theirs, ours = pairs("lightning")[0]
    seen = names()

    exec(theirs, seen)
    trained = seen["model"].net
    exec(ours, seen)

    for one, other in zip(trained.parameters(), seen["model"].parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.equal(trained[0].weight, net()[0].weight)
    found = seen["trainer"].state.metrics["eval"]["accuracy"]
    assert found == pytest.approx(float((trained(seen["x"]).argmax(1) == seen["y"]).float().mean()))


class Networks(nn.Module):
    """A generator and a discriminator of images."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Linear(3, 192)
        self.discriminator = nn.Sequential(nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 1))


def discriminator_loss(model, batch):
    images, noise = batch
    fake = model.generator(noise).detach()
    return (model.discriminator(fake) - model.discriminator(images.flatten(1))).mean()


def generator_loss(model, batch):
    return -model.discriminator(model.generator(batch[1])).mean()


def test_manual_optimization_of_lightning_trains_the_same_weights():
    theirs, ours = pairs("lightning")[2]
    seen = names()
    data = TensorDataset(seen["x"], torch.randn(64, 3))
    seen |= {
        "adam": partial(torch.optim.Adam, lr=2e-3),
        "discriminator_loss": discriminator_loss,
        "generator_loss": generator_loss,
        "networks": Networks(),
        "train": DataLoader(data, 8),
    }

    exec(theirs, seen)
    trained, seen["networks"] = seen["networks"], Networks()
    exec(ours, seen)

    initial, expected = Networks().state_dict(), trained.state_dict()
    for name, value in seen["networks"].state_dict().items():
        torch.testing.assert_close(value, expected[name])
        assert not (name.endswith("weight") and torch.equal(value, initial[name]))


def test_the_script_of_torchtitan_trains():
    _, ours = pairs("torchtitan")[0]
    seen = names()
    exec(ours, seen)
    assert seen["trainer"].state.timestamp.batch == 24


@pytest.mark.parametrize("guide", ["accelerate", "fabric"])
def test_the_loop_of_a_guide_trains_the_same_weights(guide):
    theirs, ours = pairs(guide)[0]
    seen = names() | {"Accelerator": Accelerator, "Fabric": Fabric}

    exec(theirs, seen)
    trained = seen["model"].state_dict()
    seen |= {"model": net(), "train": names()["train"]}
    exec(ours, seen)

    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    assert str(seen["trainer"].state.timestamp.get("ep")) == "3ep"
    for name, value in seen["model"].state_dict().items():
        torch.testing.assert_close(value, trained[name.removeprefix("module.")])
    assert not same(seen["model"].state_dict(), net().state_dict())


def test_hugging_face_trains_the_same_weights():
    theirs, ours = pairs("huggingface")[0]
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    rows = [
        {"input_ids": torch.randint(11, (6,)), "labels": torch.tensor(i % 2)} for i in range(8)
    ]  # one batch, so that shuffling changes no step
    seen = names() | {
        "TrainingArguments": partial(transformers.TrainingArguments, use_cpu=True, report_to=[]),
        "default_data_collator": transformers.default_data_collator,
        "model": model,
        "test": rows,
        "train": rows,
    }
    initial = {name: value.clone() for name, value in model.state_dict().items()}

    exec(theirs, seen)
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(initial)
    exec(ours, seen)

    assert not same(trained, initial)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, trained[name], atol=1e-5, rtol=1e-4)


def test_the_callbacks_of_lightning_stop():
    theirs, ours = pairs("lightning")[1]
    seen = names()
    exec(theirs, seen)
    their_class = seen["StopWhenGood"]
    exec(ours, seen)

    state = SimpleNamespace(metrics={"eval": {"accuracy": 0.95}})
    trainer = SimpleNamespace(callback_metrics={"val_acc": 0.95}, should_stop=False)
    their_class().on_validation_end(trainer, None)
    assert trainer.should_stop
    assert seen["StopWhenGood"]().eval_after_all(state, None) is composable.Control.STOP
