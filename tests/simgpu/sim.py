"""The module torch.sim, of an accelerator that is not CUDA."""

from types import ModuleType
from typing import Any

import torch

from tests.simgpu.extension import KIND, core
from tests.simgpu.streams import (
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

GENERATORS = tuple(map(core.default_generator, range(core.device_count())))


class DeviceContext:
    """Sets the device within a block, as torch.cuda.device does."""

    def __init__(self, device: Any) -> None:
        self.index = -1 if device is None else index_of(device)

    def __enter__(self) -> None:
        self.before = exchange_device(self.index)

    def __exit__(self, *error: object) -> None:
        exchange_device(self.before)


def install() -> None:
    """Name the backend, and register its module."""
    torch.utils.rename_privateuse1_backend(KIND)
    module = ModuleType(f"torch.{KIND}")
    vars(module).update(PARTS)
    torch._register_device_module(KIND, module)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True
    )


def _manual_seed_all(seed: int) -> None:
    for one in GENERATORS:
        one.manual_seed(seed)


def _set_rng_state_all(states: list[torch.Tensor]) -> None:
    for one, state in zip(GENERATORS, states, strict=True):
        one.set_state(state)


def _memory(name: str) -> Any:
    return lambda device=None: core.memory_stats(index_of(device))[name]


# What torch.accelerator, torch.random and others call of a module that was registered.
PARTS = {
    "Event": Event,
    "Stream": Stream,
    "_is_in_bad_fork": core.is_bad_fork,
    "_lazy_init": core.initialize,
    "current_device": core.current_device,
    "current_stream": current_stream,
    "default_generators": GENERATORS,
    "default_stream": default_stream,
    "device": DeviceContext,
    "device_count": core.device_count,
    "empty_cache": lambda: None,
    "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
    "get_device_name": lambda device=None: PROPERTIES.name,
    "get_device_properties": lambda device=None: PROPERTIES,
    "get_rng_state": lambda device=KIND: GENERATORS[index_of(device)].get_state(),
    "get_rng_state_all": lambda: [one.get_state() for one in GENERATORS],
    "get_sync_debug_mode": get_sync_debug_mode,
    "is_available": lambda: True,
    "is_bf16_supported": lambda: True,
    "is_initialized": lambda: True,
    "manual_seed": lambda seed: GENERATORS[core.current_device()].manual_seed(seed),
    "manual_seed_all": _manual_seed_all,
    "max_memory_allocated": _memory("allocated_bytes.all.peak"),
    "memory_allocated": _memory("allocated_bytes.all.current"),
    "memory_stats": lambda device=None: core.memory_stats(index_of(device)),
    "reset_peak_memory_stats": lambda device=None: core.reset_peaks(index_of(device)),
    "set_device": lambda device: core.set_device(index_of(device)),
    "set_rng_state": lambda state, device=KIND: GENERATORS[index_of(device)].set_state(state),
    "set_rng_state_all": _set_rng_state_all,
    "set_stream": set_stream,
    "set_sync_debug_mode": set_sync_debug_mode,
    "stream": lambda stream: stream,
    "synchronize": lambda device=None: core.synchronize(index_of(device)),
}
