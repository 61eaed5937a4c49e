"""Runs of several processes in a folder of an object store."""

import os
from pathlib import Path
from typing import Any

from composable._support import object_stores
from composable.distributed.starting import join_processes
from tests.support import parallel_runs as runs
from tests.support.observers import Raise


def fit(
    environment: dict[str, str], homes: list[str], stop: int | None = None, **options: Any
) -> dict[str, Any]:
    """Train in a folder; of several disks, each process has its own.

    Args:
        environment: The address of the server, and the credentials.
        homes: The caches of the machines: one for all processes, or one for each.
        stop: The batch before which the machines are lost.
        options: Those of `parallel_runs.fit`.
    """
    rank = join_processes().rank
    os.environ.update(environment)
    home = Path(homes[rank % len(homes)])
    home.mkdir(exist_ok=True)
    os.chdir(home)
    os.environ["XDG_CACHE_HOME"] = "/proc/self/cwd"  # on each machine the same path
    os.environ["LOCAL_RANK"] = "0" if len(homes) > 1 else str(rank)
    object_stores.OPEN.clear()
    object_stores.WAITS = (0.0, 0.0)  # type: ignore[assignment]
    lost = Raise(KeyError("the machine is lost"), batch=-1 if stop is None else stop)
    return runs.fit(callbacks=[lost], **options)
