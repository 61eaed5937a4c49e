"""The command line says what is in a checkpoint."""

import json
import os

import pytest
import torch

from composable import Timestamp
from composable.checkpoint import inspect, pack, write
from composable.cli import main
from tests.support.commands import Command

RUN = {
    "seed": 17,
    "versions": {"torch": "2.13"},
    "algorithms": {"EMA": {"class": "EMA", "hyperparameters": {"half_life": "1ba"}}},
}


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path, 30)


def save(folder, batch, **more):
    tree = {
        "run": RUN,
        "state": {
            "timestamp": Timestamp(batch=batch, epoch=2),
            "model": {"w": torch.tensor([3.0, 4.0]), "n": torch.tensor([True])},
        },
        **more,
    }
    return write(folder / f"ba{batch}", *pack(tree), info={"batch": batch})


def run(capsys, *arguments):
    status = main(["checkpoint", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_inspect_prints_the_contents(saved, capsys):
    status, out, _ = run(capsys, "inspect", saved)

    assert status == 0
    for text in (
        str(saved),
        "by composable 0.1.0, torch 2.",
        "time        epoch 2, batch 30",
        "seed: 17",
        "half_life: 1ba",
        "state/model/w  float32  [2]  norm 5",
        "state/model/n  bool     [1]  norm 1",
    ):
        assert text in out


def test_inspect_prints_json(saved, capsys):
    status, out, _ = run(capsys, "inspect", saved, "--json")

    description = json.loads(out)
    assert status == 0
    assert description["run"] == RUN
    assert description["timestamp"]["batch"] == 30
    assert description["manifest"]["info"] == {"batch": 30}
    assert description["tensors"][1] == {
        "name": "state/model/w",
        "dtype": "float32",
        "shape": [2],
        "norm": 5.0,
    }


@pytest.mark.parametrize(
    "tree",
    [
        {"odd": {1: [torch.ones(2), (float("nan"), b"x")]}, "run": ["a", {"b": {2}}]},
        [1, 2],
        {"run": {"\x1b[2J": "\x1b]0;title\x07\r\u202e"}},  # it must not control the terminal
    ],
)
def test_inspect_accepts_any_tree(tmp_path, capsys, tree):
    path = write(tmp_path / "it", *pack(tree))

    status, out, _ = run(capsys, "inspect", path)

    assert status == 0
    assert all(line.isprintable() for line in out.splitlines())
    assert run(capsys, "inspect", path, "--json")[0] == 0


def test_inspect_lists_a_folder_and_marks_broken_checkpoints(tmp_path, capsys):
    save(tmp_path, 9)
    save(tmp_path, 10)
    assert run(capsys, "inspect", tmp_path)[0] == 0
    os.truncate(save(tmp_path, 30) / "state.json", 3)

    status, out, _ = run(capsys, "inspect", tmp_path)

    assert status == 1
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["ba10", "ba9", "ba30"]
    assert "BROKEN" in lines[3]
    assert "state.json has 3 bytes" in lines[3]
    assert json.loads(run(capsys, "inspect", tmp_path, "--json")[1])["broken"][0]["name"] == "ba30"


def test_verify_checks_every_byte(tmp_path, capsys):
    one, two = save(tmp_path, 1), save(tmp_path, 2)
    assert run(capsys, "verify", one)[:2] == (0, f"{one}: whole\n")
    raw = (two / "tensors.safetensors").read_bytes()
    (two / "tensors.safetensors").write_bytes(raw[:-1] + b"\xff")

    status, out, _ = run(capsys, "verify", tmp_path)
    alone, _, err = run(capsys, "verify", two)

    assert (status, alone) == (1, 1)
    assert f"{one}: whole" in out
    assert f"{two}: BROKEN" in out
    assert "tensors.safetensors is damaged" in err


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_a_missing_checkpoint_is_an_error(tmp_path, capsys, verb):
    status, _, err = run(capsys, verb, tmp_path / "none")

    assert status == 2
    assert "no checkpoint at" in err


@pytest.mark.parametrize("arguments", [["checkpoint"], ["checkpoint", "inspect"], ["fly"]])
def test_wrong_usage_is_an_error(capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: composable" in capsys.readouterr().err


def test_norms_of_every_dtype():
    for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.complex64, torch.uint8, torch.bool):
        assert inspect._norm(torch.tensor([[1, 0], [1, 1]]).to(dtype)) == pytest.approx(3**0.5)
    assert inspect._norm(torch.empty(0)) == 0
    assert str(inspect._norm(torch.tensor([torch.nan]))) == "nan"


def test_the_command_has_the_status_of_the_check(saved):
    arguments = ["checkpoint", "verify", str(saved)]

    status, printed, _ = Command(saved.parent, arguments).finish()

    assert (status, printed) == (0, f"{saved}: whole\n")
