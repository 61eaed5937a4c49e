"""Runs in which a callback of one rank requests something: functions that processes import."""

from functools import partial
from typing import Any

import torch

from composable import Callback
from composable.core.control import Control
from composable.core.event import Event
from composable.distributed import DDP, Processes
from composable.distributed.starting import join_processes
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.runs import make_trainer

STOPS = {
    "fit_start": 0,
    "after_backward": 1,
    "after_scheduler_step": 1,
    "log": 1,
    "after_save": 2,
    "eval_end": 3,
    "epoch_end": 3,
}
"""Events, and the batch after which a request to stop at the first of them ends a run."""
WHOLE = 6
"""Number of batches of a run that nothing stops."""


def requesting(event: str, control: Control) -> Callback:
    """Build a callback that requests something at one event, on one rank."""
    rank = 0 if event == "log" else 1  # only rank 0 logs

    def hook(self: Callback, state: Any, logger: Any) -> Control | None:
        return control if Processes.current().rank == rank else None

    return type("Requesting", (Callback,), {event: hook})()


def stop_first_batch(event: Event, state: Any, logger: Any) -> Control | None:
    """Request a stop on rank 1, as a plain function."""
    here = Processes.current().rank == 1 and event is Event.BATCH_END
    return Control.STOP if here else None


def fit_each(folder: str) -> dict[str, int]:
    """Train with each callback, and return after which batch each run ended."""
    join_processes()
    callbacks: dict[str, Any] = {one: requesting(one, Control.STOP) for one in STOPS}
    callbacks["function"] = stop_first_batch
    callbacks["evaluate"] = requesting("log", Control.EVALUATE)
    callbacks["save"] = requesting("eval_end", Control.SAVE)
    return {name: _fit(one, name, folder) for name, one in callbacks.items()}


def _fit(callback: Any, name: str, folder: str) -> int:
    saved = {"save_folder": f"{folder}/{name}", "save_interval": "2ba"} if "save" in name else {}
    trainer = make_trainer(
        callbacks=[callback],
        loggers=[InMemoryLogger()],
        schedulers=partial(torch.optim.lr_scheduler.StepLR, step_size=1),
        step_schedulers_every_batch=True,
        eval_dataloader=batches(4),
        log_interval="1ba",
        parallel=DDP(),
        **saved,
    )
    return trainer.fit().timestamp.batch
