"""The parts of torch.cuda that PyTorch's build for the CPU lacks."""

from types import SimpleNamespace
from typing import Any

import torch

from tests.simgpu import messages
from tests.simgpu.extension import core
from tests.simgpu.streams import (
    MEMORY,
    PROPERTIES,
    Event,
    Stream,
    current_stream,
    default_stream,
    exchange_device,
    get_sync_debug_mode,
    index_of,
    set_stream,
    set_sync_debug_mode,
)

DEVICES = core.device_count()
HISTORY: list[tuple[Any, ...]] = []
"""Arguments of the calls that record allocations, or stop to: none is recorded."""


def install() -> None:
    """Put the functions where torch.cuda looks for them."""
    for name, function in C_FUNCTIONS.items():
        setattr(torch._C, f"_cuda_{name}", function)
    torch._C._has_cuda = True
    cuda = torch.cuda
    for name, part in CUDA.items():
        setattr(cuda, name, part)
    for part in (Stream, Event, current_stream, default_stream, set_stream):
        setattr(cuda, part.__name__, part)
        setattr(cuda.streams, part.__name__, part)
    cuda.memory.mem_get_info = CUDA["mem_get_info"]
    torch.version.cuda = "simulated"
    torch.backends.cuda.is_built = lambda: True
    messages.install()
    storage = torch.UntypedStorage
    storage.cuda, storage.to, storage.clone = _storage_cuda, _storage_to, _storage_clone
    storage.resize_ = _storage_resize_


def _initialize() -> None:
    core.initialize()
    torch.cuda.default_generators = tuple(map(core.default_generator, range(DEVICES)))


def memory_stats(device: int) -> dict[str, Any]:
    """Return the statistics of the memory, as PyTorch's C function does: nested."""
    result: dict[str, Any] = {}
    for name, value in core.memory_stats(device).items():
        *path, last = name.split(".")
        inner = result
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    for pools in result.values():
        if isinstance(pools, dict):
            pools |= {pool: dict.fromkeys(pools["all"], 0) for pool in ("large_pool", "small_pool")}
    for name in ("oversize_allocations", "oversize_segments"):
        result[name] = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    names = ("num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size")
    return result | dict.fromkeys(names, 0)


def _set_memory_fraction(part: float, device: int) -> None:
    core.set_limit(device, -1 if part >= 1 else int(part * MEMORY))


# Functions of torch._C, without their prefix `_cuda_`.
C_FUNCTIONS = {
    "CUDAAllocator_AllocatorState": object,
    "attach_out_of_memory_observer": core.observe_full_memory,
    "emptyCache": lambda *arguments: None,
    "exchangeDevice": exchange_device,
    "getAllocatorBackend": lambda: "simulated",
    "getArchFlags": lambda: "sm_80",
    "getCompiledVersion": lambda: 0,
    "getCurrentRawStream": lambda device: 0,
    "getCurrentStream": lambda device: (0, device, 1),
    "getDefaultStream": lambda device: (0, device, 1),
    "getDevice": core.current_device,
    "getDeviceCount": lambda: DEVICES,
    "get_sync_debug_mode": get_sync_debug_mode,
    "hasPrimaryContext": lambda device: True,
    "init": _initialize,
    "isCurrentStreamCapturing": lambda: False,
    "isInBadFork": core.is_bad_fork,
    # Another object than exchangeDevice: Dynamo takes two that are one for a mistake.
    "maybeExchangeDevice": lambda index: exchange_device(index),
    "memorySnapshot": lambda *arguments: {
        "segments": [],
        "device_traces": [[] for _ in range(DEVICES)],
        "allocator_settings": {},
        "external_annotations": [],
    },
    "memoryStats": memory_stats,
    "record_memory_history": lambda *arguments: HISTORY.append(arguments),
    "record_memory_history_legacy": lambda *arguments, **options: None,
    "resetAccumulatedMemoryStats": core.reset_accumulated,
    "resetPeakMemoryStats": core.reset_peaks,
    "setDevice": core.set_device,
    "setMemoryFraction": _set_memory_fraction,
    "set_sync_debug_mode": set_sync_debug_mode,
    "synchronize": lambda: core.synchronize(core.current_device()),
}

# Attributes of torch.cuda, which took them from torch._C when it was imported, or needs a driver.
CUDA = {
    "_cudart": SimpleNamespace(),
    "_exchange_device": C_FUNCTIONS["exchangeDevice"],
    "_get_device_properties": lambda device=None: PROPERTIES,
    "_is_in_bad_fork": core.is_bad_fork,
    "_maybe_exchange_device": C_FUNCTIONS["maybeExchangeDevice"],
    "device_count": lambda: DEVICES,
    "get_device_properties": lambda device=None: PROPERTIES,
    "is_current_stream_capturing": lambda: False,
    "mem_get_info": lambda device=None: torch.accelerator.get_memory_info(index_of(device)),
}


# --- storages, which C++ makes for the devices it was built for ---

_clone, _to = torch.UntypedStorage.clone, torch.UntypedStorage.to
_resize_ = torch.UntypedStorage.resize_


def _as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _storage_cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
    to = torch.device("cuda", index_of(device))
    return _as_bytes(storage).to(to, non_blocking=non_blocking).untyped_storage()


def _storage_to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
    if torch.device(device).type == "cuda":
        return _storage_cuda(storage, device, non_blocking)
    return _to(storage, device=device, non_blocking=non_blocking)


def _storage_clone(storage: Any) -> Any:
    if storage.device.type != "cuda":
        return _clone(storage)
    return _as_bytes(storage).clone().untyped_storage()


def _storage_resize_(storage: Any, size: int) -> Any:
    if storage.device.type != "cuda":
        return _resize_(storage, size)
    core.resize_storage(_as_bytes(storage), size)
    return storage
