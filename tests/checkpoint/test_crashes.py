"""Whatever goes wrong while a checkpoint is written: the old one is whole, or the new one is."""

import errno
import os

import pytest
import torch

from composable.checkpoint import (
    CheckpointError,
    MissingCheckpointError,
    UnwritableCheckpointError,
    _atomic,
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
    return {"version": version, "weights": [torch.full((3,), version) for _ in range(1)]}


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
    monkeypatch.setattr(_atomic, "os", fault)
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
@pytest.mark.parametrize(
    ("name", "lasting"),
    [
        ("killed", True),
        ("interrupted", False),
        ("full", True),
        ("refused", True),
        ("vanished", False),
        ("broken", False),
    ],
)
def test_a_fault_at_any_call_leaves_a_whole_checkpoint(
    tmp_path, monkeypatch, name, lasting, before
):
    outcomes = set()
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


def test_an_error_says_what_to_do(tmp_path, monkeypatch):
    save(tmp_path / "it", 1)
    said = {}
    for name in ("full", "read-only", "refused", "vanished", "broken"):
        with monkeypatch.context() as patch:
            faulty(patch, 0, ERRORS[name], calls={"write"})
            with pytest.raises(CheckpointError) as caught:
                save(tmp_path / "it", 2)
        said[name] = str(caught.value)
        assert version(tmp_path / "it") == 1

    place = tmp_path / "it"
    end = "An earlier checkpoint at this path is unchanged."
    assert said == {
        "full": f"{place} cannot be written: No space left on device. Free some disk space, or "
        f"keep fewer checkpoints. {end}",
        "read-only": f"{place} cannot be written: Read-only file system. Use a writable folder. "
        f"{end}",
        "refused": f"{place} cannot be written: Permission denied. Use a writable folder. {end}",
        "vanished": f"{place} cannot be written: No such file or directory. The parent "
        f"folder must exist. {end}",
        "broken": f"{place} cannot be written: Input/output error. {end}",
    }


def test_all_is_on_the_disk_before_it_is_renamed_and_renamed_before_anything_is_deleted(
    tmp_path, monkeypatch
):
    save(tmp_path / "it", 1)
    with monkeypatch.context() as patch:
        trace = faulty(patch, NEVER, None).made
        save(tmp_path / "it", 2)
    order = []
    for name, *_ in trace:
        if name == "fsync":
            order.append("sync")
        elif name in ("rename", "unlink", "rmdir"):
            order.append(name)
    # Three files and their folder; old aside and new in; the folder above; then the old one.
    assert order == ["sync"] * 4 + ["rename"] * 2 + ["sync"] + ["unlink"] * 3 + ["rmdir"]


def test_the_files_of_another_writer_are_kept(tmp_path):
    target = tmp_path / "it"
    (tmp_path / ".other.0123456789abcdef.partial").mkdir()  # of another checkpoint
    with _atomic.staging_folder(target) as partial:
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
