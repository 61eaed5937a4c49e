"""Whatever goes wrong while a checkpoint is written: the old one is whole, or the new one is."""

import errno
import os

import pytest
import torch

from composable.checkpoint import (
    CheckpointError,
    MissingCheckpointError,
    UnwritableCheckpointError,
    atomic,
    find,
    pack,
    read,
    unpack,
    verify,
    write,
)
from tests.checkpoint.faulty_os import FaultyOS, Killed

NEVER = 10**9


def tree(version):
    return {"version": version, "weights": [torch.full((3,), version)]}


def save(target, version):
    return write(target, *pack(tree(version)), overwrite=True, info={"batch": version})


def version(target):
    """Return the version of a checkpoint, or None; all of its parts must agree."""
    try:
        contents = read(target)
    except MissingCheckpointError:
        return None
    seen = unpack(contents.tensors, contents.data)
    assert all((weights == seen["version"]).all() for weights in seen["weights"])
    assert verify(target).batch == seen["version"]
    assert [found.manifest.batch for found in find(target.parent)[0]] == [seen["version"]]
    assert find(target.parent)[1] == []
    return seen["version"]


def faulty(monkeypatch, at, error, **options):
    fault = FaultyOS(at, error, **options)
    monkeypatch.setattr(atomic, "os", fault)
    return fault


ERRORS = {
    "killed": Killed,
    "interrupted": KeyboardInterrupt,
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "read-only": OSError(errno.EROFS, "Read-only file system"),
    "refused": PermissionError(errno.EACCES, "Permission denied"),
    "vanished": FileNotFoundError(errno.ENOENT, "No such file or directory"),
    "broken": OSError(errno.EIO, "Input/output error"),
}


@pytest.mark.parametrize("before", [None, 1], ids=["first", "overwriting"])
@pytest.mark.parametrize("name", ["killed", "interrupted", "full", "refused", "vanished", "broken"])
def test_a_fault_at_any_call_leaves_a_whole_checkpoint(tmp_path, monkeypatch, name, before):
    outcomes, lasting = set(), name in ("killed", "full", "refused")
    for at in range(100):
        folder = tmp_path / str(at)
        folder.mkdir()
        target = folder / "it"
        if before is not None:
            save(target, before)
        failed = None
        with monkeypatch.context() as patch:
            fault = faulty(patch, at, ERRORS[name], lasting=lasting)
            try:
                save(target, 2)
            except (Killed, KeyboardInterrupt, UnwritableCheckpointError) as error:
                failed = error
        if name == "killed":
            fault.bury()

        if before is not None and not lasting:
            assert target.exists()  # the rotated checkpoint has its name again
        seen = version(target)
        outcomes.add(seen)
        if failed is None:
            assert seen == 2
        elif isinstance(failed, UnwritableCheckpointError):
            assert str(target) in str(failed)
            assert failed.__cause__ is ERRORS[name]

        # The next writer finds nothing in its way, and leaves nothing but its checkpoint.
        save(target, 3)
        assert version(target) == 3
        assert os.listdir(folder) == ["it"]
        if len(fault.made) <= at:
            break  # no call was left to fail
    assert 20 < at < 99
    assert outcomes == {before, 2}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("full", "No space left on device. Free some disk space, or keep fewer checkpoints."),
        ("read-only", "Read-only file system. Use a writable folder."),
        ("refused", "Permission denied. Use a writable folder."),
        ("vanished", "No such file or directory. The parent folder must exist."),
        ("broken", "Input/output error."),
    ],
)
def test_an_error_names_the_fault_and_what_to_do(tmp_path, monkeypatch, name, words):
    place, end = tmp_path / "it", "An earlier checkpoint at this path is unchanged."
    save(place, 1)
    faulty(monkeypatch, 0, ERRORS[name], calls={"write"})

    with pytest.raises(CheckpointError) as caught:
        save(place, 2)

    assert str(caught.value) == f"{place} cannot be written: {words} {end}"
    monkeypatch.undo()
    assert version(place) == 1


def test_all_is_on_the_disk_before_it_is_renamed_and_renamed_before_anything_is_deleted(
    tmp_path, monkeypatch
):
    save(tmp_path / "it", 1)
    with monkeypatch.context() as patch:
        trace = faulty(patch, NEVER, None).made
        save(tmp_path / "it", 2)
    kinds = {"fsync": "sync", **{name: name for name in ("rename", "unlink", "rmdir")}}
    order = [kinds[name] for name, *_ in trace if name in kinds]
    # Three files and their folder; old aside and new in; the folder above; then the old one.
    assert order == ["sync"] * 4 + ["rename"] * 2 + ["sync"] + ["unlink"] * 3 + ["rmdir"]


def test_the_files_of_another_writer_are_kept(tmp_path):
    target = tmp_path / "it"
    (tmp_path / ".other.0123456789abcdef.partial").mkdir()  # of another checkpoint
    with atomic.staging(target, overwrite=False) as partial:
        (partial / "state.json").write_text("half of it")
        assert find(tmp_path) == ([], [])  # nor is it a checkpoint
        save(target, 1)
        assert (partial / "state.json").exists()
    save(target, 2)

    assert sorted(os.listdir(tmp_path)) == [".other.0123456789abcdef.partial", "it"]


def test_a_checkpoint_that_was_set_aside_is_read_until_it_is_replaced(tmp_path):
    save(tmp_path / "it", 1)
    (tmp_path / "it").rename(tmp_path / ".it.0123456789abcdef.replaced")

    assert version(tmp_path / "it") == 1
    with pytest.raises(FileExistsError):  # it still counts as being there
        write(tmp_path / "it", {}, 1)
    assert os.listdir(tmp_path) == ["it"]
