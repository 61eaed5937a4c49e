"""A checkpoint is read as it was written, or refused with the file and the fault."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings

from composable.checkpoint import (
    CheckpointError,
    CheckpointExistsError,
    DamagedCheckpointError,
    MissingCheckpointError,
    UnreadableCheckpointError,
    UnsavableError,
    UnwritableCheckpointError,
    VersionError,
    _reader,
    find,
    manifest,
    pack,
    read,
    unpack,
    verify,
    write,
)
from tests.checkpoint.faulty_os import FaultyOS
from tests.checkpoint.trees import by_message, same, trees

TREE = {"model": {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(3)}, "step": 7}


@pytest.fixture
def saved(tmp_path):
    return write(tmp_path / "it", *pack(TREE), info={"batch": 7})


def reseal(folder, **changes):
    """Change files as an attacker would: write a manifest that matches them."""
    for name, content in changes.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    body = json.loads((folder / "manifest.json").read_bytes())
    body.pop("sha256")
    for name, record in body["files"].items():
        content = (folder / name).read_bytes()
        record.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    (folder / "manifest.json").write_bytes(manifest._seal(body))


def safetensors_of(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


@settings(max_examples=60)
@given(trees)
def test_what_was_written_is_read(tmp_path_factory, tree):
    folder = tmp_path_factory.mktemp("runs") / "it"
    write(folder, *pack(tree), info={"batch": 3, "name": "ä"})

    contents = read(folder)

    assert same(unpack(contents.tensors, contents.data), tree)
    assert contents.manifest == verify(folder)
    assert contents.manifest.info == {"batch": 3, "name": "ä"}
    assert [found.path for found in find(folder.parent)[0]] == [folder]


def test_a_checkpoint_has_three_files(saved):
    assert sorted(os.listdir(saved)) == ["manifest.json", "state.json", "tensors.safetensors"]
    assert os.listdir(saved.parent) == ["it"]


def test_the_same_state_gives_the_same_bytes(tmp_path):
    one, two = (write(tmp_path / name, *pack(TREE)) for name in "ab")

    for name in ("tensors.safetensors", "state.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_the_tensors_are_what_the_library_of_the_format_reads_and_writes(saved, tmp_path):
    tensors = {"model/w": TREE["model"]["w"], "model/n": TREE["model"]["n"]}
    safetensors.torch.save_file(tensors, tmp_path / "theirs")

    theirs = safetensors.torch.load_file(saved / "tensors.safetensors")

    assert same(theirs, {name: tensors[name] for name in theirs})
    assert (tmp_path / "theirs").read_bytes() == (saved / "tensors.safetensors").read_bytes()


def test_each_tensor_has_a_storage_of_its_own(saved):
    tensors = read(saved).tensors

    assert tensors["model/n"].untyped_storage().nbytes() == 8
    assert tensors["model/w"].data_ptr() % 64 == 0


def test_tensors_come_to_the_device_that_is_asked_for(saved):
    assert read(saved, device="meta").tensors["model/w"].is_meta


# --- Writing


def test_an_existing_checkpoint_is_not_overwritten_unless_asked(saved):
    with pytest.raises(CheckpointExistsError, match=r"it exists: .* overwrite=True"):
        write(saved, {}, 1)
    assert read(saved).data["step"] == 7

    write(saved, {}, 1, overwrite=True)

    assert read(saved).data == 1
    assert os.listdir(saved.parent) == ["it"]


def test_a_folder_with_anything_else_in_it_is_never_overwritten(saved):
    (saved / "notes.txt").write_text("mine")

    with pytest.raises(
        CheckpointExistsError, match=r"'notes\.txt', which is not part of a checkpoint"
    ):
        write(saved, {}, 1, overwrite=True)
    assert read(saved).data["step"] == 7  # such a file does no harm


def test_a_file_or_a_link_is_never_overwritten(saved, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(saved)

    for name in ("file", "link"):
        with pytest.raises(CheckpointExistsError, match="is not a directory"):
            write(tmp_path / name, {}, 1, overwrite=True)


def test_the_folder_above_must_be_there(tmp_path):
    with pytest.raises(UnwritableCheckpointError, match=r"No such file.*The parent folder must"):
        write(tmp_path / "vanished" / "it", {}, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({}, float("nan")), "data is not JSON"),
        (({}, object()), "data is not JSON"),
        (({"c": torch.ones(1, dtype=torch.complex128)}, 1), "'c' has dtype torch.complex128"),
        (({}, 1, {"batch": -1}), r"info\['batch'\]=-1 must be a non-negative integer"),
        (({}, 1, {"when": object()}), "info is not JSON"),
        (({}, 1, {"pair": (1, 2)}), "info is not JSON"),
        (({}, 1, {"much": "x" * 2**21}), "more than 1048576 bytes"),
    ],
    ids=by_message,
)
def test_what_can_not_be_said_in_json_is_refused_before_anything_is_written(
    tmp_path, arguments, message
):
    tensors, data, info = (*arguments, None)[:3]

    with pytest.raises(UnsavableError, match=message):
        write(tmp_path / "it", tensors, data, info=info)
    assert os.listdir(tmp_path) == []


# --- Hostile files


def flip(path, position):
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_one_flipped_bit_anywhere_is_found(saved, name):
    size = (saved / name).stat().st_size
    for position in range(0, size, 3):
        flip(saved / name, position)
        with pytest.raises((DamagedCheckpointError, VersionError), match=name):
            read(saved)
        flip(saved / name, position)
    assert read(saved).data["step"] == 7


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("size", [0, 1, 9, -1])
def test_a_truncated_file_is_found(saved, name, size):
    whole = (saved / name).read_bytes()
    (saved / name).write_bytes(whole[:size])

    with pytest.raises(DamagedCheckpointError, match=name):
        read(saved)
    assert find(saved.parent)[0] == []  # the sizes differ already


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_missing_or_renamed_file_is_found(saved, name):
    (saved / name).rename(saved / "other")

    with pytest.raises(DamagedCheckpointError, match=rf"{name} is missing"):
        read(saved)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_file_of_another_checkpoint_is_found(saved, tmp_path, name):
    tree = {"model": {"w": TREE["model"]["w"] + 1, "n": TREE["model"]["n"]}, "step": 8}
    other = write(tmp_path / "other", *pack(tree), info={"batch": 7})
    (saved / name).write_bytes((other / name).read_bytes())

    with pytest.raises(DamagedCheckpointError, match="is damaged: its sha256 is"):
        read(saved)


def test_files_exchanged_within_a_checkpoint_are_found(saved):
    (saved / "state.json").rename(saved / "x")
    (saved / "tensors.safetensors").rename(saved / "state.json")
    (saved / "x").rename(saved / "tensors.safetensors")

    with pytest.raises(DamagedCheckpointError, match="belongs to another checkpoint"):
        read(saved)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_link_out_of_the_folder_is_not_followed(saved, tmp_path, name):
    (saved / name).rename(tmp_path / "elsewhere")
    (saved / name).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(DamagedCheckpointError, match=rf"{name} is a symbolic link"):
        read(saved)


def test_a_pipe_or_a_folder_in_place_of_a_file_is_refused_at_once(saved):
    (saved / "state.json").unlink()
    os.mkfifo(saved / "state.json")
    with pytest.raises(DamagedCheckpointError, match="not a regular file"):
        read(saved)

    (saved / "state.json").unlink()
    (saved / "state.json").mkdir()
    with pytest.raises(DamagedCheckpointError, match="not a regular file"):
        read(saved)


def edit_manifest(folder, edit):
    body = json.loads((folder / "manifest.json").read_bytes())
    body.pop("sha256")
    body = edit(body) or body
    (folder / "manifest.json").write_bytes(manifest._seal(body))


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda m: m.update(schema=2), VersionError, "schema 2, but this version reads schema 1"),
        (lambda m: m.update(schema=True), VersionError, "schema True"),
        (lambda m: m.update(schema="1"), VersionError, "schema 1"),
        (lambda m: m.update(format="x"), DamagedCheckpointError, "not the manifest"),
        (lambda m: m.update(library=[]), DamagedCheckpointError, "library is a list"),
        (lambda m: m.update(created=-1.0), DamagedCheckpointError, "created is -1.0"),
        (lambda m: m.update(created=1e300), DamagedCheckpointError, "created is 1e.300"),
        (lambda m: m.update(info=[]), DamagedCheckpointError, "info is a list"),
        (lambda m: m.update(info={"batch": 1.5}), DamagedCheckpointError, "batch is 1.5"),
        (lambda m: m.update(more=1), DamagedCheckpointError, "its keys are"),
        (lambda m: m.pop("files"), DamagedCheckpointError, "its keys are"),
        (lambda m: m.update(files=[]), DamagedCheckpointError, "its files are"),
        (
            lambda m: m["files"].update({"../../secret": m["files"]["state.json"]}),
            DamagedCheckpointError,
            "its files are .*secret",
        ),
        (lambda m: m["files"].pop("state.json"), DamagedCheckpointError, "its files are"),
        (
            lambda m: m["files"].update({"state.json": 1}),
            DamagedCheckpointError,
            "exactly the keys size and sha256",
        ),
        (lambda m: m["files"]["state.json"].update(size=-1), DamagedCheckpointError, "size -1"),
        (lambda m: m["files"]["state.json"].update(size=1e9), DamagedCheckpointError, "size 1000"),
        (lambda m: m["files"]["state.json"].update(size=9), DamagedCheckpointError, "records 9"),
        (lambda m: m["files"]["state.json"].update(sha256="0" * 63), DamagedCheckpointError, "sha"),
        (lambda m: m["files"]["state.json"].update(sha256=0), DamagedCheckpointError, "sha256 0"),
        (
            lambda m: m["files"]["state.json"].update(sha256="0" * 64),
            DamagedCheckpointError,
            "0000",
        ),
        (lambda m: [m], DamagedCheckpointError, None),
    ],
    ids=by_message,
)
def test_a_manifest_that_lies_is_refused(saved, edit, error, message):
    def apply(body):
        result = edit(body)
        return result if isinstance(result, list) else None

    if message is None:
        (saved / "manifest.json").write_text("[1]")
    else:
        edit_manifest(saved, apply)

    with pytest.raises(error, match=message):
        read(saved)
    with pytest.raises(error, match=message):
        verify(saved)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "invalid JSON"),
        (b"\xff", "invalid JSON"),
        (b'{"a": 1', "invalid JSON"),
        (b'{"a": 1, "a": 2}', "duplicate key 'a'"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1e999}', "out of range"),
        (b"9" * 5000, "an integer has 5000 digits"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b"[1] [2]", "invalid JSON"),
    ],
    ids=by_message,
)
@pytest.mark.parametrize("name", ["state__json", "manifest__json"])
def test_json_that_is_none_is_refused(saved, name, raw, message):
    if name == "state__json":
        reseal(saved, state__json=raw)
    else:
        (saved / "manifest.json").write_bytes(raw)

    with pytest.raises(DamagedCheckpointError, match=rf"{name.replace('__', '.')} .*{message}"):
        read(saved)


def spec(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is truncated"),
        (b"\x00" * 7, "is truncated"),
        (safetensors_of({}, length=2**63), "header of 9223372036854775808 bytes"),
        (safetensors_of({}, length=100), "header of 100 bytes"),
        (safetensors_of(b""), "invalid JSON"),
        (safetensors_of(b"[]"), "not a mapping"),
        (safetensors_of(b'{"a": 1, "a": 2}'), "duplicate key 'a'"),
        (safetensors_of({"w": 3}), "exactly the keys dtype, shape and data_offsets"),
        (safetensors_of({"w": spec(more=1)}, b"\0" * 8), "exactly the keys dtype, shape"),
        (safetensors_of({"w": spec(dtype="F33")}, b"\0" * 8), "dtype 'F33'"),
        (safetensors_of({"w": spec(dtype=["F32"])}, b"\0" * 8), "dtype .* which is not one of"),
        (safetensors_of({"w": spec(dtype="F64")}, b"\0" * 8), "require 16"),
        (safetensors_of({"w": spec(shape=[3])}, b"\0" * 8), "require 12"),
        (safetensors_of({"w": spec(shape=[-2])}, b"\0" * 8), "invalid shape"),
        (safetensors_of({"w": spec(shape=[2.0])}, b"\0" * 8), "invalid shape"),
        (safetensors_of({"w": spec(shape=[True, 2])}, b"\0" * 8), "invalid shape"),
        (safetensors_of({"w": spec(shape=2)}, b"\0" * 8), "invalid shape"),
        (safetensors_of({"w": spec(shape=[1] * 65 + [2])}, b"\0" * 8), "invalid shape"),
        (safetensors_of({"w": spec(shape=[2**62, 2**62])}, b"\0" * 8), "require"),
        (
            safetensors_of({"w": spec(shape=[0, 2**62, 2**62], data_offsets=[0, 0])}),
            "cannot be allocated",
        ),
        (safetensors_of({"w": spec(data_offsets=[0])}, b"\0" * 8), "invalid data_offsets"),
        (safetensors_of({"w": spec(data_offsets=[8, 0])}, b"\0" * 8), "require 8"),
        (safetensors_of({"w": spec(data_offsets=[8, 16])}, b"\0" * 16), "follows a gap"),
        (safetensors_of({"w": spec(), "v": spec()}, b"\0" * 8), "overlaps"),
        (
            safetensors_of({"w": spec()}, b"\0" * 9),
            "9 bytes of tensors, but its header",
        ),
        (safetensors_of({"w": spec()}, b"\0" * 7), "7 bytes of tensors"),
        (safetensors_of({"__metadata__": {"a": 1}}), "not a mapping of strings"),
        (safetensors_of({"__metadata__": 1}), "not a mapping of strings"),
        (safetensors_of({"\ud800": spec()}, b"\0" * 8), "invalid Unicode"),
    ],
    ids=by_message,
)
def test_a_hostile_header_is_refused_though_all_hashes_fit(saved, raw, message):
    reseal(saved, tensors__safetensors=raw)

    for check in (read, verify):
        if check is verify and "allocated" in message:
            continue  # nothing is allocated
        with pytest.raises(CheckpointError, match=message) as caught:
            check(saved)
        assert "tensors.safetensors" in str(caught.value)


def test_a_huge_state_or_manifest_is_refused_unread(saved):
    os.truncate(saved / "manifest.json", 2**21)
    with pytest.raises(DamagedCheckpointError, match="more than the maximum of 1048576"):
        read(saved)


def test_nothing_can_be_run_by_a_file(saved, tmp_path):
    """State and names that would run code where something evaluated, imported or unpickled them."""
    proof = tmp_path / "proof"
    payload = f"__import__('pathlib').Path({str(proof)!r}).touch()"
    for state in (payload, {"$" + payload: 1}, {"$dtype": payload}, {"$time": payload}):
        reseal(saved, state__json=json.dumps(state).encode())
        contents = read(saved)
        with pytest.raises(DamagedCheckpointError):
            unpack(contents.tensors, contents.data)
    assert not proof.exists()


def test_the_source_has_no_way_to_run_a_file():
    from composable import checkpoint

    for path in Path(checkpoint.__file__).parent.glob("*.py"):
        for word in ("import pickle", "eval(", "exec(", "weights_only=False", "import_module"):
            assert word not in path.read_text(), path


# --- Systems that refuse


def test_no_checkpoint_is_a_plain_error(tmp_path):
    for check in (read, verify):
        with pytest.raises(MissingCheckpointError, match=r"no checkpoint at .*none"):
            check(tmp_path / "none")
        with pytest.raises(MissingCheckpointError):
            check(tmp_path / "none" / "below")
    with pytest.raises(MissingCheckpointError, match="no directory"):
        find(tmp_path / "none")


def test_a_file_in_place_of_a_checkpoint_is_a_plain_error(tmp_path):
    (tmp_path / "it").write_text("")

    with pytest.raises(DamagedCheckpointError, match="is not a directory"):
        read(tmp_path / "it")


@pytest.mark.parametrize("at", range(3))
def test_a_file_that_may_not_be_read_is_a_plain_error(saved, monkeypatch, at):
    refusing = FaultyOS(at, PermissionError(13, "Permission denied"), calls={"open", "readv"})
    monkeypatch.setattr(_reader, "os", refusing)

    with pytest.raises(UnreadableCheckpointError, match=r"it.* cannot be read: Permission denied"):
        read(saved)
    assert refusing.descriptors == set()


# --- Finding


def test_the_newest_is_the_one_with_the_most_batches_whatever_its_name_and_time(tmp_path):
    for name, batch in [("z", 3), ("a", 20), ("m", 10), ("b", 20)]:
        os.utime(write(tmp_path / name, {}, 1, info={"batch": batch}), (0, 0))
    (tmp_path / "logs").mkdir()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "latest").symlink_to(tmp_path / "z")

    whole, broken = find(tmp_path)

    assert [found.path.name for found in whole] == ["b", "a", "m", "z"]
    assert [found.manifest.batch for found in whole] == [20, 20, 10, 3]
    assert broken == []


def test_a_broken_one_is_told_and_never_the_newest(tmp_path):
    for batch in (1, 2, 3, 4):
        write(tmp_path / f"ba{batch}", *pack(TREE), info={"batch": batch})
    (tmp_path / "ba4" / "manifest.json").unlink()
    os.truncate(tmp_path / "ba3" / "tensors.safetensors", 9)
    flip(tmp_path / "ba2" / "tensors.safetensors", -1)

    whole, broken = find(tmp_path)
    checked, damaged = find(tmp_path, thorough=True)

    assert [found.path.name for found in whole] == ["ba2", "ba1"]
    assert [each.path.name for each in broken] == ["ba3", "ba4"]
    assert "is missing" in str(broken[1].error)
    assert [found.path.name for found in checked] == ["ba1"]
    assert [each.path.name for each in damaged] == ["ba2", "ba3", "ba4"]


# --- Two at once

WRITER = """
    import sys, torch
    from composable.checkpoint import pack, write
    print("ready", flush=True)
    for n in range(1, 10**9):
        tree = {"n": n, "t": [torch.full((50,), n) for _ in range(20)]}
        write(sys.argv[1], *pack(tree), overwrite=True, info={"batch": n})
"""


def test_a_reader_sees_a_whole_checkpoint_at_any_time_of_an_overwriting_and_after_a_kill(tmp_path):
    target = write(tmp_path / "it", *pack({"n": 0, "t": []}))
    script = [sys.executable, "-c", textwrap.dedent(WRITER), str(target)]
    writer = subprocess.Popen(script, stdout=subprocess.PIPE, text=True)
    seen = []
    try:
        assert writer.stdout.readline() == "ready\n"
        while len(set(seen)) < 20 and writer.poll() is None:
            contents = read(target)
            tree = unpack(contents.tensors, contents.data)
            assert all((t == tree["n"]).all() for t in tree["t"])
            seen.append(tree["n"])
            assert len(find(tmp_path)[0]) == 1
            assert find(tmp_path)[1] == []
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert len(set(seen)) == 20
    assert seen == sorted(seen)

    assert read(target).manifest.batch >= seen[-1]
    write(target, *pack({"n": -1, "t": []}), overwrite=True)
    assert os.listdir(tmp_path) == ["it"]
