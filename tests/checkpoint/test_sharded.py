"""Checkpoints that several processes write: the files, the errors, and what reads them."""

import json
import os
from hashlib import sha256

import attrs
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from composable.checkpoint import (
    CheckpointError,
    CheckpointExistsError,
    DamagedCheckpointError,
    MismatchError,
    Region,
    TensorShard,
    UnsavableError,
    UnwritableCheckpointError,
    _together,
    atomic,
    consolidate,
    find,
    load_weights,
    pack,
    read,
    read_shards,
    verify,
    write,
)
from composable.checkpoint.files import delete, read_outline
from composable.checkpoint.inspect import describe, describe_all, format_description, is_checkpoint
from composable.cli import main
from composable.distributed import ProcessError, Processes
from tests.checkpoint.faulty_os import FaultyOS
from tests.checkpoint.forged import DAMAGES, edit_manifest, flip, safetensors_of
from tests.checkpoint.sharding import together
from tests.checkpoint.test_crashes import ERRORS

WEIGHT, BIAS = torch.arange(24.0).view(6, 4), torch.arange(4.0)
SECOND = "tensors-00002-of-00003.safetensors"


def tensors_of(rank, version=0):
    """Return what one of three processes has: two rows of the weight, and the bias."""
    part = TensorShard(WEIGHT[2 * rank : 2 * rank + 2] + version, (6, 4), (2 * rank, 0))
    return {"state/model/weights/weight": part, "state/model/weights/bias": BIAS + version}


WEIGHTS = {"weight": WEIGHT, "bias": BIAS}
_, DATA = pack({"run": "a", "state": {"model": {"weights": WEIGHTS}}})


def save(folder, version=0, **options):
    """Write a checkpoint from three threads; return what each of them returned or raised."""
    return together(
        3,
        lambda processes: write(
            folder,
            tensors_of(processes.rank, version),
            DATA,
            processes=processes,
            info={"batch": version, "run": "a"},
            **options,
        ),
    )


@pytest.fixture
def saved(tmp_path):
    assert save(tmp_path / "it") == [tmp_path / "it"] * 3
    return tmp_path / "it"


# --- the files ---


def test_each_process_writes_a_file_and_the_manifest_lists_them(saved):
    numbered = [f"tensors-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]

    assert sorted(os.listdir(saved)) == ["manifest.json", "state.json", *numbered]
    manifest = verify(saved)
    assert manifest.schema == 5
    assert manifest.sharded
    assert manifest.tensor_files == tuple(numbered)
    for number, name in enumerate(numbered):
        own = load_file(saved / name)
        assert torch.equal(own.pop("state/model/weights/weight"), WEIGHT[2 * number :][:2])
        assert list(own) == ([] if number else ["state/model/weights/bias"])


def test_one_process_writes_the_same_bytes_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1.0)
    tree = {"a": [torch.arange(4.0), 1], "b": torch.ones(2, dtype=torch.bool)}
    old = write(tmp_path / "old", *pack(tree))
    for number, processes in enumerate([None, Processes()]):
        new = write(tmp_path / f"{number}", *pack(tree), processes=processes)
        for name in ("tensors.safetensors", "state.json", "manifest.json"):
            assert (new / name).read_bytes() == (old / name).read_bytes()
    digest = sha256((old / "tensors.safetensors").read_bytes()).hexdigest()
    assert digest == "61edb7799bae7a5b5a5e8bf55ce0ac7b035fa694be8b96440a9e509a628d20ed"


def test_equal_parts_are_written_once_and_whole_tensors_by_rank_0(tmp_path):
    def both(processes):
        half = TensorShard(WEIGHT[:3], (6, 4), (3 * (processes.rank % 2), 0))
        own = {f"w{n}": half for n in range(8)} | {"whole": BIAS, "empty": torch.ones(0, 3)}
        return write(tmp_path / "it", own, None, processes=processes)

    together(4, both)

    verify(tmp_path / "it")
    names = [set(load_file(file)) for file in sorted((tmp_path / "it").glob("*.safetensors"))]
    assert [{"whole", "empty"} <= own for own in names] == [True, False, False, False]
    for n in range(8):
        assert [f"w{n}" in own for own in names].count(True) == 2
    assert all(names)


def test_processes_verify_the_files_of_tensors_in_turn(saved):
    outlines = together(2, lambda processes: read_outline(saved, processes))

    for outline in outlines:
        assert outline.data == read(saved).data
        for name, tensor in read(saved).tensors.items():
            assert outline.tensors[name].is_meta
            assert outline.tensors[name].shape == tensor.shape
    flip(saved / SECOND)
    first, second = together(2, lambda processes: read_outline(saved, processes))
    assert first.manifest == outlines[0].manifest
    assert isinstance(second, DamagedCheckpointError)
    assert f"{saved / SECOND} is damaged" in str(second)


def test_a_part_alone_is_refused(tmp_path):
    with pytest.raises(UnsavableError, match="'w' is divided among processes: all of them must"):
        write(tmp_path / "it", {"w": TensorShard(WEIGHT[:2], (6, 4), (0, 0))}, None)


def test_a_whole_tensor_of_rank_0_alone_is_written(tmp_path):
    together(
        2,
        lambda p: write(
            tmp_path / "it",
            {"w": BIAS, **({} if p.rank else {"log": WEIGHT})},
            DATA,
            processes=p,
            info={"batch": 1},
        ),
    )

    assert torch.equal(read(tmp_path / "it").tensors["log"], WEIGHT)


# --- errors ---


REFUSED = {
    "names": (
        lambda r: {"w": TensorShard(WEIGHT[:3], (6, 4), (3 * r, 0))} if r < 2 else {},
        "rank 0 has a tensor 'w', but rank 2 does",
    ),
    "more": (lambda r: {"w": BIAS} if r == 2 else {}, "rank 2 has a tensor 'w', but rank 0 does"),
    "shapes": (
        lambda r: {"w": WEIGHT[: r + 1]},
        r"F32 of shape \[1, 4\] on rank 0, but .*rank [12]",
    ),
    "dtypes": (
        lambda r: {"w": torch.ones(2).to(torch.float64 if r else torch.float32)},
        "'w' is F32 of shape .2. on rank 0, but F64 of shape .2. on rank [12]",
    ),
    "gap": (
        lambda r: {"w": TensorShard(WEIGHT[:1], (6, 4), (2 * r, 0))},
        r"leave a gap. By rank: 0: \(1, 4\) from \(0, 0\); 1: \(1, 4\) from \(2, 0\)",
    ),
    "overlap": (
        lambda r: {"w": TensorShard(WEIGHT[:3], (6, 4), (min(r, 1) * 3 - r // 2, 0))},
        "they overlap",
    ),
    "kinds": (
        lambda r: {"w": TensorShard(WEIGHT, (6, 4), (0, 0)) if r == 1 else WEIGHT},
        "'w' is divided in another way on rank 1 than on rank 0",
    ),
    "one rank": (lambda r: {"w": 3 if r == 1 else BIAS}, "TypeError|rank 1 failed|must be a tens"),
}


@pytest.mark.parametrize(("own", "message"), REFUSED.values(), ids=REFUSED)
def test_processes_that_disagree_are_all_told(tmp_path, own, message):
    errors = together(
        3, lambda p: write(tmp_path / "it", own(p.rank), DATA, processes=p, info={"batch": 1})
    )

    for error in errors:
        with pytest.raises((CheckpointError, ProcessError, TypeError), match=message):
            raise error
    assert os.listdir(tmp_path) == []


def test_processes_that_write_to_different_folders_are_told(tmp_path):
    errors = together(2, lambda p: write(tmp_path / str(p.rank), {}, 0, processes=p))

    for error in errors:
        with pytest.raises(ProcessError, match=r"rank 0 writes to .*0, but rank 1 to .*1\."):
            raise error


def test_an_existing_checkpoint_is_kept_unless_it_is_to_be_overwritten(saved):
    first, *others = save(saved, 1)

    assert str(first).startswith(f"{saved} exists: use another folder")
    assert [str(error) for error in others] == [f"rank 0 failed: {first}"] * 2
    assert {type(error) for error in (first, *others)} == {CheckpointExistsError}
    assert verify(saved).batch == 0
    assert save(saved, 2, overwrite=True) == [saved] * 3
    assert verify(saved).batch == 2
    assert os.listdir(saved.parent) == ["it"]


def test_one_file_replaces_several_and_several_replace_one(saved):
    write(saved, {"w": BIAS}, None, overwrite=True)
    assert sorted(os.listdir(saved)) == ["manifest.json", "state.json", "tensors.safetensors"]
    save(saved, overwrite=True)
    assert len(os.listdir(saved)) == 5
    assert os.listdir(saved.parent) == ["it"]


# --- faults ---


@pytest.mark.parametrize("before", [None, 1], ids=["first", "overwriting"])
@pytest.mark.parametrize("name", ["interrupted", "full", "refused", "vanished"])
def test_a_fault_in_any_process_fails_all_and_leaves_a_whole_checkpoint(
    tmp_path, monkeypatch, name, before
):
    outcomes = set()
    for at in range(0, 200, 3):
        target = tmp_path / str(at) / "it"
        target.parent.mkdir()
        if before is not None:
            save(target, before)
        with monkeypatch.context() as patch:
            fault = FaultyOS(at, ERRORS[name], lasting=name == "full")
            patch.setattr(atomic, "os", fault)
            results = save(target, 2, overwrite=True)
        failed = [isinstance(each, BaseException) for each in results]
        assert all(failed) or not any(failed)
        own = {KeyboardInterrupt, UnwritableCheckpointError, ProcessError}
        assert not any(failed) or {type(each) for each in results} <= own
        seen = verify(target).batch if find(target.parent)[0] else None
        outcomes.add(seen)
        assert any(failed) or seen == 2
        assert seen in (before, 2)
        save(target, 3, overwrite=True)
        assert verify(target).batch == 3
        assert os.listdir(target.parent) == ["it"]
        if len(fault.made) <= at:
            break
    assert 30 < at < 199
    assert outcomes == {before, 2}


def test_an_error_of_one_process_is_named_on_all(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "os", FaultyOS(0, ERRORS["full"], calls={"write"}))
    results = save(tmp_path / "it")

    (own,) = (each for each in results if "rank" not in str(each))
    rank, where = results.index(own), tmp_path / "it"
    assert str(own).startswith(f"{where} cannot be written: No space left on device. Free some")
    for other in results[:rank] + results[rank + 1 :]:
        assert str(other) == f"rank {rank} failed: {own}"
        assert type(other) is UnwritableCheckpointError
    assert os.listdir(tmp_path) == []


def refuse_to_write(*_):
    raise FileNotFoundError


@pytest.mark.parametrize(("number", "removed"), [*((n, False) for n in range(5)), (3, True)])
def test_a_process_that_is_gone_fails_the_others(tmp_path, number, removed, monkeypatch):
    save(tmp_path / "it", 1)
    if removed:  # by rank 0, which has lost a process before the others write
        monkeypatch.setattr(_together, "write_file", refuse_to_write)

    def write_one(processes):
        calls = iter(range(9))

        @attrs.frozen
        class Lost(type(processes)):
            def gather(self, value):
                gathered = super().gather(value)  # so that none writes while another cleans up
                if next(calls) == number:
                    raise RuntimeError("Connection closed by peer")
                return gathered

        alone = Lost(**attrs.asdict(processes, recurse=False))
        return write(
            tmp_path / "it", tensors_of(processes.rank, 2), DATA, processes=alone, overwrite=True
        )

    for error in together(3, write_one):
        with pytest.raises(ProcessError, match=r"another process was lost .*: Connection closed"):
            raise error
    assert verify(tmp_path / "it").batch == (1 if number < 4 else 0)
    assert os.listdir(tmp_path) == ["it"]


def test_a_folder_that_is_not_shared_is_named(tmp_path):
    def write_one(processes):
        @attrs.frozen
        class Elsewhere(type(processes)):
            def gather(self, value):
                values = super().gather(value)
                if self.rank == 1 and str(values[0]).endswith("partial', None]"):
                    values[0][0] = values[0][0].replace("partial", "none")
                return values

        remote = Elsewhere(**attrs.asdict(processes, recurse=False))
        return write(tmp_path / "it", tensors_of(processes.rank), DATA, processes=remote)

    for error in together(3, write_one):
        with pytest.raises(
            UnwritableCheckpointError, match=r"rank 1 cannot find it: .* file system that all proc"
        ):
            raise error
    assert os.listdir(tmp_path) == []


# --- reading ---


def test_a_file_is_verified_if_a_part_of_it_is_needed(saved):
    flip(saved / SECOND)
    name = "state/model/weights/weight"

    def rows(start, size, **options):
        wanted = {name: Region((start, 0), (size, 4)), "state/model/weights/bias": Region([0], [0])}
        return read_shards(saved, wanted, **options).tensors[name]

    with pytest.raises(DamagedCheckpointError, match=f"{SECOND} is damaged"):
        rows(1, 2)
    with pytest.raises(DamagedCheckpointError, match=f"{SECOND} is damaged"):
        read(saved)
    assert torch.equal(rows(0, 2), WEIGHT[:2])
    assert torch.equal(rows(1, 2, verify=False), WEIGHT[1:3])
    assert [found.path for found in find(saved.parent)[0]] == [saved]
    assert SECOND in str(find(saved.parent, thorough=True)[1][0].error)


def test_parts_are_read_from_a_checkpoint_with_one_file(tmp_path):
    write(tmp_path / "it", {"w": WEIGHT, "b": BIAS}, {"a": 1})

    found = read_shards(tmp_path / "it", {"w": Region((1, 2), (3, 1))})

    assert torch.equal(found.tensors["w"], WEIGHT[1:4, 2:3])
    assert torch.equal(found.tensors["b"], BIAS)
    assert found.data == {"a": 1}


def test_a_region_that_a_tensor_does_not_have_is_refused(saved):
    wanted = {"state/model/weights/weight": Region((5, 0), (2, 4))}
    with pytest.raises(MismatchError, match=r"has shape \[6, 4\] in the checkpoint, which has no"):
        read_shards(saved, wanted)


@pytest.mark.parametrize("name", ["state.json", "manifest.json", SECOND])
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_refused_by_name(saved, name, kind):
    damage, message = DAMAGES[kind]
    damage(saved / name)

    one = saved.parent / "one"
    for use in (read, verify, lambda path: read_shards(path, {}), lambda p: consolidate(p, one)):
        with pytest.raises(DamagedCheckpointError, match=message.format(name)):
            use(saved)
    assert not one.exists()
    assert find(saved.parent, thorough=True)[0] == []


def seal(folder, change):
    """Change the header of the second file, and hash everything again."""
    raw = (folder / SECOND).read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    blocks = json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])
    result = change(header, blocks)
    blocks = blocks if result is None else result
    header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(blocks)}
    (folder / SECOND).write_bytes(safetensors_of(header) + raw[end:])
    edit_manifest(folder)


def one_dimension(header, blocks):
    header[NAME]["shape"], blocks[NAME]["saved_offsets"] = [8], [0]


NAME = "state/model/weights/weight"
WRONG = {
    "list": (lambda header, blocks: [1], "does not have the names of its tensors"),
    "none": (lambda header, blocks: {}, "does not have the names of its tensors"),
    "more": (lambda header, blocks: blocks.update(x={}), "does not have the names"),
    "keys": (lambda header, blocks: blocks[NAME].clear(), "invalid saved_offsets None"),
    "number": (lambda header, blocks: blocks.update({NAME: 1}), "invalid saved_offsets 1"),
    "true": (lambda header, blocks: blocks[NAME].update(saved_offsets=[True, 0]), "invalid saved"),
    "negative": (
        lambda header, blocks: blocks[NAME].update(saved_offsets=[-2, 0]),
        "invalid saved",
    ),
    "rank": (lambda header, blocks: blocks[NAME].update(saved_offsets=[2]), "invalid saved_off"),
    "overlap": (lambda header, blocks: blocks[NAME].update(saved_offsets=[1, 0]), "overlap, leave"),
    "gap": (lambda header, blocks: blocks[NAME].update(saved_offsets=[9, 0]), "leave a gap"),
    "huge": (lambda header, blocks: blocks[NAME].update(saved_offsets=[2**62, 0]), "leave a gap"),
    "dtype": (lambda header, blocks: header[NAME].update(dtype="I32"), "differ in dtype"),
    "shape": (lambda header, blocks: header[NAME].update(shape=[4, 2]), "overlap, leave a gap"),
    "dimensions": (one_dimension, "overlap, leave a gap"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_headers_that_do_not_match_one_another_are_refused(saved, change, message):
    seal(saved, change)

    for function in (verify, lambda path: read_shards(path, {}, verify=False)):
        with pytest.raises(DamagedCheckpointError, match=message):
            function(saved)


# --- readers ---


def test_all_commands_read_it(saved, capsys):
    description = describe(saved)
    assert description["manifest"]["files"] == 3
    assert [tensor["shape"] for tensor in description["tensors"]] == [[4], [6, 4]]
    assert "bytes in 3 files" in format_description(description)
    assert is_checkpoint(saved)
    assert describe_all(saved.parent)["checkpoints"][0]["name"] == "it"
    assert main(["checkpoint", "verify", str(saved)]) == 0
    one = saved.parent / "one"
    assert main(["checkpoint", "consolidate", str(saved), str(one)]) == 0
    assert main(["checkpoint", "consolidate", str(saved), str(one)]) == 1
    assert main(["checkpoint", "consolidate", str(saved), str(one), "--overwrite"]) == 0
    assert "exists: use another folder" in capsys.readouterr().err
    assert verify(one).schema == 4
    assert (one / "state.json").read_bytes() == (saved / "state.json").read_bytes()


def test_weights_are_loaded_from_it(saved):
    model = nn.Linear(4, 6)
    bias = {"state/model/weights/bias": torch.zeros(6)}
    together(
        3,
        lambda p: write(saved, {**tensors_of(p.rank), **bias}, DATA, processes=p, overwrite=True),
    )

    assert load_weights(model, saved).loaded == ("weight", "bias")
    assert torch.equal(model.weight, WEIGHT)


def test_it_is_deleted_whole(saved):
    assert not delete(saved, "another")
    assert delete(saved, "a")
    assert os.listdir(saved.parent) == []
