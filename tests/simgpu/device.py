"""Two simulated GPUs, which must be imported before torch.

import tests.simgpu.device as gpu
import torch

torch.ones(3, device="cuda:1").sum().item()
assert gpu.waits() == {"aten::_local_scalar_dense": 1}
"""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from tests.simgpu.extension import KIND, core

importlib.import_module(f"tests.simgpu.{KIND}").install()


def waits() -> dict[str, int]:
    """Return how often the host waited for a device since `reset`, by operation."""
    return dict(core.waits())


def races() -> list[str]:
    """Return each use of memory that doesn't wait for an earlier use on another stream."""
    return list(core.races())


def calls() -> dict[str, int]:
    """Return how often functions of streams and events were called."""
    return dict(core.calls())


def reset() -> None:
    """Forget the waits, the races and the calls."""
    core.reset()


def full_memories(device: int = 0) -> int:
    """Return how many allocations found the memory full."""
    return int(core.memory_stats(device)["num_ooms"])


@contextmanager
def memory_limit(size: int, device: int = 0) -> Iterator[None]:
    """Let a device allocate only so many bytes in addition to those in use."""
    gc.collect()  # what is freed later would be memory to use
    core.set_limit(device, core.memory_stats(device)["allocated_bytes.all.current"] + size)
    try:
        yield
    finally:
        core.set_limit(device, -1)


@contextmanager
def fails_in(allocations: int, device: int = 0) -> Iterator[None]:
    """Let one allocation fail, after so many that don't."""
    core.fail_in(device, allocations)
    try:
        yield
    finally:
        core.fail_in(device, -1)


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill memory that is allocated with NaN."""
    core.set_poison(True)
    try:
        yield
    finally:
        core.set_poison(False)


__all__ = [
    "KIND",
    "calls",
    "fails_in",
    "full_memories",
    "memory_limit",
    "poisoned",
    "races",
    "reset",
    "waits",
]
