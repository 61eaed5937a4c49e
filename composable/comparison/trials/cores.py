"""The cores and devices of the machine, and the workers that they allow."""

import os
import platform
from contextlib import suppress
from pathlib import Path

import torch

__all__ = [
    "cuda_devices",
    "default_workers",
    "processor_name",
    "thread_variables",
    "usable_cores",
]

_CGROUP = Path("/sys/fs/cgroup")
_CPU_INFO = Path("/proc/cpuinfo")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def usable_cores() -> int:
    """Return the number of cores that this process may use: at least 1.

    It is limited by the affinity of the process, and by the quota of its container.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _quota()
    return max(1, count if quota is None else min(count, int(quota)))


def _quota() -> float | None:
    """Return the cores that the control group grants, or None if it sets no limit."""
    with suppress(OSError, ValueError):  # version 2
        limit, period = (_CGROUP / "cpu.max").read_text().split()
        return None if limit == "max" else float(limit) / float(period)
    with suppress(OSError, ValueError):  # version 1
        granted, of = (
            float((_CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text())
            for name in ("quota", "period")
        )
        return None if granted <= 0 else granted / of
    return None


def cuda_devices() -> list[str]:
    """Return the CUDA devices, as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [str(i) for i in range(count)] if given is None else given.split(",")
    return named[:count]


def processor_name(device: str) -> str:
    """Return the model of the GPU, or else of the CPU, as the system names it.

    Args:
        device: The device on which steps run, such as "cpu" or "cuda:0".
    """
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    with suppress(OSError, StopIteration):
        lines = _CPU_INFO.read_text().splitlines()
        model = next(line for line in lines if line.startswith("model name"))
        return f"{model.partition(':')[2].strip()} {device}"
    return f"{platform.processor() or platform.machine()} {device}"


def default_workers(threads: int) -> int:
    """Return the number of workers: one for each CUDA device, or else for each group of cores.

    Args:
        threads: The number of threads of a worker.
    """
    return len(cuda_devices()) or max(1, usable_cores() // threads)


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that set the number of threads of a process."""
    return dict.fromkeys(_THREADS, str(threads))
