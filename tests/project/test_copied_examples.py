"""The examples to copy train, and are short, and so does the file of settings."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

from composable.algorithms import MixUp
from composable.cli import main
from examples import configured, language_model

EXAMPLES = Path(configured.__file__).parent


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


def test_the_file_of_settings_trains(monkeypatch, capsys):
    monkeypatch.chdir(EXAMPLES.parent)
    file = str(EXAMPLES / "configured.yaml")

    assert main(["train", file, "--allow", "examples", "max_duration=3ep"]) == 0

    found = re.search(r"metrics/eval/accuracy\s+(0\.\d+)", capsys.readouterr().err)
    assert float(found[1]) > 0.5


def test_the_file_of_the_page_trains(monkeypatch, tmp_path):
    page = (EXAMPLES.parent / "docs" / "settings.md").read_text()
    (tmp_path / "train.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    monkeypatch.chdir(EXAMPLES.parent)

    assert main(["train", str(tmp_path / "train.yaml"), "--allow", "examples", "--check"]) == 0
