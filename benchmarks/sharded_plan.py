"""Measure what a process does before it writes its part of a sharded checkpoint.

    python benchmarks/sharded_plan.py [--processes 256] [--tensors 2000] [--replicas 1]

The processes are simulated: this one is rank 0, and receives from each what it sends itself. Times
are CPU times, without those of the network.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from composable.checkpoint._together import divide
from composable.checkpoint.request import as_request
from composable.distributed import Processes

received = 0
"""The bytes that this process received."""


@attrs.frozen
class Simulated(Processes):
    """A process that receives from each other one what it sends."""

    def gather(self, value: Any) -> list[Any]:
        return [self.broadcast(value) for _ in range(self.size)]

    def broadcast(self, value: Any) -> Any:
        global received
        raw = json.dumps(value)
        received += len(raw)
        return json.loads(raw)


def main() -> None:
    """Measure and print the bytes and the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=256)
    parser.add_argument("--tensors", type=int, default=2000)
    parser.add_argument("--replicas", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=given.processes)
    mesh = init_device_mesh("cpu", (given.replicas, given.processes // given.replicas))
    tensors = {
        f"state/model/weights/transformer.layers.{n}.attention.projection.weight": (
            DTensor.from_local(torch.ones(1, 8), mesh, [Replicate(), Shard(0)], run_check=False)
        )
        for n in range(given.tensors)
    }

    def check() -> Any:
        return as_request(Path("it"), tensors, None, overwrite=False, info=None)

    began = time.process_time()
    divide(check, Simulated(0, given.processes, 0))
    seconds = time.process_time() - began
    print(f"{received / 1e6:.2f} MB received, {seconds:.2f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
