"""Monitored runs that several processes train together: functions that those processes import."""

from typing import Any

from torch import Tensor

from composable.distributed import FSDP2
from composable.loggers import InMemoryLogger
from tests.support import parallel_runs as runs
from tests.support.observers import MONITORS

MEASURED = ("throughput/", "time/")


def fit(*, monitored: bool, **options: Any) -> dict[str, Any]:
    """Train, and return the hash of the weights and the last values that were logged."""
    log = InMemoryLogger()
    sharded = isinstance(options["parallel"], FSDP2)  # whose gradients are summed earlier
    chosen = [build for name, build in MONITORS.items() if not (sharded and name == "noise")]
    callbacks = [build() for build in chosen] if monitored else []
    found = runs.fit(callbacks=callbacks, loggers=[log], model=runs.plain_net, **options)
    latest = {
        name: value.item() if isinstance(value, Tensor) else value
        for name, value in log.latest.items()
        if not name.startswith(MEASURED)
    }
    return {"weights": found["weights"], "latest": latest}
