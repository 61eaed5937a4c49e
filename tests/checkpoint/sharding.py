"""Tensors that are divided among processes, and threads that stand for processes."""

import json
import threading
from typing import Any

import attrs
from hypothesis import strategies as st

from composable.checkpoint import TensorShard
from composable.checkpoint.shards import Region
from composable.distributed import Processes

LIMIT = 60.0
"""How long threads wait for one another, in seconds."""


@attrs.frozen
class Threads(Processes):
    """A process, as a thread."""

    values: Any = None
    barrier: Any = None

    def gather(self, value):
        self.values[self.rank] = json.dumps(value)
        self.barrier.wait(LIMIT)
        values = [json.loads(each) for each in self.values]
        self.barrier.wait(LIMIT)
        return values

    def broadcast(self, value):
        return self.gather(value)[0]


def together(size, function):
    """Call a function in threads that stand for processes; return the results or errors."""
    values, barrier = [None] * size, threading.Barrier(size)
    results = [None] * size

    def run(rank):
        try:
            results[rank] = function(Threads(rank, size, rank, values, barrier))
        except BaseException as error:
            results[rank] = error
            if isinstance(error, threading.BrokenBarrierError):
                raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@st.composite
def regions(draw, shape, most):
    """Divide a tensor of a shape into at most a number of blocks."""
    found = [Region.whole(shape)]
    for _ in range(draw(st.integers(0, most - 1))):
        block = found.pop(draw(st.integers(0, len(found) - 1)))
        dims = [dim for dim, size in enumerate(block.sizes) if size > 1]
        if not dims:
            found.append(block)
            continue
        dim = draw(st.sampled_from(dims))
        cut = draw(st.integers(1, block.sizes[dim] - 1))
        sizes, offsets = list(block.sizes), list(block.offsets)
        sizes[dim] = cut
        found.append(Region(offsets, sizes))
        sizes[dim], offsets[dim] = block.sizes[dim] - cut, block.offsets[dim] + cut
        found.append(Region(offsets, sizes))
    return found


@st.composite
def divisions(draw, shape, size):
    """Return the block of a tensor that each process has, or None for one that has none."""
    blocks = draw(regions(shape, size))
    ranks = draw(st.permutations(range(size)))
    own = [None] * size
    for position, rank in enumerate(ranks):  # each block at least once, and some on several
        if position < len(blocks):
            own[rank] = blocks[position]
        elif draw(st.booleans()):
            own[rank] = draw(st.sampled_from(blocks))
    return own


def shard(tensor, region):
    """Return the part of a tensor in a region, in memory of its own."""
    if region is None:
        if not tensor.ndim:
            return TensorShard(tensor, (), ())
        return TensorShard(tensor.new_empty((0,) * tensor.ndim), tensor.shape, (0,) * tensor.ndim)
    part = tensor[region.within(Region.whole(tensor.shape))]
    return TensorShard(part.clone(), tensor.shape, region.offsets)
