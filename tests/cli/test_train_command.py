"""`composable train`: what a file of settings may call, resumed runs, and errors with a place."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from composable.checkpoint import read
from composable.cli import main

SETTINGS = """\
max_duration: 3ep
seed: 17
progress_bar: false
model:
  _target_: torch.nn.Linear
  in_features: 4
  out_features: 3
loss_fn: {_target_: torch.nn.CrossEntropyLoss}
train_dataloader:
  _target_: torch.utils.data.DataLoader
  dataset:
    _target_: torch.utils.data.TensorDataset
    _args_:
      - {_target_: torch.randn, size: [32, 4]}
      - {_target_: torch.randint, high: 3, size: [32]}
  batch_size: 8
  shuffle: true
optimizers: {_target_: torch.optim.SGD, _partial_: true, lr: 0.1, momentum: 0.9}
algorithms:
  - _target_: composable.algorithms.MixUp
    alpha: 0.2
"""
PROJECT = """\
import os, signal
from composable import Callback

class Killed(Callback):
    def batch_end(self, state, logger):
        if state.timestamp.batch == 6:
            os.kill(os.getpid(), signal.SIGKILL)

def broken(size):
    return {}[size]

remove = os.remove
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "my_project", None)
    del sys.modules["my_project"]
    Path("train.yaml").write_text(SETTINGS)
    Path("my_project.py").write_text(PROJECT)


def refused(capsys, *arguments):
    """Return the error of a command that trains nothing."""
    assert main(["train", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.split()) <= 60
    return printed.err.removeprefix("composable: ").rstrip("\n")


def tensors(checkpoint):
    return read(Path(checkpoint)).tensors


def test_a_run_killed_in_a_process_ends_with_the_bits_of_an_uninterrupted_one():
    saved = ["save_folder=killed", "save_interval=4ba"]
    killed = "callbacks=[{_target_: my_project.Killed}]"
    command = [sys.executable, "-m", "composable", "train", "--allow", "my_project", "train.yaml"]
    assert subprocess.run([*command, *saved, killed]).returncode == -9

    assert main(["train", "train.yaml", *saved, "--resume"]) == 0
    assert main(["train", "train.yaml", "--resume", "save_folder=whole"]) == 0

    first, second = tensors("killed/ep3-ba12"), tensors("whole/ep3-ba12")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert Path("killed/steps.jsonl").read_text() == Path("whole/steps.jsonl").read_text()


def test_a_check_builds_everything_and_trains_nothing(capsys):
    assert main(["train", "train.yaml", "--check", "save_folder=run"]) == 0

    assert capsys.readouterr().out.startswith("check passed")
    assert not Path("run").exists()


def test_a_failed_check_is_named_without_a_traceback(capsys):
    assert "model: RuntimeError: mat1" in refused(
        capsys, "train.yaml", "--check", "model.in_features=5"
    )


@pytest.mark.parametrize(
    ("line", "new", "said"),
    [
        (
            1,
            "max_durations: 3ep",
            ":1: composable.Trainer got an unexpected keyword argument 'max_",
        ),
        (1, "epochs: 3", "'epochs'; pass max_duration"),
        (1, "max_duration: 3x", ":1: max_duration='3x'"),
        (1, "- seed", ":2: expected <block end>, but found '?'"),
        (2, "\tseed: 1", ":2: found character '\\t' that cannot start any token"),
        (2, "max_duration: 2ep", ":2: found duplicate key max_duration"),
        (2, "seed: ${seeds}", ":2: Interpolation key 'seeds' not found"),
        (2, "seed: ???", ":2: Missing mandatory value: seed"),
        (2, "seed: \\${oc.env:HOME}", ":2: '${oc.env:HOME}' is an interpolation within"),
        (
            5,
            "  _target_: torch.nn.Linearr",
            ":5: cannot call 'torch.nn.Linearr'; did you mean 'Linear'?",
        ),
        (
            6,
            "  in_feature: 4",
            ":6: torch.nn.Linear got an unexpected keyword argument 'in_feature'",
        ),
        (16, "  batch_size: b", ":16: "),
        (16, "  batch_size: -1", ":16: batch_size should be a positive"),
        (
            18,
            "optimizers: {_target_: torch.optim.SGD, _partial_: true, lrr: 1}",
            "did you mean 'lr'?",
        ),
        (
            20,
            "  - _target_: composable.algorithms.mixup",
            "'composable.algorithms.mixup'; did you mean 'MixUp'?",
        ),
        (20, "  - _target_: composable.algorithms.EMA", ":21: composable.algorithms.EMA got an un"),
        (21, "    alpha: -1", ":21: alpha=-1 must be greater than 0."),
        (21, "    alpha: some", ":21: alpha='some' must be a number"),
        (
            21,
            "    alpa: 1",
            ":21: composable.algorithms.MixUp got an unexpected keyword argument 'a",
        ),
    ],
)
def test_an_error_names_the_line_of_the_file(line, new, said, capsys):
    lines = SETTINGS.splitlines()
    lines[line - 1] = new
    Path("train.yaml").write_text("\n".join(lines))

    assert said in refused(capsys, "train.yaml")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithms.0.alpha=-1", "alpha=-1 must be greater than 0."),
        ("optimizerz.lr=1", "'optimizerz'; did you mean 'optimizers'?"),
        ("algorithms.7.alpha=1", "list index out of range"),
        ("algorithms=[a", "expected ',' or ']', but got '<stream end>'"),
        ("algorithms=[{_target_: composable.algorithms.MixUp, alpha: x}]", "alpha='x' must be"),
        ("autoresume=true", "autoresume=True needs a save_folder to look for checkpoints in."),
        ("seed", "write KEY=VALUE, such as seed=3"),
        ("optimizers.lr=abc", "'<' not supported between instances of 'str' and 'float'"),
        ("model.in_features=abc", "type must be tuple of ints,but got str"),
    ],
)
def test_an_error_names_the_override(override, said, capsys):
    error = refused(capsys, "train.yaml", "--allow", "my_project", override)

    assert error.startswith(f"{override}: ")
    assert said in error


@pytest.mark.parametrize(
    "name", ["missing.yaml", "folder", "empty", "list", "bytes", "circle", "bare"]
)
def test_an_error_of_a_whole_file_names_it(name, capsys):
    Path("folder").mkdir()
    for file, text in {
        "empty": b"",
        "list": b"- a",
        "bare": b"seed: 1",
        "bytes": b"\xff",
        "circle": b"a: &x [*x]",
    }.items():
        Path(file).write_bytes(text)

    assert refused(capsys, name, "seed=3").startswith(f"{name}: ")


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.eval",
        "composable.data.fetching.torch.load",
        "composable.launch.launch.launch",
        "composable.replay",
        "hydra.utils.get_class",
        "my_project.Killed",
        "torch.hub.load",
        "torch.load",
        "torch.utils.cpp_extension.load",
        "torch.utils.data.datapipes.utils.decoder.basichandlers",
        "torch.nn.Linear.__init__",
        "${oc.env:CALLED}",
    ],
)
def test_what_a_file_may_not_call_is_refused(target, capsys, monkeypatch):
    monkeypatch.setenv("CALLED", "os.system")

    error = refused(capsys, "train.yaml", f"metrics.any.1._target_={target}")

    assert "may run any code; it needs --allow" in error
    assert "my_project" not in sys.modules


def test_an_allowed_package_may_be_called_but_not_through_it(capsys):
    allow = ["train.yaml", "--check", "--allow", "my_project"]

    assert main(["train", *allow, "callbacks=[{_target_: my_project.Killed}]"]) == 0
    capsys.readouterr()
    assert "it needs --allow posix" in refused(
        capsys, *allow, "callbacks=[{_target_: my_project.remove}]"
    )
    with pytest.raises(Exception, match=r"full_key: callbacks"):  # its author needs the traceback
        main(["train", *allow, "callbacks={_target_: my_project.broken, size: 3}"])


def test_a_missing_extra_is_named(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "composable.cli._settings", raising=False)
    monkeypatch.setitem(sys.modules, "hydra.utils", None)

    assert 'pip install "composable[config]"' in refused(capsys, "train.yaml")


def test_settings_may_follow_options_and_unknown_options_are_refused(capsys):
    assert main(["train", "train.yaml", "--check", "seed=3"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["train", "train.yaml", "seed=3", "--rezume"])
