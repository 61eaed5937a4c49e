"""Compare the hashes of the trained weights of some runs with those recorded on such a machine.

    python -m tools.run_hashes            # exits with 1 if one differs
    python -m tools.run_hashes --record   # where a change of the weights is intended

The bits depend on the instructions of the processor and on the versions of the libraries, so
`run_hashes.json` has hashes by these. On a machine that it does not have, record those of the
commit before a change.
"""

import json
import platform
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from composable import Trainer
from composable.algorithms import EMA, SAM, BlurPool, MixUp
from composable.distributed import DDP, FSDP2
from tests.support import hugging_face, parallel_runs
from tests.support.processes import run

RECORD = Path(__file__).with_suffix(".json")


def fit(options: dict[str, Any], size: int = 1) -> str:
    """Return the hash of a run on images."""
    given = {"parallel": None, "metrics": None, **options}
    return str(run(_fit, size, given)[0]["weights"])


def _fit(options: dict[str, Any]) -> dict[str, Any]:
    return parallel_runs.fit(**options)


def transformers() -> str:
    """Return the hash of a run of a GPT-2 of Transformers, with padding and accumulation."""
    tokens = hugging_face.tokens(8, 12)
    labels = tokens.masked_fill(torch.arange(8) > torch.arange(12)[:, None], -100)
    trainer = Trainer(
        hugging_face.build("gpt2"),
        train_dataloader=[{"input_ids": tokens, "labels": labels}] * 3,
        optimizers=partial(torch.optim.AdamW, lr=3e-3),
        grad_accum=3,
        max_duration="2ep",
        seed=17,
        progress_bar=False,
    )
    return parallel_runs.digest(dict(trainer.fit().model.state_dict()))


def resumed() -> str:
    """Return the hash of a run that a signal ends in an epoch, and that is resumed."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"folder": folder, "algorithms": [MixUp(), EMA(half_life="2ba")]}
        fit({**options, "callbacks": [parallel_runs.SignalAt(4, 0)]})
        return fit(options)


RUNS: dict[str, Callable[[], str]] = {
    "plain": partial(fit, {}),
    "EMA and BlurPool": partial(fit, {"algorithms": [EMA(half_life="2ba"), BlurPool()]}),
    "MixUp in shards": partial(fit, {"algorithms": [MixUp()], "parallel": DDP(shards=4)}),
    "accumulation": partial(fit, {"grad_accum": 2, "accumulate_batches": 2}),
    "stream": partial(fit, {"kind": "stream"}),
    "SAM": partial(fit, {"algorithms": [SAM()]}),
    "Transformers": transformers,
    "float16": partial(fit, {"precision": "amp_fp16", "algorithms": [MixUp()]}),
    "two processes": partial(fit, {"parallel": DDP(shards=2, exact=True)}, 2),
    "two processes, overlapped": partial(fit, {"parallel": DDP(), "grad_accum": 2}, 2),
    "FSDP2": partial(fit, {"parallel": FSDP2(shards=2), "model": parallel_runs.plain_net}, 2),
    "resumed": resumed,
}


def machine() -> str:
    """Return what the bits of a run on one thread depend on, beside the code."""
    capability = torch.backends.cpu.get_cpu_capability()
    libraries = f"torch {torch.__version__}, transformers {version('transformers')}"
    instructions = blake2b(_instructions().encode(), digest_size=4).hexdigest()
    return f"{platform.machine()} {capability} {instructions}, {libraries}"


def _instructions() -> str:
    """Return the instructions of the processor, as Linux lists them; "" elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((one for one in lines if one.startswith(("flags", "Features"))), "")


def recorded() -> dict[str, str]:
    """Return the hashes that were recorded on such a machine, by the names of the runs."""
    found: dict[str, dict[str, str]] = json.loads(RECORD.read_text())
    return found.get(machine(), {})


def main(arguments: list[str]) -> int:
    """Print a line for each run, and return whether one differs from the record."""
    torch.set_num_threads(1)
    before, found = recorded(), {}
    for name, run_once in RUNS.items():
        found[name] = run_once()
        verdict = "recorded" if before.get(name) == found[name] else f"was {before.get(name)}"
        print(f"{found[name]}  {name}: {verdict}", flush=True)
    if "--record" in arguments:
        hashes = {**json.loads(RECORD.read_text()), machine(): found}
        RECORD.write_text(json.dumps(hashes, indent=2) + "\n")
        return 0
    return int(found != before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
