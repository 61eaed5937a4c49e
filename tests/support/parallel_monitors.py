"""Monitored runs that several processes train together: functions that those processes import."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composable import Timestamp
from composable.distributed import FSDP2
from composable.distributed.starting import join_processes
from composable.loggers import CSVLogger, InMemoryLogger, TensorBoardLogger
from tests.support import parallel_runs as runs
from tests.support.observers import MONITORS

MEASURED = ("system/", "throughput/", "time/")


def fit(*, monitored: bool, **options: Any) -> dict[str, Any]:
    """Train, and return the hash of the weights and the last values that were logged."""
    log = InMemoryLogger()
    sharded = isinstance(options["parallel"], FSDP2)  # whose gradients are summed earlier
    chosen = [
        build for name, build in MONITORS.items() if not (sharded and name in ("noise", "samples"))
    ]
    callbacks = [build() for build in chosen] if monitored else []
    found = runs.fit(callbacks=callbacks, loggers=[log], model=runs.plain_net, **options)
    latest = {
        name: value.item() if isinstance(value, Tensor) else value
        for name, value in log.latest.items()
        if not name.startswith(MEASURED)
    }
    return {"weights": found["weights"], "latest": latest}


def log_rank(folder: Path) -> None:
    """Log the rank for three batches, from each process."""
    rank = join_processes().rank
    for logger in (CSVLogger(folder / "metrics.csv"), TensorBoardLogger(folder / "events")):
        for batch in range(1, 4):
            logger.log_metrics({"rank": torch.tensor(rank)}, Timestamp(batch=batch))
        logger.state_dict()
        logger.close()
