"""PyTorch's global generators of a computation that must leave them as they were."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch


@contextmanager
def preserving_generators(devices: Iterable[torch.device]) -> Iterator[Callable[[int], None]]:
    """Restore the global generators of the CPU and of devices at the end of a block.

    Other devices are neither read nor changed, so that the host does not wait for them.

    Args:
        devices: The devices of the computation; only accelerators matter.

    Yields:
        A function that seeds these generators. `torch.manual_seed` would seed all devices, which
        are not restored.
    """
    accelerators = {_with_index(device) for device in devices if device.type not in ("cpu", "meta")}
    generators = [torch.default_generator, *map(default_generator, accelerators)]
    states = [generator.get_state() for generator in generators]

    def seed(number: int) -> None:
        for generator in generators:
            generator.manual_seed(number)

    try:
        yield seed
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _with_index(device: torch.device) -> torch.device:
    """Return a device with a number: "cuda" is the current one."""
    if str(device) != device.type or device.type == "mps":
        return device
    return torch.device(device.type, torch.get_device_module(device).current_device())


def default_generator(device: torch.device) -> torch.Generator:
    """Return PyTorch's global generator of a device."""
    if device.type in ("cpu", "mps"):
        is_cpu = device.type == "cpu"
        return torch.default_generator if is_cpu else torch.mps._get_default_mps_generator()
    found: Sequence[torch.Generator] = torch.get_device_module(device).default_generators
    return found[_with_index(device).index]
