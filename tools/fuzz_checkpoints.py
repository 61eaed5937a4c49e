"""Mutated checkpoints: `python -m tools.fuzz_checkpoints --count 1000`.

Half of them are damaged: bits flipped, bytes cut off, put in or exchanged, files swapped with those
of another checkpoint or of each other, or gone. Each must be refused with one of the library's own
errors. The other half are forged: the state, the header or the manifest is edited and every hash
recomputed. Each must be refused like that too, or be a well-formed checkpoint, which can be saved
and read again as it is. Anything else is a crash or a silent load, and stops the command.
"""

import argparse
import json
import shutil
import tempfile
from collections import Counter
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from composable import Key, Time, Timestamp
from composable.checkpoint import CheckpointError, manifest, pack, read, unpack, verify, write
from tests.checkpoint.trees import same

FILES = ("tensors.safetensors", "state.json", "manifest.json")


def tree(shift):
    """Build a tree with a value of each kind that a checkpoint can hold."""
    weight = torch.arange(12.0).view(3, 4) + shift
    return {
        "model": {"0.weight": weight, "0.tied": weight, "n": torch.tensor(7 + shift)},
        "half": [torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last).bfloat16() * shift],
        "complex": torch.full((2,), 1j * shift, dtype=torch.complex128),
        "empty": torch.empty(0, 3),
        "optimizer": {"state": {0: {"step": 3, "betas": (0.9, 0.999)}}, "lr": float("inf")},
        "timestamp": Timestamp(batch=10 + shift, total_wct=1.5),
        "values": [Time("0.5dur"), Key(17), Fraction(1, 3), 2**100, b"\0\xff", {1, 2}, None, True],
    }


def files_of(folder, shift):
    """Return the files of a checkpoint, by name."""
    path = write(Path(folder) / str(shift), *pack(tree(shift)), info={"batch": 10 + shift})
    return {name: (path / name).read_bytes() for name in FILES}


@st.composite
def damaged(draw, whole, other):
    """Return damaged files, and the damage."""
    files = dict(whole)
    name = draw(st.sampled_from(FILES))
    raw = bytearray(files[name])
    at = draw(st.integers(0, len(raw) - 1))
    how = draw(st.sampled_from(["flip", "cut", "insert", "overwrite", "swap", "exchange", "gone"]))
    if how == "flip":
        for place in {at, *draw(st.lists(st.integers(0, len(raw) - 1), max_size=3))}:
            raw[place] ^= 1 << draw(st.integers(0, 7))
    elif how == "cut":
        del raw[at : at + draw(st.integers(1, len(raw)))]
    elif how == "insert":
        raw[at:at] = draw(st.binary(min_size=1, max_size=20))
    elif how == "overwrite":
        new = draw(st.binary(min_size=1, max_size=20))
        raw[at : at + len(new)] = new
    elif how == "swap":
        raw = bytearray(other[name])
    files[name] = bytes(raw)
    if how == "exchange":
        second = draw(st.sampled_from([f for f in FILES if f != name]))
        files[name], files[second] = files[second], files[name]
    elif how == "gone":
        del files[name]
    return how, files


ODD = st.sampled_from(
    [
        *[None, True, -1, 0, 3, 2**63, 2**80, 1e308, -0.0, 0.5, [], {}, [0]],
        *["", "x", "F64", "\ud800"],
        *[{"$tensor": "model/n"}, {"$tensor": "none"}, {"$tensor": "model/n", "order": [0]}],
        *[{"$tuple": 3}, {"$dict": [[1, 2], [1, 3]]}, {"$set": [[]]}, {"$pickle": "x"}],
        *[{"$float": "7ff8000000000000"}, {"$int": "0xff"}, {"$key": -1}],
        {"$timestamp": {"batch": -1}},
    ]
)


@st.composite
def edited(draw, value):
    """JSON with one of its nodes changed, taken away, added or moved."""
    places = list(_places(value))
    holder, key = draw(st.sampled_from(places))
    how = draw(st.sampled_from(["replace", "replace", "delete", "add", "copy", "rename"]))
    if how == "delete":
        del holder[key]
    elif how == "copy":
        other, place = draw(st.sampled_from(places))
        holder[key] = json.loads(json.dumps(other[place]))
    elif how == "add" and isinstance(holder, dict):
        holder[draw(st.sampled_from(["x", "$tuple", "$tensor", "__metadata__"]))] = draw(ODD)
    elif how == "rename" and isinstance(holder, dict):
        holder[draw(st.sampled_from(["x", "$set", "$str", "$size", ""]))] = holder.pop(key)
    else:
        holder[key] = draw(ODD)
    return value


def _places(value):
    """Yield the parent and the key of every node of a JSON value but the root."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


@st.composite
def forged(draw, whole):
    """Return edited files with fitting hashes, and the edit."""
    files = dict(whole)
    how = draw(st.sampled_from(["state", "header", "manifest", "length", "state bytes", "bytes"]))
    if how == "state":
        state = draw(edited(json.loads(files["state.json"])))
        files["state.json"] = json.dumps(state).encode()
    elif how in ("header", "length"):
        raw = files["tensors.safetensors"]
        length = int.from_bytes(raw[:8], "little")
        header, data = raw[8 : 8 + length], raw[8 + length :]
        if how == "header":
            header = json.dumps(draw(edited(json.loads(header)))).encode()
            length = len(header)
        else:
            length = draw(st.integers(0, 2**64 - 1) | st.integers(0, 2 * length))
        files["tensors.safetensors"] = length.to_bytes(8, "little") + header + data
    elif how != "manifest":
        name = "state.json" if how == "state bytes" else "tensors.safetensors"
        raw = bytearray(files[name])
        at = draw(st.integers(0, len(raw) - 1))
        raw[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
        files[name] = bytes(raw)
    body = json.loads(files["manifest.json"])
    body.pop("sha256")
    for name, record in body["files"].items():
        record.update(size=len(files[name]), sha256=sha256(files[name]).hexdigest())
    if how == "manifest":
        body = draw(edited(body))
    try:
        files["manifest.json"] = manifest._seal(body)
    except ValueError:  # half of a surrogate pair
        files["manifest.json"] = json.dumps(body).encode()
    return how, files


def outcome(folder, files):
    """Load files, and return "refused" or "loaded". Any other error is raised."""
    folder = Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    try:
        contents = read(folder)
        loaded = unpack(contents.tensors, contents.data)
    except CheckpointError:
        return "refused"
    assert verify(folder) == contents.manifest
    tensors, data = pack(loaded)
    assert same(unpack(tensors, data), loaded)
    return "loaded"


def check(count):
    """Try `count` mutants of each kind; return how many had which outcome."""
    tally = Counter()
    kept = settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with tempfile.TemporaryDirectory() as folder:
        whole, other = files_of(folder, 1), files_of(folder, 2)
        mutant = Path(folder) / "mutant"
        assert outcome(mutant, whole) == "loaded"

        @kept
        @given(damaged(whole, other))
        def damage(case):
            how, files = case
            if files == whole:  # a byte for the same byte
                tally["damaged", how, "unchanged"] += 1
                return
            seen = outcome(mutant, files)
            assert seen == "refused", f"loaded silently: {how}"
            tally["damaged", how, seen] += 1

        @kept
        @given(forged(whole))
        def forge(case):
            how, files = case
            tally["forged", how, outcome(mutant, files)] += 1

        damage()
        forge()
    return tally


def main():
    """Print how many mutants had which outcome."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="how many in all")
    tally = check(-(-parser.parse_args().count // 2))
    for (kind, how, seen), number in sorted(tally.items()):
        print(f"{kind:8} {how:12} {seen:10} {number:6}")
    print(f"{sum(tally.values())} mutants, no crash and no silent load")


if __name__ == "__main__":
    main()
