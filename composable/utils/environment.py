"""What a run ran on: versions, platform, and the commit of the code."""

import platform
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from composable._version import __version__

__all__ = ["describe_environment"]


def describe_environment() -> dict[str, Any]:
    """Versions, platform, threads, the command, and the commit of the code, as plain values.

    What makes bits differ between two machines is among it: the version of PyTorch, the number of
    threads, the processor, the GPU.

    Example:
        >>> from composable.utils.environment import describe_environment
        >>> sorted(describe_environment()["versions"])
        ['composable', 'cuda', 'python', 'torch']
    """
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "versions": {
            "composable": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
        },
        "platform": platform.platform(),
        "processor": platform.machine(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "num_threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "command": list(sys.argv),
        "commit": _commit(Path.cwd()),
    }


@lru_cache(maxsize=8)
def _commit(folder: Path) -> str | None:
    """The commit at hand; None where there is none, or no git."""
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip() or None
