"""Print a hash of the trained weights of ten runs, to check that a change keeps their bits.

    python -m tools.run_hashes > before.txt
    python -m tools.run_hashes | diff before.txt -

The bits depend on the processor and the version of PyTorch, so compare the hashes of one machine.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from composable import Trainer
from composable.algorithms import EMA, SAM, BlurPool, MixUp
from composable.distributed import DDP, FSDP2
from tests.support import hugging_face, parallel_runs
from tests.support.processes import run


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
    """Return the hash of a run that is stopped in an epoch, and resumed."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"folder": folder, "algorithms": [MixUp(), EMA(half_life="2ba")]}
        fit({**options, "callbacks": [parallel_runs.StopAt(4, 0)]})
        return fit(options)


RUNS: dict[str, Callable[[], str]] = {
    "plain": partial(fit, {}),
    "EMA and BlurPool": partial(fit, {"algorithms": [EMA(half_life="2ba"), BlurPool()]}),
    "MixUp in shards": partial(fit, {"algorithms": [MixUp()], "parallel": DDP(shards=4)}),
    "accumulation": partial(fit, {"grad_accum": 2, "accumulate_batches": 2}),
    "stream": partial(fit, {"kind": "stream"}),
    "SAM": partial(fit, {"algorithms": [SAM()]}),
    "Transformers": transformers,
    "two processes": partial(fit, {"parallel": DDP(shards=2, exact=True)}, 2),
    "FSDP2": partial(fit, {"parallel": FSDP2(shards=2), "model": parallel_runs.plain_net}, 2),
    "resumed": resumed,
}


def main() -> None:
    """Print a line for each run."""
    for name, found in RUNS.items():
        print(f"{found()}  {name}", flush=True)


if __name__ == "__main__":
    main()
