"""Hostile files: time, memory, hanging, and what is printed."""

import io
import os
import pickle
import resource
import struct
import time
import zipfile
from collections import Counter, OrderedDict
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from composable.checkpoint import (
    CheckpointError,
    DamagedCheckpointError,
    MismatchError,
    find,
    load_weights,
    pack,
    read,
    write,
)
from composable.checkpoint.inspect import describe, describe_all, format_description, render_all
from composable.cli import main
from composable.runs.environment import hash_file
from composable.runs.records import read_steps
from tests.checkpoint.forged import edit_manifest, forge, safetensors_of


def test_inspect_prints_years_and_integers_beyond_the_usual(tmp_path, capsys):
    values = {"huge": 10**6000, "tuple": (10**6000,), "keys": {10**6000: 1}}
    path = write(tmp_path / "c", *pack({"run": values}))
    edit_manifest(path, {"created": 2.0**39})

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


MOST = 64 << 20  # a file of a few hundred bytes may take so much
HUGE = 1 << 40


# --- numbers in a file claim no memory before they are compared with its size ---


@pytest.fixture
def no_more_memory():
    """Fail if the address space of the process grows by more than `MOST`."""
    load_weights, torch._dynamo  # noqa: B018 (imported before the limit)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@contextmanager
def refused(message):
    """Expect an error for another reason than a lack of memory."""
    with pytest.raises(CheckpointError, match=message) as caught:
        yield
    cause = caught.value.__cause__
    assert not isinstance(cause, MemoryError)
    assert "can't allocate memory" not in str(cause)


def entry(**changes):
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


SAFETENSORS = {
    "long header": safetensors_of(b"{}", length=HUGE),
    "header of 90 MB": safetensors_of(b"{}", length=90_000_000),
    "large tensor": safetensors_of(entry(shape=[HUGE], data_offsets=[0, 4 * HUGE])),
    "large shape": safetensors_of(entry(shape=[HUGE]), 8),
    "large offsets": safetensors_of(entry(data_offsets=[0, HUGE]), 8),
    "large but empty": safetensors_of(entry(shape=[0, 2**62, 4], data_offsets=[0, 0])),
}


@pytest.mark.parametrize("content", SAFETENSORS.values(), ids=SAFETENSORS)
def test_header_of_safetensors_alone_and_within_a_checkpoint(content, no_more_memory, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(content)
    folder = write(tmp_path / "c", {"w": torch.ones(2)}, {})
    forge(folder, "tensors.safetensors", content)

    with refused(r"w\.safetensors"):
        load_weights(nn.Linear(2, 1), tmp_path / "w.safetensors")
    with refused(r"tensors\.safetensors.* (declares|has|bytes|allocated)"):
        read(folder)


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def archive(path, pickled):
    """Replace the pickle in a file of `torch.save`."""
    torch.save({"weight": torch.ones(4)}, path)
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, content in members.items():
            new.writestr(name, pickled if name.endswith("data.pkl") else content)


def stream(path, pickled):
    """Write the format that `torch.save` had before it was an archive."""
    with path.open("wb") as file:
        for value in (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {}):
            pickle.dump(value, file, 2)
        file.write(pickled)
        pickle.dump([], file, 2)


@pytest.mark.parametrize("save", [archive, stream])
@pytest.mark.parametrize(
    "pickled",
    [
        *(pickle.dumps({"weight": Call(bytearray, 1 << 33)}, protocol) for protocol in (0, 2)),
        b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"a.",
    ],
    ids=["bytearray in text", "bytearray", "long text"],
)
def test_pickle_of_torch(save, pickled, no_more_memory, tmp_path):
    save(tmp_path / "w.pt", pickled)

    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_weights(nn.Linear(2, 1), tmp_path / "w.pt")


@pytest.mark.parametrize("legacy", [False, True])
def test_pickle_with_everything_that_is_plain(legacy, no_more_memory, tmp_path):
    weights = {"weight": torch.ones(1, 2), "bias": nn.Parameter(torch.ones(1))}
    shared = torch.ones(6, dtype=torch.bfloat16)
    more = {
        "plain": [None, True, 2**300, 0.5, 1j, "text", b"\x00\xff", {1, 2}, (1, [2, {3: (4, 5)}])],
        "keys": {(0, "a"): 1, 1: 2, 0.5: 3, None: 4, torch.float32: 5, torch.device("cpu"): 6},
        "containers": [OrderedDict(a=1), Counter("aab"), torch.Size([2, 3])],
        "tensors": [
            shared[:3],
            shared.view(2, 3),
            torch.eye(2).to_sparse(),
            torch.ones(2).double(),
        ],
        "buffer": nn.Buffer(torch.ones(2)),
        "state": nn.BatchNorm1d(2).state_dict(),
        "optimizer": torch.optim.Adam([nn.Parameter(torch.ones(2))]).state_dict(),
    }
    torch.save(
        {"net": weights, **more}, tmp_path / "w.pt", _use_new_zipfile_serialization=not legacy
    )

    found = load_weights(nn.Linear(2, 1), tmp_path / "w.pt", key="net")

    assert found.loaded == ("weight", "bias")


def test_word_bytearray_in_a_name_is_allowed(no_more_memory, tmp_path):
    for legacy in (False, True):
        state = {"weight": torch.ones(1, 2), "bias": torch.ones(1), "bytearray": torch.ones(1)}
        buffer = io.BytesIO()
        torch.save(state, buffer, _use_new_zipfile_serialization=not legacy)
        (tmp_path / "w.pt").write_bytes(buffer.getvalue())

        found = load_weights(nn.Linear(2, 1), tmp_path / "w.pt", strict=False)

        assert found.unexpected == ("bytearray",)
