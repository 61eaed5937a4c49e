"""The examples to copy train, and are short; the file of settings names what it has wrong."""

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.errors import InstantiationException
from torch import nn

from composable.algorithms import EMA, LabelSmoothing, MixUp
from examples import configured, language_model

EXAMPLES = Path(configured.__file__).parent
SETTINGS = EXAMPLES / "configured.yaml"


def tiny_model(name, *, in_chans, num_classes):
    """Stand in for `timm.create_model`: timm needs a torchvision for the build of PyTorch."""
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64 * in_chans, num_classes))


@pytest.fixture
def vision_model(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=tiny_model))
    yield import_module("examples.vision_model")
    sys.modules.pop("examples.vision_model")


@pytest.mark.parametrize("name", ["vision_model", "language_model", "configured"])
def test_an_example_to_copy_has_fewer_than_60_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


def test_the_vision_model_trains_with_three_methods(vision_model, monkeypatch):
    monkeypatch.setattr(vision_model, "DURATION", "4ep")

    state = vision_model.build(vision_model.METHODS, vision_model.SEED).fit()

    assert state.metrics["eval"]["accuracy"] > 0.5
    assert len(vision_model.METHODS) == 3
    assert [type(one) for one in vision_model.arms["mixup"]] == [MixUp]


def test_the_language_model_trains_with_three_methods(monkeypatch):
    monkeypatch.setattr(language_model, "FILES", language_model.FILES[:4])
    monkeypatch.setattr(language_model, "DURATION", "10ba")

    state = language_model.build(language_model.METHODS, language_model.SEED).fit()

    assert state.metrics["eval"]["perplexity"] < 200  # of 256 bytes
    assert len(language_model.METHODS) == 3


def test_the_file_of_settings_and_the_command_line_reach_the_trainer():
    trainer = configured.build(str(SETTINGS), "max_duration=3ep", "algorithms.0.alpha=0.4")

    assert str(trainer.state.max_duration) == "3ep"
    assert trainer.plan.algorithms == (MixUp(0.4), LabelSmoothing(0.1), EMA("20ba"))
    assert trainer.state.optimizers[0].defaults["momentum"] == 0.9
    assert trainer.fit().metrics["eval"]["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("max_durations=3ep", "unexpected argument 'max_durations'; did you mean 'max_duration'"),
        ("epochs=3", "unexpected argument 'epochs'; pass max_duration"),
        ("algorithms.0.alpa=1", "unexpected keyword argument 'alpa'; did you mean 'alpha'"),
        ("algorithms.2.decay=0.9", "unexpected keyword argument 'decay'; pass smoothing=0.999"),
        ("algorithms.0.alpha=-1", "alpha=-1 must be greater than 0"),
        ("schedulers.warmpu=1ep", "unexpected keyword argument 'warmpu'"),
        ("algorithms.0._target_=composable.algorithms.MixUpp", "composable.algorithms.MixUpp"),
    ],
)
def test_an_unknown_setting_is_named_with_the_nearest_one(setting, message):
    with pytest.raises((TypeError, InstantiationException), match=message):
        configured.build(str(SETTINGS), setting)
