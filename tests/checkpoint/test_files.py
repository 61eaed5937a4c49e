"""A checkpoint is read as it was written, or refused with the file and the fault."""

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings

from composable import checkpoint
from composable.checkpoint import (
    CheckpointError,
    CheckpointExistsError,
    DamagedCheckpointError,
    MissingCheckpointError,
    UnreadableCheckpointError,
    UnsavableError,
    UnwritableCheckpointError,
    VersionError,
    find,
    pack,
    read,
    reader,
    unpack,
    verify,
    write,
)
from composable.checkpoint.manifest import FILES, MANIFEST, STATE, TENSORS
from tests.checkpoint.faulty_os import FaultyOS
from tests.checkpoint.forged import DAMAGES, edit_manifest, flip, forge, safetensors_of
from tests.checkpoint.trees import by_message, same, trees
from tests.support.processes import forkserver

TREE = {"model": {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(3)}, "step": 7}
OTHER = {"model": {"w": TREE["model"]["w"] + 1, "n": TREE["model"]["n"]}, "step": 8}


@pytest.fixture
def saved(tmp_path):
    return write(tmp_path / "it", *pack(TREE), info={"batch": 7})


@settings(max_examples=60)
@given(trees)
def test_reads_what_was_written(tmp_path_factory, tree):
    folder = tmp_path_factory.mktemp("runs") / "it"
    write(folder, *pack(tree), info={"batch": 3, "name": "ä"})

    contents = read(folder)

    assert same(unpack(contents.tensors, contents.data), tree)
    assert contents.manifest == verify(folder)
    assert contents.manifest.info == {"batch": 3, "name": "ä"}
    assert [found.path for found in find(folder.parent)[0]] == [folder]


def test_files_are_deterministic_and_in_the_safetensors_format(saved, tmp_path):
    tensors = {"model/w": TREE["model"]["w"], "model/n": TREE["model"]["n"]}
    safetensors.torch.save_file(tensors, tmp_path / "theirs")
    again = write(tmp_path / "again", *pack(TREE))

    theirs = safetensors.torch.load_file(saved / TENSORS)

    assert same(theirs, {name: tensors[name] for name in theirs})
    assert (tmp_path / "theirs").read_bytes() == (saved / TENSORS).read_bytes()
    assert all((saved / x).read_bytes() == (again / x).read_bytes() for x in (TENSORS, STATE))
    assert sorted(os.listdir(saved)) == sorted(FILES)


def test_each_tensor_has_its_own_storage(saved):
    tensors = read(saved).tensors

    assert tensors["model/n"].untyped_storage().nbytes() == 8
    assert tensors["model/w"].data_ptr() % 64 == 0


# --- Writing


def test_overwrites_only_on_request(saved):
    with pytest.raises(CheckpointExistsError, match=r"it exists: .* overwrite=True"):
        write(saved, {}, 1)
    assert read(saved).data["step"] == 7

    write(saved, {}, 1, overwrite=True)

    assert read(saved).data == 1
    assert os.listdir(saved.parent) == ["it"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda it: (it / "notes.txt").write_text("mine"), r"'notes\.txt', which is not part of"),
        (lambda it: it.rename("whole") and it.write_text("mine"), "is not a directory"),
        (lambda it: it.symlink_to(it.rename("whole")), "is a link to whole, and no checkpoint"),
    ],
    ids=by_message,
)
def test_never_overwrites_what_is_not_a_checkpoint(saved, monkeypatch, make, message):
    monkeypatch.chdir(saved.parent)
    make(saved)

    with pytest.raises(CheckpointExistsError, match=message):
        write(saved, {}, 1, overwrite=True)
    assert read("whole" if saved.is_symlink() or saved.is_file() else saved).data["step"] == 7


def test_requires_the_parent_folder(tmp_path):
    with pytest.raises(UnwritableCheckpointError, match=r"No such file.*The parent folder must"):
        write(tmp_path / "vanished" / "it", {}, 1)
    assert os.listdir(tmp_path) == []


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
def test_rejects_invalid_contents_before_writing(tmp_path, arguments, message):
    tensors, data, info = (*arguments, None)[:3]

    with pytest.raises(UnsavableError, match=message):
        write(tmp_path / "it", tensors, data, info=info)
    assert os.listdir(tmp_path) == []


# --- Damaged files


@pytest.mark.parametrize("name", FILES)
def test_finds_every_flipped_bit(saved, name):
    for position in range(0, (saved / name).stat().st_size, 3):
        flip(saved / name, position)
        with pytest.raises((DamagedCheckpointError, VersionError), match=name):
            read(saved)
        flip(saved / name, position)
    assert read(saved).data["step"] == 7


def replace_by_other(path):
    other = write(path.parents[1] / "other", *pack(OTHER), info={"batch": 7})
    path.write_bytes((other / path.name).read_bytes())


OTHER_CHECKPOINT = {"other checkpoint": (replace_by_other, "is damaged: its sha256 is")}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", DAMAGES | OTHER_CHECKPOINT)
def test_refuses_a_damaged_file(saved, name, kind):
    damage, message = (DAMAGES | OTHER_CHECKPOINT)[kind]
    damage(saved / name)

    with pytest.raises(DamagedCheckpointError, match=message.format(name)):
        read(saved)
    assert saved not in [found.path for found in find(saved.parent, thorough=True)[0]]


def exchange(folder):
    (folder / STATE).rename(folder / "x")
    (folder / TENSORS).rename(folder / STATE)
    (folder / "x").rename(folder / TENSORS)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (exchange, "belongs to another checkpoint"),
        (lambda it: os.truncate(it / MANIFEST, 2**21), "more than the maximum of 1048576"),
    ],
)
def test_refuses_exchanged_files_and_a_huge_manifest(saved, damage, message):
    damage(saved)

    with pytest.raises(DamagedCheckpointError, match=message):
        read(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 1}, "schema 1, but .* reads the schemas 4 and 5: .* the commit that saved it"),
        ({"schema": True}, "schema True"),
        ({"schema": "4"}, "schema '4'"),
        ({"format": "x"}, "not the manifest"),
        ([1], "not the manifest"),
        ({"library": []}, "library is a list"),
        ({"created": -1.0}, "created is -1.0"),
        ({"created": 1e300}, "created is 1e.300"),
        ({"info": []}, "info is a list"),
        ({"info": {"batch": 1.5}}, "batch is 1.5"),
        ({"more": 1}, r"it has the unknown entries \['more'\]"),
        ({"files": None}, "files is missing"),
        ({"files": []}, "files is a list, and must be a dictionary"),
        ({"files": {"../../secret": {"size": 1, "sha256": "0" * 64}}}, "its files are .*secret"),
        ({"files": {STATE: None}}, "its files are"),
        ({"files": {STATE: 1}}, f"files/{STATE} is 1, and must be a dictionary"),
        ({"files": {STATE: {"size": -1}}}, f"files/{STATE}/size is -1, and must be a non-negative"),
        ({"files": {STATE: {"size": 1e9}}}, "size is 1000"),
        ({"files": {STATE: {"size": 9}}}, "records 9"),
        ({"files": {STATE: {"sha256": "0" * 63}}}, "sha"),
        ({"files": {STATE: {"sha256": 0}}}, "sha256 is 0, and must be 64 hexadecimal"),
        ({"files": {STATE: {"sha256": "0" * 64}}}, "0000"),
    ],
    ids=by_message,
)
def test_refuses_a_forged_manifest(saved, changes, message):
    if isinstance(changes, list):
        (saved / MANIFEST).write_text(json.dumps(changes))
    else:
        edit_manifest(saved, changes)

    for check in (read, verify):
        with pytest.raises(VersionError if "schema" in changes else DamagedCheckpointError) as seen:
            check(saved)
        seen.match(message)


@pytest.mark.parametrize("name", [STATE, MANIFEST])
def test_refuses_what_is_no_strict_json(saved, name):
    forge(saved, name, b'{"a": 1, "a": 2}')

    with pytest.raises(DamagedCheckpointError, match=rf"{name} .*invalid JSON: duplicate key 'a'"):
        read(saved)


SPEC = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is truncated"),
        (b"\x00" * 7, "is truncated"),
        (safetensors_of({}, length=2**63), "header of 9223372036854775808 bytes"),
        (safetensors_of({}, length=100), "header of 100 bytes"),
        (safetensors_of(b""), "invalid JSON"),
        (safetensors_of(b"[]"), "is a list, and must be a dictionary"),
        (safetensors_of(b'{"a": 1, "a": 2}'), "duplicate key 'a'"),
        (safetensors_of({"w": 3}), "tensor 'w' is 3, and must be a dictionary"),
        (safetensors_of({"w": SPEC, "v": SPEC}, 8), "overlaps"),
        (safetensors_of({"w": SPEC}, 9), "9 bytes of tensors, but its header"),
        (safetensors_of({"w": SPEC}, 7), "7 bytes of tensors"),
        (safetensors_of({"__metadata__": {"a": 1}}), "metadata of .*/a is 1, and must be a string"),
        (safetensors_of({"__metadata__": 1}), "is 1, and must be a dictionary"),
        (safetensors_of({"\ud800": SPEC}, 8), "invalid Unicode"),
        ({"more": 1}, r"has the unknown entries \['more'\]"),
        ({"dtype": "F33"}, "tensor 'w'/dtype is 'F33', and must be one of"),
        ({"dtype": ["F32"]}, r"dtype is \['F32'\], and must be one of"),
        ({"dtype": "F64"}, "require 16"),
        ({"shape": [3]}, "require 12"),
        ({"shape": [-2]}, "/shape is .*, and must be a list of sizes"),
        ({"shape": [2.0]}, "/shape is .*, and must be a list of sizes"),
        ({"shape": [True, 2]}, "/shape is .*, and must be a list of sizes"),
        ({"shape": 2}, "/shape is .*, and must be a list of sizes"),
        ({"shape": [1] * 65 + [2]}, "/shape is .*, and must be a list of sizes"),
        ({"shape": [2**62, 2**62]}, "require"),
        ({"data_offsets": [0]}, r"data_offsets is \[0\], and must be two sizes"),
        ({"data_offsets": [8, 0]}, "require 8"),
        ({"data_offsets": [8, 16]}, "follows a gap"),
        (
            safetensors_of({"w": {**SPEC, "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}),
            "cannot be allocated",
        ),
    ],
    ids=by_message,
)
def test_refuses_an_invalid_header_with_valid_hashes(saved, raw, message):
    if isinstance(raw, dict):
        raw = safetensors_of({"w": {**SPEC, **raw}}, 8)
    forge(saved, TENSORS, raw)

    for check in [read] if "allocated" in message else [read, verify]:
        with pytest.raises(CheckpointError, match=message) as caught:
            check(saved)
        assert TENSORS in str(caught.value)


def test_never_runs_code_from_a_file(saved, tmp_path):
    proof = tmp_path / "proof"
    payload = f"__import__('pathlib').Path({str(proof)!r}).touch()"
    for state in (payload, {"$" + payload: 1}, {"$dtype": payload}, {"$time": payload}):
        forge(saved, STATE, json.dumps(state).encode())
        contents = read(saved)
        with pytest.raises(DamagedCheckpointError):
            unpack(contents.tensors, contents.data)
    assert not proof.exists()
    for path in Path(checkpoint.__file__).parent.glob("*.py"):
        for word in ("import pickle", "eval(", "exec(", "weights_only=False", "import_module"):
            assert word not in path.read_text(), path


# --- Systems that refuse


@pytest.mark.parametrize(
    ("check", "path", "error", "message"),
    [
        (read, "none", MissingCheckpointError, "no checkpoint at .*none"),
        (verify, "none", MissingCheckpointError, "no checkpoint at .*none"),
        (read, "none/below", MissingCheckpointError, "no checkpoint at"),
        (find, "none", MissingCheckpointError, "no directory"),
        (read, "file", DamagedCheckpointError, "is not a directory"),
    ],
)
def test_a_missing_checkpoint_is_an_error(tmp_path, check, path, error, message):
    (tmp_path / "file").write_text("")

    with pytest.raises(error, match=message):
        check(tmp_path / path)


@pytest.mark.parametrize("at", range(3))
def test_an_unreadable_file_is_an_error(saved, monkeypatch, at):
    refusing = FaultyOS(at, PermissionError(13, "Permission denied"), calls={"open", "readv"})
    monkeypatch.setattr(reader, "os", refusing)

    with pytest.raises(UnreadableCheckpointError, match=r"it.* cannot be read: Permission denied"):
        read(saved)
    assert refusing.descriptors == set()


# --- Finding


def test_sorts_by_batches_whatever_the_name_and_time(tmp_path):
    for name, batch in [("z", 3), ("a", 20), ("m", 10), ("b", 20)]:
        os.utime(write(tmp_path / name, {}, 1, info={"batch": batch}), (0, 0))
    (tmp_path / "logs").mkdir()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "latest").symlink_to(tmp_path / "z")

    whole, broken = find(tmp_path)

    assert [found.path.name for found in whole] == ["b", "a", "m", "z"]
    assert [found.manifest.batch for found in whole] == [20, 20, 10, 3]
    assert broken == []


def test_lists_broken_checkpoints_separately(tmp_path):
    for batch in (1, 2, 3, 4):
        write(tmp_path / f"ba{batch}", *pack(TREE), info={"batch": batch})
    (tmp_path / "ba4" / MANIFEST).unlink()
    os.truncate(tmp_path / "ba3" / TENSORS, 9)
    flip(tmp_path / "ba2" / TENSORS, -1)

    whole, broken = find(tmp_path)
    checked, damaged = find(tmp_path, thorough=True)

    assert [found.path.name for found in whole] == ["ba2", "ba1"]
    assert [each.path.name for each in broken] == ["ba3", "ba4"]
    assert "is missing" in str(broken[1].error)
    assert [found.path.name for found in checked] == ["ba1"]
    assert [each.path.name for each in damaged] == ["ba2", "ba3", "ba4"]


def test_finds_a_checkpoint_that_is_overwritten_after_the_listing(tmp_path, monkeypatch):
    saved = write(tmp_path / "it", *pack(TREE), info={"batch": 1})
    aside = tmp_path / f".it.{'0' * 16}.replaced"
    listed = os.listdir

    def list_then_rename(folder):
        names = listed(folder)
        if saved.exists():
            os.rename(saved, aside)
        return names

    monkeypatch.setattr(os, "listdir", list_then_rename)
    whole, broken = find(tmp_path)

    assert [found.path.name for found in whole] == ["it"]
    assert broken == []


def overwrite_for_ever(target):
    for n in range(1, 10**9):
        tree = {"n": n, "t": [torch.full((50,), n) for _ in range(20)]}
        write(target, *pack(tree), overwrite=True, info={"batch": n})


def test_a_reader_sees_a_whole_checkpoint_while_it_is_overwritten_and_after_a_kill(tmp_path):
    target = write(tmp_path / "it", *pack({"n": 0, "t": []}))
    writer = forkserver.Process(target=overwrite_for_ever, args=(target,))
    writer.start()
    seen = []
    try:
        while len(set(seen)) < 20 and writer.is_alive():
            contents = read(target)
            tree = unpack(contents.tensors, contents.data)
            assert all((t == tree["n"]).all() for t in tree["t"])
            seen.append(tree["n"])
            assert len(find(tmp_path)[0]) == 1
            assert find(tmp_path)[1] == []
    finally:
        writer.kill()
        writer.join()
    assert len(set(seen)) == 20
    assert seen == sorted(seen)

    assert read(target).manifest.batch >= seen[-1]
    write(target, *pack({"n": -1, "t": []}), overwrite=True)
    assert os.listdir(tmp_path) == ["it"]
