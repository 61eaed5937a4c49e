"""Hostile files: time, memory, hanging, and what is printed."""

import json
import os
import pickle
import time
import zipfile

import pytest
import torch
from torch import nn

from composable.checkpoint import (
    CheckpointError,
    DamagedCheckpointError,
    MismatchError,
    find,
    load_weights,
    manifest,
    pack,
    write,
)
from composable.checkpoint.inspect import describe, describe_all, format_description, render_all
from composable.cli import main
from composable.runs.environment import hash_file
from composable.runs.records import read_steps


def test_duplicate_key_among_many_is_named(tmp_path):
    path = write(tmp_path / "c", *pack({}))
    keys = ",".join(f'"{i}":0' for i in range(90_000))
    (path / "manifest.json").write_text(f'{{{keys},"89999":0}}')

    (broken,) = find(tmp_path)[1]  # takes minutes if the time is quadratic

    assert "duplicate key '89999'" in str(broken.error)


def seal(path, **changes):
    """Change entries of a manifest, with a hash that fits."""
    body = json.loads((path / "manifest.json").read_text())
    body.pop("sha256")
    (path / "manifest.json").write_bytes(manifest.dump_sealed({**body, **changes}))


def test_inspect_prints_years_and_integers_beyond_the_usual(tmp_path, capsys):
    values = {"huge": 10**6000, "tuple": (10**6000,), "keys": {10**6000: 1}}
    path = write(tmp_path / "c", *pack({"run": values}))
    seal(path, created=2.0**39)

    assert "seconds after 1970" in format_description(describe(path))
    assert "an integer of" in format_description(describe(path))
    assert "seconds after 1970" in render_all(describe_all(tmp_path))
    assert main(["checkpoint", "inspect", "--json", str(path)]) == 0
    assert "an integer of" in capsys.readouterr().out


def test_clock_before_1970_writes_valid_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: -5.0)
    write(tmp_path / "c", *pack({}))

    (found,), broken = find(tmp_path)
    assert not broken
    assert found.manifest.created == 0.0


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_pipe_does_not_hang(suffix, tmp_path):
    path = tmp_path / f"weights{suffix}"
    os.mkfifo(path)

    with pytest.raises(CheckpointError, match="not a regular file"):
        load_weights(nn.Linear(2, 1), path)


def test_pipes_among_the_records_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "steps.jsonl")

    with pytest.raises(CheckpointError, match="not a regular file"):
        read_steps(tmp_path)
    assert hash_file(tmp_path / "steps.jsonl") is None


def test_compressed_weights_are_rejected_before_they_expand(tmp_path):
    torch.save(nn.Linear(2, 1).state_dict(), tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for name in plain.namelist():
            small.writestr(name, plain.read(name))

    with pytest.raises(DamagedCheckpointError, match="is compressed"):
        load_weights(nn.Linear(2, 1), tmp_path / "small.pt")
    load_weights(nn.Linear(2, 1), tmp_path / "plain.pt")


@pytest.mark.parametrize("protocol", [False, True])
def test_both_formats_of_torch_are_read(protocol, tmp_path):
    options = {"_use_new_zipfile_serialization": protocol}
    torch.save(nn.Linear(2, 1).state_dict(), tmp_path / "w.pt", **options)

    assert load_weights(nn.Linear(2, 1), tmp_path / "w.pt").loaded == ("weight", "bias")


class Extra(nn.Module):
    """A module with an extra state, which may refuse what it is given."""

    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), float(len(value))))
        self.value = value

    def get_extra_state(self):
        return self.value

    def set_extra_state(self, state):
        self.value = state
        if state == "refused":
            raise ValueError("no such state")


def test_extra_state_that_is_refused_changes_nothing(tmp_path):
    source = nn.Sequential(Extra("good"), Extra("refused"))
    torch.save(source.state_dict(), tmp_path / "w.pt")
    model = nn.Sequential(Extra("a"), Extra("b"))

    with pytest.raises(MismatchError, match=r"1\._extra_state .* ValueError: no such state"):
        load_weights(model, tmp_path / "w.pt")

    assert [one.value for one in model] == ["a", "b"]
    assert [one.weight.tolist() for one in model] == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo in the file"),
        (torch.empty(2, 2, device="meta"), "meta device in the file"),
    ],
)
def test_tensors_without_plain_values_change_nothing(value, message, tmp_path):
    torch.save({"weight": value, "bias": torch.full((2,), 9.0)}, tmp_path / "w.pt")
    model = nn.Linear(2, 2)
    before = model.bias.detach().clone()

    with pytest.raises(CheckpointError, match=message):
        load_weights(model, tmp_path / "w.pt")
    assert torch.equal(model.bias, before)


def test_a_model_on_the_meta_device_is_an_error(tmp_path):
    torch.save(nn.Linear(2, 1).state_dict(), tmp_path / "w.pt")

    with pytest.raises(MismatchError, match="meta device in the model"):
        load_weights(nn.Linear(2, 1, device="meta"), tmp_path / "w.pt")


def test_pickles_of_objects_stay_rejected(tmp_path):
    (tmp_path / "w.pt").write_bytes(pickle.dumps(print))

    with pytest.raises(DamagedCheckpointError):
        load_weights(nn.Linear(2, 1), tmp_path / "w.pt")
