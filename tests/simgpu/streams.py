"""Streams and events as torch.cuda has them, and which device an argument means."""

from types import SimpleNamespace
from typing import Any

import torch

from tests.simgpu.extension import KIND, core

MEMORY = 1 << 34  # bytes of a device, as src/memory.h says
PROPERTIES = SimpleNamespace(
    name="Simulated GPU",
    major=8,
    minor=0,
    total_memory=MEMORY,
    multi_processor_count=1,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    gcnArchName="",
    uuid="simulated",
    L2_cache_size=1 << 22,
    is_integrated=False,
    is_multi_gpu_board=False,
)


def index_of(device: Any = None) -> int:
    """Return the number of a device, by default the current one."""
    found = device if isinstance(device, int) or device is None else torch.device(device).index
    return core.current_device() if found is None or found < 0 else found


def exchange_device(index: int) -> int:
    """Set the device, unless the number is negative, and return the one before."""
    before = core.current_device()
    if index >= 0:
        core.set_device(index)
    return before


class Stream(torch.Stream):
    """A stream, on which everything has ended."""

    def __new__(cls, device: Any = None, priority: int = 0, **options: Any) -> "Stream":
        if not options:
            options = {"device": torch.device(KIND, index_of(device)), "priority": priority}
        return super().__new__(cls, **options)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id


class Event(torch.Event):
    """An event, which has happened."""

    def __new__(cls, enable_timing: bool = False, **options: Any) -> "Event":
        return super().__new__(cls, device=KIND, enable_timing=enable_timing)


def current_stream(device: Any = None) -> Stream:
    """Return the stream on which a device works."""
    found = torch.accelerator.current_stream(torch.device(KIND, index_of(device)))
    return Stream(
        stream_id=found.stream_id,
        device_index=found.device_index,
        device_type=found.device_type,
    )


def default_stream(device: Any = None) -> Stream:
    """Return the first stream of a device."""
    kind = int(current_stream().device_type)
    return Stream(stream_id=0, device_index=index_of(device), device_type=kind)


def set_stream(stream: Any) -> None:
    """Make a stream the current one of its device."""
    if stream is not None:
        before = core.current_device()
        torch.accelerator.set_stream(stream)  # changes the current device, unlike torch.cuda's
        core.set_device(before)


def set_sync_debug_mode(mode: int | str) -> None:
    """Refuse operations that wait with "error" or 2; a warning isn't simulated."""
    core.forbid_waits(mode in (2, "error"))


def get_sync_debug_mode() -> int:
    """Return 2 if operations that wait are refused, or 0."""
    return 2 * core.forbids_waits()
