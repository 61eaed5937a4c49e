"""The history of CUDA allocations, which PyTorch records for a whole process."""

import json
from pathlib import Path

import torch

from composable._support.paths import open_to_write, replacing
from composable._support.warn import warn_user

_recorders: dict[int, int] = {}  # by the identity of a callback: its number of entries


def record_allocations(callback: object, device: torch.device, max_entries: int) -> bool:
    """Record allocations until `stop_recording`, and return whether PyTorch can.

    Warns:
        UserWarning: It can't: the run is not on a CUDA device, or PyTorch has no such function.
    """
    try:
        if device.type != "cuda":
            raise AttributeError(f"the run is on the device {str(device)!r}")
        entries = max([max_entries, *_recorders.values()])
        # "python": the C++ part of each stack would take seconds to print.
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=entries)
    except AttributeError as error:
        warn_user(
            f"{type(callback).__name__} does nothing, because only the allocations of CUDA devices "
            f"are recorded: {error}.",
        )
        return False
    _recorders[id(callback)] = max_entries
    return True


def stop_recording(callback: object) -> None:
    """Stop, unless another callback still records."""
    if _recorders.pop(id(callback), None) is not None and not _recorders:
        torch.cuda.memory._record_memory_history(enabled=None)


def write_snapshot(path: Path, device: torch.device) -> None:
    """Write the allocations as JSON to a path, and a summary of them next to it as text."""
    summary = torch.cuda.memory_summary(device)
    snapshot = torch.cuda.memory._snapshot()
    with replacing(path) as partial:
        with open_to_write(partial.with_suffix(".txt"), "x") as file:
            file.write(summary)
        with open_to_write(partial, "x") as file:
            json.dump(snapshot, file)
