"""Meshes of more processes than there are, as each of them sees them."""

import json
from contextlib import contextmanager

import attrs
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from composable.checkpoint._together import (
    compare_descriptions,
    describe_tensors,
    tensor_parts,
    writers_of,
)
from composable.checkpoint.shards import as_shard
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
