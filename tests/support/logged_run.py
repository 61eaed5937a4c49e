"""A run that logs to every back end at once, and may be killed.

    python -m tests.support.logged_run FOLDER PAUSE MOMENT...

For each moment a process starts or resumes the run, and its exit status is printed. `MOMENT` is the
name of an event and a number of batches, such as "after_save 3", at which the process kills itself,
or "end". A third word is a number of seconds to wait before, while training continues. `PAUSE` is
the number of seconds that a step takes longer.
"""

import os
import signal
import sys
import threading
import time
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from composable import Event
from tests.loggers.readers import BACK_ENDS, finish
from tests.support.data import batches
from tests.support.runs import make_trainer

BATCHES = 12
INTERVAL = 3  # of evaluations; the run is saved after each, and between them
SLOW = (
    *("comet_ml", "mlflow.store.tracking.sqlalchemy_store", "torch._dynamo", "trackio"),
    *("torch.utils.tensorboard", "wandb.sdk.launch"),
)


def quiet() -> None:
    """Set up the packages without the settings and the credentials of this machine."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "COMET_", "MLFLOW_", "HF_MLFLOW_")):
            del os.environ[name]
    os.environ.update(
        WANDB_SILENT="true",
        WANDB_ERROR_REPORTING="false",
        DO_NOT_TRACK="1",
        MLFLOW_DISABLE_TELEMETRY="true",
        COMET_LOGGING_CONSOLE="ERROR",
    )


def killer(moment: str) -> Any:
    """Return a callback that kills the process at a moment."""
    name, batch, seconds, *_ = [*moment.split(), "0", "0"]

    def kill(event: Event, state: Any, logger: Any) -> None:
        if event.value != name or state.timestamp.batch != int(batch):
            return
        if float(seconds):
            threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def train(folder: Path, moment: str, pause: float) -> None:
    """Train with all back ends, from the latest checkpoint."""
    killed = len(list(folder.glob("wandb/offline-run-*")))
    loggers = [one.make(folder) for one in BACK_ENDS.values()]

    def breathe(event: Event, state: Any, logger: Any) -> None:
        if event is Event.BATCH_END:
            time.sleep(pause)

    make_trainer(
        loggers=loggers,
        callbacks=[killer(moment), breathe],
        train_dataloader=batches(4 * INTERVAL),
        eval_dataloader=batches([4]),
        save_folder=folder / "checkpoints",
        save_interval="1ba",
        autoresume=True,
        max_duration=f"{BATCHES}ba",
        check_effects=False,
    ).fit()
    for logger in loggers:
        finish(logger, killed=killed)


if __name__ == "__main__":
    quiet()
    for package in SLOW:
        import_module(package)  # longer than the run, and once for all processes
    folder, pause, *moments = sys.argv[1:]
    context = get_context("fork")
    for moment in moments:
        process = context.Process(target=train, args=(Path(folder), moment, float(pause)))
        process.start()
        process.join()
        print(process.exitcode, flush=True)
