"""The examples of images, and those to copy: they train, and are short."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from composable.algorithms import MixUp
from composable.cli import main
from examples import configured, digits, language_model, mnist

EXAMPLES = Path(configured.__file__).parent


# --- to copy


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


# --- the demo on digits: its runs, its table and its plot


@pytest.fixture(scope="module")
def results():
    runs = digits.plan(2, 1, {digits.PLAIN: 0.1, digits.ALL: 0.05})
    return [digits.Result(run, [0.5], [0.99 if run.seed else 0.98]) for run in runs]


def test_the_plan_has_each_method_alone_and_all_without_it():
    runs = digits.plan(1, 12, {digits.PLAIN: 0.1, digits.ALL: 0.05})

    by_name = {run.arm: run for run in runs}

    assert len(runs) == len(by_name) == 15
    assert [run.epochs for run in runs] == [12, 24, *[12] * 13]
    assert by_name["only MixUp"].lr == 0.1
    assert by_name["without MixUp"].lr == 0.05
    assert len(by_name["without MixUp"].algorithms) == 5
    assert {run.part for run in runs} == {"all"}


def test_test_scans_are_never_trained_on():
    parts = {name: {bytes(x.numpy()) for x, _ in part} for name, part in digits.digits().items()}

    assert parts["all"] == parts["train"] | parts["validation"]
    assert not parts["test"] & parts["all"]


def test_the_table_has_means_intervals_and_runs_that_reach_the_target(results):
    rows = digits.summarize(results)

    assert rows[0]["error"] == pytest.approx(1.5)
    assert rows[0]["interval"] == pytest.approx(12.706 * 0.5, rel=1e-3)  # Student, 1 degree
    assert "1 of 2" in digits.format_table(rows)


def test_the_plot_is_written_also_for_runs_without_errors(tmp_path, results):
    perfect = [digits.Result(one.run, [1.0], [1.0]) for one in results]

    digits.draw(perfect, digits.summarize(perfect), tmp_path / "errors.png")

    assert (tmp_path / "errors.png").stat().st_size > 10_000


def test_a_run_is_evaluated_on_both_parts_after_each_epoch():
    threads = torch.get_num_threads()
    try:
        result = digits.train(digits.Run("plain", [], 0, 0.1, 2, "train"))
    finally:
        torch.set_num_threads(threads)

    assert len(result.validation) == len(result.test) == 2
    assert result.test[-1] > 0.5


# --- the convolutional network on MNIST


def batch_of(pixels, count=64):
    inputs = torch.arange(28.0 * 28).reshape(1, 28, 28).repeat(count, 1, 1, 1)
    return mnist.Shifted(pixels)([(image, torch.tensor(0)) for image in inputs])[0]


def test_shifts_are_drawn_for_each_image():
    torch.manual_seed(0)
    shifted = batch_of(2)

    centers = shifted[:, 0, 14, 14]
    rows, columns = (centers // 28 - 14).int(), (centers % 28 - 14).int()
    assert set(rows.tolist()) == set(columns.tolist()) == {-2, -1, 0, 1, 2}
    # The inner pixels of an image move together.
    expected = torch.arange(28.0 * 28).reshape(28, 28)
    for image, row, column in zip(shifted[:, 0], rows.tolist(), columns.tolist(), strict=True):
        moved = expected[4 + row : 24 + row, 4 + column : 24 + column]
        assert torch.equal(image[4:24, 4:24], moved)


def test_parts_do_not_overlap_and_all_labels_are_in_each():
    data = mnist.images()

    rows = torch.cat([part.tensors[0].flatten(1) for part in data.values()])
    assert len(torch.unique(rows, dim=0)) == len(rows) == 5000
    assert all(part.tensors[1].unique().tolist() == list(range(10)) for part in data.values())


def test_network_learns_within_one_epoch():
    state = mnist.build([], 0, max_duration="1ep").fit()

    assert state.metrics["test"]["accuracy"] > 0.9
