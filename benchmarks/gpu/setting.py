"""The device and the size of a part, and the rows of its results."""

import platform
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import attrs
import torch

from benchmarks.gpu.packages import Missing, describe_error

__all__ = ["Case", "Missing", "Row", "Setting", "run_cases"]

Row: TypeAlias = dict[str, Any]


@attrs.frozen
class Setting:
    """Where and how large a part runs."""

    device: torch.device = attrs.field(converter=torch.device)
    size: str = attrs.field(validator=attrs.validators.in_(("full", "tiny")))

    @property
    def is_tiny(self) -> bool:
        """Whether sizes are those of a test of the code."""
        return self.size == "tiny"

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.type == "cuda"

    def choose(self, full: Any, tiny: Any) -> Any:
        """Return the value for this size."""
        return tiny if self.is_tiny else full

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def environment(self) -> Row:
        """Describe the device and the software.

        Raises:
            Missing: There is no such device.
        """
        if self.is_cuda and not torch.cuda.is_available():
            raise Missing(f"torch {torch.__version__} finds no CUDA device")
        found = {
            "device": platform.processor() or platform.machine(),
            "size": self.size,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        if self.is_cuda:
            properties = torch.cuda.get_device_properties(self.device)
            found |= {
                "device": properties.name,
                "devices": torch.cuda.device_count(),
                "memory_gb": round(properties.total_memory / 1e9, 1),
                "cuda": torch.version.cuda,
                "driver": _driver(),
            }
        return found


def _driver() -> str:
    from subprocess import run

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = run(query, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip().partition("\n")[0] or "unknown"


Case: TypeAlias = Callable[[Setting], Row | None]
"""Checks or measures something, and returns what it found, or raises an error."""


def run_cases(cases: dict[str, Case], setting: Setting) -> Iterator[Row]:
    """Run cases, and return a row for each: its name, status, and values or error."""
    for name, case in cases.items():
        row: Row = {"case": name, "status": "passed"}
        try:
            row |= case(setting) or {}
        except (Exception, SystemExit) as error:  # the others are run all the same
            row |= describe_error(error)
        yield row
