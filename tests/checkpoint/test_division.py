"""What each process writes of DTensors, on meshes that are simulated."""

import json
from contextlib import contextmanager

import attrs
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Partial, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from composable.checkpoint import UnsavableError
from composable.checkpoint._together import (
    compare_descriptions,
    describe_tensors,
    divide,
    tensor_parts,
    writers_of,
)
from composable.checkpoint.request import as_request
from composable.checkpoint.shards import Region, as_shard, cover, writes
from composable.distributed import Processes


@contextmanager
def rank_of(size, rank):
    """Be one of a number of processes, none of which communicates."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@attrs.define
class Traffic:
    """The bytes that a process receives."""

    received: int = 0


@attrs.frozen
class Counted(Processes):
    """A process whose messages are counted; all processes send what this one sends."""

    traffic: Traffic = attrs.field(factory=Traffic)

    def gather(self, value):
        self.traffic.received += len(json.dumps(value)) * self.size
        return json.loads(json.dumps([value] * self.size))

    def broadcast(self, value):
        self.traffic.received += len(json.dumps(value))
        return json.loads(json.dumps(value))


def written(size, build):
    """Return the regions of each tensor that any of the processes writes.

    Args:
        size: The number of processes.
        build: Builds the tensors of the process that it is called on.
    """
    first, regions = None, {}
    for rank in range(size):
        with rank_of(size, rank):
            tensors = build(rank)
            own = json.loads(json.dumps(describe_tensors("it", tensors)))
            first = own if first is None else first
            compare_descriptions(own, first, rank)
            shards = {name: as_shard(name, tensor) for name, tensor in tensors.items()}
            parts = tensor_parts(tensors, shards, first, rank, writers_of([{}] * size, first))
        for name, part in parts.items():
            regions.setdefault(name, []).append(part.region)
    return regions


def divided(shape, mesh, placements):
    """Return a `DTensor` of a shape."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(torch.ones(shape), mesh, placements, src_data_rank=None)


MESHES = {"FSDP": ((256,), [Shard(0)]), "HSDP": ((2, 128), [Replicate(), Shard(0)])}


@pytest.mark.parametrize(("mesh", "placements"), MESHES.values(), ids=MESHES)
def test_the_plan_of_256_processes_and_2000_tensors_is_small(tmp_path, mesh, placements):
    with rank_of(256, 0):
        grid = init_device_mesh("cpu", mesh)
        tensors = {
            f"state/model/weights/transformer.layers.{n}.attention.projection.weight": (
                DTensor.from_local(torch.ones(1, 2), grid, placements, run_check=False)
            )
            for n in range(2000)
        }
        processes = Counted(0, 256, 0)
        _, parts = divide(
            lambda: as_request(tmp_path / "it", tensors, {}, overwrite=False, info=None), processes
        )

    assert len(parts) == 2000 if mesh == (256,) else 900 < len(parts) < 1100
    assert 200_000 < processes.traffic.received < 1_000_000


CASES = {
    "even": ((8, 3), (4,), [Shard(0)]),
    "uneven": ((5, 3), (4,), [Shard(0)]),
    "fewer rows than processes": ((2, 3), (4,), [Shard(0)]),
    "copies": ((5, 3), (4,), [Replicate()]),
    "HSDP": ((5, 3), (2, 2), [Replicate(), Shard(0)]),
    "copies of copies": ((5, 3), (2, 2), [Replicate(), Replicate()]),
    "grid": ((5, 3), (2, 2), [Shard(0), Shard(1)]),
    "twice": ((9, 3), (2, 2), [Shard(0), Shard(0)]),
    "strided": ((8, 3), (2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
    "empty": ((0, 3), (4,), [Shard(0)]),
    "number": ((), (4,), [Replicate()]),
}


@pytest.mark.parametrize(("shape", "mesh", "placements"), CASES.values(), ids=CASES)
def test_the_processes_write_each_element_once(shape, mesh, placements):
    def build(rank):
        grid = init_device_mesh("cpu", mesh)
        return {f"{n}": divided(shape, grid, placements) for n in range(3)}

    for regions in written(4, build).values():
        assert cover(shape, regions)


def test_copies_in_other_meshes_are_not_written():
    def build(rank):
        rows = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))["tensor"]
        return {"w": divided((5, 3), rows, [Shard(0)])}

    assert written(4, build) == {"w": [Region((0, 0), (3, 3)), Region((3, 0), (2, 3))]}


def test_copies_are_written_by_different_processes():
    def build(rank):
        grid = init_device_mesh("cpu", (4,))
        return {f"layers.{n}": divided((3,), grid, [Replicate()]) for n in range(40)}

    counts = []
    for rank in range(4):
        with rank_of(4, rank):
            counts.append(sum(writes(name, tensor) for name, tensor in build(rank).items()))
    assert sum(counts) == 40
    assert min(counts) > 4


def test_another_division_than_that_of_rank_0_is_refused():
    descriptions = []
    for rank, placement in enumerate([Shard(0), Shard(1)]):
        with rank_of(2, rank):
            own = {"w": divided((4, 4), init_device_mesh("cpu", (2,)), [placement])}
            descriptions.append(describe_tensors("it", own))

    with pytest.raises(UnsavableError, match="'w' is divided in another way on rank 1 than on"):
        compare_descriptions(descriptions[1], descriptions[0], 1)


def test_a_tensor_that_is_not_summed_yet_is_refused():
    with rank_of(2, 0):
        mesh = init_device_mesh("cpu", (2,))
        tensor = DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False)
        with pytest.raises(UnsavableError, match="'w' is not summed over its processes yet"):
            as_shard("w", tensor)
