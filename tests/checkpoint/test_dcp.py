"""Exchange with torch.distributed.checkpoint: the same bits, and no code from the files."""

import os
import pickle
import time
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp

from composable.checkpoint import (
    CheckpointExistsError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    TensorShard,
    UnreadableCheckpointError,
    UnsavableError,
    UnwritableCheckpointError,
    export_dcp,
    import_dcp,
    load_weights,
    pack,
    read,
    unpack,
    write,
)
from composable.cli import main
from tests.checkpoint.sharding import together
from tests.checkpoint.trees import DTYPE_LIST, same, tensor

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
TREE = {
    "model": {"0.weight": tensor(torch.float32, (3, 4)), "0.bias": tensor(torch.float32, (3,))},
    "optim": {
        "state": [{"step": torch.tensor(3.0), "exp_avg": tensor(torch.bfloat16, (2, 2))}, 5],
        "lr": 0.5,
    },
    "kinds": {str(dtype): tensor(dtype, (2,)) for dtype in DTYPE_LIST},
    "image": tensor(torch.float32, (2, 3, 2, 2)).contiguous(memory_format=torch.channels_last),
    "empty": torch.empty(0, 3),
    "names": ["a", {"b": None}],
}


def save(folder, tree=TREE):
    """Write a distributed checkpoint from one process."""
    dcp.save(tree, checkpoint_id=folder, no_dist=True)
    return folder


def load(folder, tree):
    """Load a distributed checkpoint into a tree, as torch does."""
    dcp.load(tree, checkpoint_id=folder, no_dist=True)
    return tree


def tree_of(folder):
    contents = read(folder)
    return unpack(contents.tensors, contents.data)


def test_a_distributed_checkpoint_is_imported_as_it_was_saved(tmp_path):
    path = import_dcp(save(tmp_path / "theirs"), tmp_path / "ours")

    assert same(tree_of(path), TREE)
    model = nn.Sequential(nn.Linear(4, 3))
    assert load_weights(model, path, key="model").loaded == ("0.weight", "0.bias")


def test_exported_weights_are_imported_with_the_same_bits(tmp_path):
    path = write(tmp_path / "ours", *pack(TREE), info={"batch": 3})

    again = import_dcp(export_dcp(path, tmp_path / "theirs", key="model"), tmp_path / "again")

    assert same(tree_of(again), TREE["model"])
    assert sorted(os.listdir(tmp_path)) == ["again", "ours", "theirs"]


def test_torch_loads_the_weights_of_a_sharded_checkpoint(tmp_path):
    weight, bias = TREE["model"].values()
    data = pack({"state": {"model": {"weights": TREE["model"]}}})[1]

    def part(processes):
        name, at = "state/model/weights/0.weight", processes.rank
        own = TensorShard(weight[:, 2 * at : 2 * at + 2], weight.shape, (0, 2 * at))
        tensors = {name: own, "state/model/weights/0.bias": bias}
        return write(tmp_path / "it", tensors, data, processes=processes)

    assert together(2, part) == [tmp_path / "it"] * 2
    names = {"key": "state/model/weights", "prefix": "model."}
    weights = {name: torch.zeros_like(value) for name, value in TREE["model"].items()}
    assert same(
        load(export_dcp(tmp_path / "it", tmp_path / "w", **names), {"model": weights}),
        {"model": TREE["model"]},
    )
    assert same(load(export_dcp(tmp_path / "it", tmp_path / "v"), weights), TREE["model"])


def test_the_commands_copy(tmp_path, capsys):
    save(tmp_path / "theirs")
    copy = ["checkpoint", "import-dcp", str(tmp_path / "theirs"), str(tmp_path / "ours")]

    assert main([*copy, "--ignore", "optim*", "--ignore", "names*"]) == 0
    assert sorted(tree_of(tmp_path / "ours")) == ["empty", "image", "kinds", "model"]
    assert main(copy) == 1
    assert main([*copy, "--overwrite"]) == 0
    out = ["checkpoint", "export-dcp", str(tmp_path / "ours"), str(tmp_path / "weights")]
    assert main([*out, "--key", "model", "--prefix", "m."]) == 0
    assert main(out) == 1
    assert main([*out[:2], str(tmp_path / "none"), str(tmp_path / "x")]) == 2
    assert main(["checkpoint", "import-dcp", str(tmp_path), str(tmp_path / "x")]) == 2
    assert "exists: use another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"key": "names"}, MismatchError, "no mapping of weights"),
        ({"key": "none"}, MismatchError, "has no entry 'none'"),
        ({"key": "optim"}, MismatchError, "no mapping of tensors"),
        ({"key": "mixed"}, UnsavableError, "'n' is not a tensor"),
        ({"key": 3}, TypeError, "key=3 must be the path"),
        ({"prefix": 3}, TypeError, "prefix=3 must be a string"),
        ({"out": "ours"}, CheckpointExistsError, "exists: use another folder"),
        (
            {"out": "no/such", "key": "model"},
            UnwritableCheckpointError,
            "The parent folder must exist",
        ),
    ],
)
def test_an_export_that_is_not_possible_is_refused(tmp_path, arguments, error, message):
    tree = {**TREE, "mixed": {"w": torch.ones(2), "n": 3}}
    path = write(tmp_path / "ours", *pack(tree))
    out = tmp_path / arguments.pop("out", "theirs")

    with pytest.raises(error, match=message):
        export_dcp(path, out, **arguments)
    assert os.listdir(tmp_path) == ["ours"]


# --- errors ---


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def edit(folder, change):
    """Change the metadata of a distributed checkpoint."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(change(metadata, folder) or metadata))


def first(metadata):
    return next(iter(metadata.storage_data.values()))


def of_weight(metadata):
    return metadata.state_dict_metadata["model.0.weight"]


def move(metadata, folder):
    (folder / "__0_0.distcp").rename(folder.parent / "elsewhere")
    for info in metadata.storage_data.values():
        info.relative_path = "../elsewhere"


def enlarge(metadata, folder):
    size = torch.Size([2**40, 4])
    of_weight(metadata).size = of_weight(metadata).chunks[0].sizes = size


EDITS = {
    "evil": (lambda m, folder: Evil(folder / "executed"), "contains .*open"),
    "evil inside": (lambda m, f: setattr(m, "planner_data", Evil(f / "executed")), "contains"),
    "other class": (lambda m, f: setattr(m, "version", OrderedDict()), "contains collections"),
    "no metadata": (lambda m, f: [1], "not the metadata"),
    "path": (move, "'../elsewhere' is not the name of a file"),
    "gone": (lambda m, f: (f / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
    "cut": (lambda m, f: os.truncate(f / "__0_0.distcp", 99), "truncated"),
    "chunk": (lambda m, f: of_weight(m).chunks.clear(), "overlap or leave a gap"),
    "moved": (
        lambda m, f: setattr(of_weight(m).chunks[0], "sizes", torch.Size([2, 4])),
        "overlap or leave a gap",
    ),
    "huge": (enlarge, "not the metadata"),
    "large": (
        lambda m, f: setattr(of_weight(m).properties, "dtype", torch.complex128),
        "not a tensor with the shape and dtype",
    ),
    "dtype": (
        lambda m, f: setattr(of_weight(m).properties, "dtype", torch.int32),
        "not a tensor with the shape and dtype",
    ),
    "step": (lambda m, f: m.planner_data.update({"image": ("a", 10**9)}), "no valid path"),
    "twice": (lambda m, f: m.planner_data.update({"image": ("empty",)}), "path of two entries"),
    "inside": (
        lambda m, f: m.planner_data.update({"image": ("empty", "x")}),
        "path of two entries",
    ),
    "mixed": (lambda m, f: m.planner_data.update({"image": ("names", "x")}), "keys and indices"),
    "negative": (lambda m, f: setattr(first(m), "offset", -1), "are not sizes"),
    "other place": (lambda m, f: setattr(first(m), "offset", 10), "cannot be loaded"),
}


@pytest.mark.parametrize(("change", "message"), EDITS.values(), ids=EDITS)
def test_forged_metadata_are_refused_and_execute_nothing(tmp_path, change, message):
    folder = save(tmp_path / "theirs")
    edit(folder, change)

    with pytest.raises(DamagedCheckpointError, match=message):
        import_dcp(folder, tmp_path / "ours")
    assert not (folder / "executed").exists()
    assert not (tmp_path / "ours").exists()


def test_pickles_that_take_more_memory_than_their_size_are_refused(tmp_path):
    folder = save(tmp_path / "theirs")
    path, raw = folder / ".metadata", (folder / ".metadata").read_bytes()
    more = b"t" * 9  # tuples of values that are not there
    big = b"\x96" + (2**40).to_bytes(8, "little")  # a bytearray of this length
    for pickled in (raw[:-1] + more + b".", b"\x80\x05" + big + b".", b"\x80\x04", b"", raw[:-9]):
        path.write_bytes(pickled)
        with pytest.raises(DamagedCheckpointError, match="not the metadata"):
            import_dcp(folder, tmp_path / "ours")


def tuples_in_tuples(depth):
    """Return instructions that push a tuple of few bytes, and of 2 ** depth values."""
    twice = [b")\x94"]  # an empty tuple, number 0
    twice += [b"h%ch%c\x86\x94" % (i, i) for i in range(depth)]  # a pair of the one before
    return b"".join(twice)


INDEX = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n)\x81"
NESTED = {
    "a name": lambda many: INDEX + b"}X\x03\x00\x00\x00fqn" + many + b"sb",
    "a class": lambda many: many + b"X\x01\x00\x00\x00a\x93",
}


@pytest.mark.parametrize("where", NESTED)
def test_tuples_that_share_their_parts_take_no_time(where, tmp_path):
    folder = save(tmp_path / "theirs")
    pickled = b"\x80\x04}" + NESTED[where](tuples_in_tuples(40)) + b"K\x01s."
    assert len(pickled) < 400
    (folder / ".metadata").write_bytes(pickled)
    began = time.perf_counter()

    with pytest.raises(DamagedCheckpointError, match="not the metadata"):  # it took hours
        import_dcp(folder, tmp_path / "ours")
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("name", ["relative_path", "transform_descriptors", "offset"])
def test_values_that_share_their_parts_are_not_printed_whole(name, tmp_path):
    def change(metadata, folder):
        many = ((),)
        for _ in range(40):
            many = (many, many)
        setattr(first(metadata), name, many)

    folder = save(tmp_path / "theirs")
    edit(folder, change)
    began = time.perf_counter()

    with pytest.raises((DamagedCheckpointError, UnreadableCheckpointError)):
        import_dcp(folder, tmp_path / "ours")
    assert time.perf_counter() - began < 5


def test_an_object_that_is_not_plain_is_named_and_can_be_skipped(tmp_path):
    folder = save(tmp_path / "theirs", {"a": torch.ones(2), "b": {"c": slice(3)}})

    with pytest.raises(DamagedCheckpointError, match=r"entry 'b.c': .* ignore=\['b.c'\] skips it"):
        import_dcp(folder, tmp_path / "ours")
    assert same(tree_of(import_dcp(folder, tmp_path / "ours", ignore="b.*")), {"a": torch.ones(2)})


def test_other_requests_that_cannot_be_met_are_refused(tmp_path):
    folder = save(tmp_path / "theirs")
    edit(folder, lambda m, f: setattr(first(m), "transform_descriptors", ["zstd"]))
    with pytest.raises(UnreadableCheckpointError, match=r"extensions \['zstd'\], which are not"):
        import_dcp(folder, tmp_path / "ours")
    with pytest.raises(MissingCheckpointError, match="no distributed checkpoint at"):
        import_dcp(tmp_path, tmp_path / "ours")
    with pytest.raises(TypeError, match="ignore=3 must be a list of patterns"):
        import_dcp(folder, tmp_path / "x", ignore=3)
