"""Describe the environment of a run: versions, platform, and the commit of the code."""

import platform
import subprocess
import sys
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from composable._support.paths import open_regular
from composable._support.secrets import redact_command
from composable._version import __version__


def describe_environment(*, command: bool = True) -> dict[str, Any]:
    """Describe versions, platform, threads, command and commit, as plain values.

    Secrets in the command are redacted.

    Args:
        command: Include the command.

    The result includes the causes of bitwise differences between machines: the version of PyTorch,
    the number of threads, the processor and the GPU.

    Example:
        >>> from composable.runs.environment import describe_environment
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
        **({"command": redact_command(sys.argv)} if command else {}),
        "commit": _commit(Path.cwd()),
    }


def describe_script() -> dict[str, Any]:
    """Describe the running script, as plain values, so that it can be started again.

    `script` is None if there is none, as in a notebook. `module` is the argument of `python -m`, or
    None. Secrets in the arguments are redacted.

    Example:
        >>> from composable.runs.environment import describe_script
        >>> sorted(describe_script())
        ['arguments', 'cwd', 'executable', 'module', 'script', 'script_sha256']
    """
    main = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    script = None if file is None else Path(file).absolute()
    return {
        "script": None if script is None else str(script),
        "script_sha256": None if script is None else hash_file(script),
        "module": None if spec is None else spec.name,
        "arguments": redact_command(sys.argv[1:]),
        "cwd": str(Path.cwd()),
        "executable": sys.executable,
    }


def hash_file(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None if it cannot be read."""
    try:
        with open_regular(path) as file:
            return sha256(file.readall()).hexdigest()
    except OSError:
        return None


@lru_cache(maxsize=8)
def _commit(folder: Path) -> str | None:
    """Return the current commit, or None if there is none or git is not installed."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
