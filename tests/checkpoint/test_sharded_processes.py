"""Checkpoints that processes write and read with DTensors, on gloo."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from composable.checkpoint import (
    consolidate,
    import_dcp,
    load_weights,
    pack,
    read,
    read_shards,
    unpack,
    write,
)
from composable.distributed import Processes
from composable.distributed.starting import join_processes
from tests.checkpoint.trees import bits, same, tensor
from tests.support.processes import run


def cases(size):
    """Return tensors by name, with the mesh and the placements of each."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    row = init_device_mesh("cpu", (size,))
    image = tensor(torch.float32, (6, 3, 2, 2)).contiguous(memory_format=torch.channels_last)
    found = {
        "even": (tensor(torch.float32, (8, 3)), row, [Shard(0)]),
        "uneven": (tensor(torch.float64, (5, 3)), row, [Shard(0)]),
        "tiny": (tensor(torch.bfloat16, (1, 3)), row, [Shard(0)]),
        "columns": (tensor(torch.int64, (3, 7)), row, [Shard(1)]),
        "equal": (tensor(torch.float16, (4,)), row, [Replicate()]),
        "image": (image, row, [Shard(0)]),
        "complex": (tensor(torch.complex128, (5, 2)), row, [Shard(0)]),
        "number": (tensor(torch.float32, ()), row, [Replicate()]),
        "empty": (tensor(torch.float32, (0, 3)), row, [Shard(0)]),
    }
    if size == 4:
        grid, some = init_device_mesh("cpu", (2, 2)), DeviceMesh("cpu", [0, 2])
        strided = [_StridedShard(0, split_factor=2), Shard(0)]
        found |= {
            "hybrid": (tensor(torch.float32, (9, 5)), grid, [Replicate(), Shard(0)]),
            "both": (tensor(torch.float32, (9, 5)), grid, [Shard(0), Shard(1)]),
            "twice": (tensor(torch.float32, (9, 5)), grid, [Shard(0), Shard(0)]),
            "strided": (tensor(torch.float32, (8, 5)), grid, strided),
            "some": (tensor(torch.float32, (9, 5)), some, [Shard(0)]),
        }
    return found


def divided(size, like=None):
    """Return the tree of a run: its DTensors, plain tensors and other values."""
    from torch.distributed.tensor import distribute_tensor

    own = {
        name: distribute_tensor(
            torch.zeros_like(whole) if like else whole, mesh, placements, src_data_rank=None
        )
        for name, (whole, mesh, placements) in cases(size).items()
    }
    own |= {"plain": torch.arange(9), "tied": own["tiny"]}
    return {"state": own, "step": 3, "size": size}


def save(folder):
    """Write the tensors of this number of processes, and the whole ones beside them."""
    processes = join_processes()
    load_into_divided_model(folder)
    tree = divided(processes.size)
    write(Path(folder, "sharded"), *pack(tree), processes=processes, info={"batch": 3})
    whole = {name: value for name, (value, *_) in cases(processes.size).items()}
    if processes.is_main:
        whole |= {"plain": torch.arange(9), "tied": whole["tiny"]}
        write(Path(folder, "whole"), *pack({**tree, "state": whole}), info={"batch": 3})
    dcp.save({"state": of_all(tree["state"]), "step": 3}, checkpoint_id=Path(folder, "dcp"))


def load_into_divided_model(folder):
    """Load the weights of a file into a model that is divided among the processes."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model, weights = nn.Linear(3, 5), nn.Linear(3, 5).state_dict()
    file = Path(folder, f"{Processes.current().rank}.pt")
    torch.save(weights, file)
    fully_shard(model)
    assert load_weights(model, file).loaded == ("weight", "bias")
    for name, value in model.state_dict().items():
        assert torch.equal(value.full_tensor(), weights[name])


def of_all(tensors):
    """Return the tensors that all processes have a part of."""
    return {name: value for name, value in tensors.items() if name != "some"}


def load(folder):
    """Read tensors that another number of processes wrote, as this one divides them."""
    processes = join_processes()
    expected = read(Path(folder, "whole"))
    expected = unpack(expected.tensors, expected.data)["state"]
    like, _ = pack(divided(processes.size, like=True))
    found = read_shards(Path(folder, "sharded"), like, verify=processes.size == 2)
    tree = unpack(found.tensors, found.data)["state"]
    assert tree.keys() == expected.keys()
    assert tree["tied"] is tree["tiny"]
    own = cases(processes.size)
    own["tied"] = own["tiny"]
    for name, value in tree.items():
        if name in own:  # one that this number of processes divides
            assert type(value).__name__ == "DTensor", name
            assert value.placements == tuple(own[name][2]), name
            if name == "some" and processes.rank % 2:
                continue
            value = value.full_tensor()
        assert value.dtype == expected[name].dtype
        assert value.shape == expected[name].shape
        assert bits(value) == bits(expected[name]), name
    blank = divided(processes.size, like=True)["state"]
    blank = {f"state/{name}": blank[name] for name in of_all(own) if name in expected}
    blank.pop("state/tied")  # stored once
    blank.pop("state/complex")  # stored as pairs of numbers
    blank.pop("state/image")  # stored with its dimensions in the order of its memory
    dcp.load(blank, storage_reader=dcp.HuggingFaceStorageReader(str(Path(folder, "sharded"))))
    for name, value in blank.items():
        assert bits(value.full_tensor()) == bits(expected[name.removeprefix("state/")]), name
    assert tree["image"].stride() == own["image"][0].stride()


def load_and_save(other, folder):
    load(other)
    save(folder)


LIMIT = 240


@pytest.mark.slow
def test_dtensors_are_written_and_read_on_any_number_of_processes(tmp_path):
    two, four = tmp_path / "2", tmp_path / "4"
    two.mkdir()
    four.mkdir()
    run(save, 2, two, seconds=LIMIT)
    run(load_and_save, 4, two, four, seconds=LIMIT)
    run(load, 2, four, seconds=LIMIT)

    for folder in (two, four):
        sharded, whole = read(folder / "sharded"), read(folder / "whole")
        assert same(unpack(sharded.tensors, sharded.data), unpack(whole.tensors, whole.data))
        one = read(consolidate(folder / "sharded", folder / "one"))
        assert one.manifest.files == whole.manifest.files
        theirs = read(import_dcp(folder / "dcp", folder / "imported"))
        tree, expected = unpack(theirs.tensors, theirs.data), unpack(whole.tensors, whole.data)
        assert tree["step"] == 3
        assert same(tree["state"], {name: expected["state"][name] for name in tree["state"]})
