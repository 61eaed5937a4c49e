"""A number in a file claims no memory before it is compared with the size of the file."""

import io
import json
import pickle
import resource
import struct
import zipfile
from collections import Counter, OrderedDict
from contextlib import contextmanager
from hashlib import sha256

import pytest
import torch
from torch import nn

from composable.checkpoint import CheckpointError, load_weights, read, write

MOST = 64 << 20  # a file of a few hundred bytes may take so much
HUGE = 1 << 40


@pytest.fixture(autouse=True)
def no_more_memory():
    """Fail if the address space of the process grows by more than `MOST`."""
    load_weights  # noqa: B018 (imported before the limit)
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


def safetensors(header, length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def entry(**changes):
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


SAFETENSORS = {
    "long header": safetensors(b"{}", HUGE),
    "header of 90 MB": safetensors(b"{}", 90_000_000),
    "large tensor": safetensors(entry(shape=[HUGE], data_offsets=[0, 4 * HUGE])),
    "large shape": safetensors(entry(shape=[HUGE])) + bytes(8),
    "large offsets": safetensors(entry(data_offsets=[0, HUGE])) + bytes(8),
    "large but empty": safetensors(entry(shape=[0, 2**62, 4], data_offsets=[0, 0])),
}


@pytest.mark.parametrize("content", SAFETENSORS.values(), ids=SAFETENSORS)
def test_header_of_safetensors(content, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(content)

    with refused(r"w\.safetensors"):
        load_weights(nn.Linear(2, 1), tmp_path / "w.safetensors")


@pytest.mark.parametrize("content", SAFETENSORS.values(), ids=SAFETENSORS)
def test_header_within_a_checkpoint(content, tmp_path):
    folder = write(tmp_path / "c", {"w": torch.ones(2)}, {})
    (folder / "tensors.safetensors").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    record = {"size": len(content), "sha256": sha256(content).hexdigest()}
    manifest["files"]["tensors.safetensors"] = record
    seal(folder, manifest)

    with refused(r"tensors\.safetensors.* (declares|has|bytes|allocated)"):
        read(folder)


def seal(folder, manifest):
    """Write a manifest with its hash."""
    body = {name: value for name, value in manifest.items() if name != "sha256"}
    raw = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    body["sha256"] = sha256(raw).hexdigest()
    (folder / "manifest.json").write_bytes(json.dumps(body, indent=1).encode())


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
def test_pickle_of_torch(save, pickled, tmp_path):
    save(tmp_path / "w.pt", pickled)

    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_weights(nn.Linear(2, 1), tmp_path / "w.pt")


@pytest.mark.parametrize("legacy", [False, True])
def test_pickle_with_everything_that_is_plain(legacy, tmp_path):
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

    load_weights(nn.Linear(2, 1), tmp_path / "w.pt", key="net")


def test_word_bytearray_in_a_name_is_allowed(tmp_path):
    for legacy in (False, True):
        state = {"weight": torch.ones(1, 2), "bias": torch.ones(1), "bytearray": torch.ones(1)}
        buffer = io.BytesIO()
        torch.save(state, buffer, _use_new_zipfile_serialization=not legacy)
        (tmp_path / "w.pt").write_bytes(buffer.getvalue())

        found = load_weights(nn.Linear(2, 1), tmp_path / "w.pt", strict=False)

        assert found.unexpected == ("bytearray",)
