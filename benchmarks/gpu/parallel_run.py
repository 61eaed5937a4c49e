"""Train in several processes, be killed, resume, and compare: see `features.processes`."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.runs import check_equal, network, trainer
from benchmarks.gpu.setting import Setting
from composable import Callback, Trainer
from composable.distributed import DDP, FSDP2, Processes
from composable.distributed.starting import join_processes

STRATEGIES: dict[str, Any] = {
    "ddp": DDP(),
    "exact": DDP(exact=True),
    "fsdp2": FSDP2(),
    "fsdp2-meta": FSDP2(),
    "hsdp-meta": FSDP2(replicas=2),
}
"""Strategies by their names; one ending in "-meta" has a model from the meta device."""

KILLED_AT = 9  # of 12 batches; 6 are saved


class Killed(Callback):
    """Kills its process in the second epoch."""

    def batch_end(self, state: Any, logger: Any) -> None:
        """Kill at a batch."""
        if state.timestamp.batch == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def main(strategy: str, device: str, size: str, folder: str, stage: str) -> None:
    """Train until the processes are killed, or resume; rank 0 writes what was found."""
    setting = Setting(device, size)
    join_processes()
    options: dict[str, Any] = {"parallel": STRATEGIES[strategy], "device": device}

    def run(**more: Any) -> Trainer:
        with torch.device("meta" if strategy.endswith("-meta") else "cpu"):
            model = network(setting)
        return trainer(setting, model, **options, **more)

    saved = {"save_folder": Path(folder) / "run", "autoresume": True}
    if stage == "kill":
        run(**saved, callbacks=[Killed()]).fit()
    whole = _weights(run())
    check_equal(_weights(run()), whole, "a second run")
    check_equal(_weights(run(**saved)), whole, "a resumed run")
    processes = Processes.current()
    if processes.is_main:
        found = {"ranks": processes.size}
        (Path(folder) / "result.json").write_text(json.dumps(found))


def _weights(run: Any) -> dict[str, Tensor]:
    run.fit()
    with run._run.engine.whole():
        return {name: one.cpu().clone() for name, one in run.state.model.state_dict().items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
