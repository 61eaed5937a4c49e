"""Mutated checkpoints: `python -m tools.fuzz_checkpoints --count 1000`.

A third of them are damaged: bits flipped, bytes cut off, put in or exchanged, files swapped with
each other or with another checkpoint's, or gone. Each must be refused with one of the library's own
errors. Another third are forged: the state, the header or the manifest is edited and every hash
recomputed. Each must be refused like that too, or be a well-formed checkpoint, which can be saved
and read again as it is. Anything else is a crash or a silent load, and stops the command.

The last third, checkpoints of a run, have an altered meaning: one value of the state is changed
(of the model, the optimizers, the generators, the schedulers, the callbacks or the run), and every
hash recomputed. A Trainer must refuse each with an error that names the file, and leave the model
as it was, or load it. Its hashes are believed, so the training that follows may fail. Any other
error is listed, and fails the command.
"""

import argparse
import contextlib
import json
import shutil
import tempfile
import warnings
from collections import Counter
from fractions import Fraction
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from composable import Key, Time, Timestamp, Trainer
from composable.algorithms import EMA
from composable.callbacks import EarlyStopper, SpeedMonitor
from composable.checkpoint import (
    CheckpointError,
    Region,
    UnsavableError,
    manifest,
    pack,
    read,
    unpack,
    verify,
    write,
)
from tests.checkpoint.sharding import shard, together
from tests.checkpoint.trees import same


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


def files_of(folder, shift, size=1):
    """Return the files of a checkpoint that a number of processes wrote, by name."""
    tensors, data = pack(tree(shift))
    path, weight, info = Path(folder, f"{shift}-{size}"), "model/0.weight", {"batch": 10 + shift}

    def save(processes):
        rows = Region((processes.rank * 2, 0), (2 - processes.rank, 4))
        own = {**tensors, weight: shard(tensors[weight], rows)} if size > 1 else tensors
        return write(path, own, data, info=info, processes=processes)

    assert together(size, save) == [path] * size
    return {each.name: each.read_bytes() for each in sorted(path.iterdir(), reverse=True)}


def is_tensors(name):
    return name.endswith(".safetensors")


@st.composite
def damaged(draw, whole, other):
    """Return damaged files, and the damage."""
    files = dict(whole)
    name = draw(st.sampled_from(list(files)))
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
        second = draw(st.sampled_from([f for f in files if f != name]))
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
    kinds = ["state", "header", "manifest", "length", "state bytes", "bytes"]
    of_tensors = draw(st.sampled_from([name for name in files if is_tensors(name)]))
    sharded = of_tensors != manifest.TENSORS
    how = draw(st.sampled_from([*kinds, *["blocks"] * 3] if sharded else kinds))
    if how == "state":
        edit = draw(edited(json.loads(files["state.json"])))
        files["state.json"] = json.dumps(edit).encode()
    elif how in ("header", "blocks", "length"):
        raw = files[of_tensors]
        length = int.from_bytes(raw[:8], "little")
        header, data = raw[8 : 8 + length], raw[8 + length :]
        if how == "header":
            header = json.dumps(draw(edited(json.loads(header)))).encode()
            length = len(header)
        elif how == "blocks":
            entries = json.loads(header)
            metadata = entries["__metadata__"]
            blocks = draw(edited(json.loads(metadata["DCP_SHARDING_INFO"])))
            metadata["DCP_SHARDING_INFO"] = json.dumps(blocks)
            header = json.dumps(entries).encode()
            length = len(header)
        else:
            length = draw(st.integers(0, 2**64 - 1) | st.integers(0, 2 * length))
        files[of_tensors] = length.to_bytes(8, "little") + header + data
    elif how != "manifest":
        name = "state.json" if how == "state bytes" else of_tensors
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
        files["manifest.json"] = manifest.dump_sealed(body)
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


# --- altered meanings: checkpoints of a run ---


def small_model():
    """Return a model with buffers."""
    torch.default_generator.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)
    )


def train(model, **options):
    """Build a Trainer with some of everything that is saved."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.ones(12, 4), torch.arange(12) % 3)
    return Trainer(
        model,
        train_dataloader=DataLoader(data, batch_size=4, shuffle=True, generator=generator),
        eval_dataloader=[(torch.ones(4, 4), torch.zeros(4, dtype=torch.long))],
        loss_fn=torch.nn.functional.cross_entropy,
        optimizers=partial(torch.optim.Adam, lr=0.1),
        schedulers=partial(torch.optim.lr_scheduler.StepLR, step_size=1),
        algorithms=[EMA("1ba")],
        callbacks=[EarlyStopper("loss", patience="9ep"), SpeedMonitor(2)],
        max_duration="2ep",
        progress_bar=False,
        device="cpu",
        **options,
    )


def same_tensors(one, other):
    """Return whether two state dicts agree to the bit."""
    return all(torch.equal(one[name], other[name]) for name in one)


@st.composite
def altered(draw, contents):
    """Return the path of a change, and the tensors and the JSON of a checkpoint after it."""
    data = json.loads(json.dumps(contents.data))
    tensors = {name: tensor.clone() for name, tensor in contents.tensors.items()}
    part = draw(st.sampled_from(sorted(data["state"])))
    if not (names := [n for n in tensors if n.startswith(f"state/{part}/")]) or draw(st.booleans()):
        data["state"] = {**data["state"], part: draw(edited({part: data["state"][part]})).get(part)}
        return part, tensors, data
    name = draw(st.sampled_from(names))
    how = draw(st.sampled_from(["shape", "dtype", "exchange", "values"]))
    if how == "shape":
        tensors[name] = torch.zeros(draw(st.sampled_from([(), (1,), (3, 4), (0,), (2, 4)])))
    elif how == "dtype":
        tensors[name] = tensors[name].to(draw(st.sampled_from([torch.int64, torch.float64])))
    elif how == "exchange":
        other = draw(st.sampled_from(names))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    else:
        tensors[name] = torch.full_like(tensors[name], draw(st.sampled_from([-1, 0, 100])))
    return f"{part} ({how})", tensors, data


def resume(path, contents, tensors, data):
    """Resume from an altered checkpoint; return what happened, or the error."""
    with contextlib.suppress(UnsavableError):
        write(path, tensors, data, overwrite=True, info=dict(contents.manifest.info))
    model = small_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        trainer = train(model, load_path=path)
    except CheckpointError as error:
        if str(path) not in str(error):
            return f"{type(error).__name__} without the path: {error}"
        return "refused" if same_tensors(before, model.state_dict()) else f"changed: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    try:
        trainer.fit()
    except Exception:
        return "loaded"
    return "trained"


def check_altered(count, folder):
    """Resume from `count` altered checkpoints; return how many had which outcome, and errors."""
    train(small_model(), save_folder=folder, save_interval="1ba").fit()
    contents = read(folder / "ep1-ba4")
    tally, errors = Counter(), []

    @deterministic(count)
    @given(altered(contents))
    def alter(case):
        part, tensors, data = case
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = resume(folder / "altered", contents, tensors, data)
        if seen not in ("refused", "loaded", "trained"):
            errors.append(f"{part}: {seen}")
            seen = "ERROR"
        tally["altered", part.split(" ")[0], seen] += 1

    alter()
    return tally, errors


def deterministic(count):
    """Return settings for a number of examples, which are the same in every run."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def check_files(count, folder, size, tally):
    """Try mutants of the files that a number of processes wrote, and count their outcomes."""
    kept, mutant = deterministic(count), folder / "mutant"
    whole, other = files_of(folder, 1, size), files_of(folder, 2, size)
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


def check(count, count_altered):
    """Try so many mutants of each kind; return how many had which outcome."""
    tally = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for size in (1, 2):
            check_files(-(-count // 2), Path(folder), size, tally)
        altered_tally, errors = check_altered(count_altered, Path(folder) / "run")
    assert not errors, "\n".join(sorted(set(errors)))
    return tally + altered_tally


def main():
    """Print how many mutants had which outcome."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="how many in all")
    third = -(-parser.parse_args().count // 3)
    tally = check(third, third)
    for (kind, how, seen), number in sorted(tally.items()):
        print(f"{kind:8} {how:12} {seen:10} {number:6}")
    print(f"{sum(tally.values())} mutants, no crash and no silent load")


if __name__ == "__main__":
    main()
