"""Every algorithm on several processes, compared with one process."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from composable._support import dtensors
from composable.distributed import DDP, FSDP2, Processes
from composable.distributed.starting import join_processes
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.cases import AlgorithmCase
from tests.support.outcomes import left_by
from tests.support.parallel_runs import digest
from tests.support.runs import PROBLEMS

STRATEGIES: dict[str, Callable[[], Any]] = {
    "DDP": lambda: DDP(shards=2, exact=True),
    "FSDP2": lambda: FSDP2(shards=2) if Processes.current().several else DDP(shards=2),
}

REFUSED_BY_FSDP2 = {
    "ChannelsLast": "only contiguous parameters can be sharded",
    "SWA": "cannot recompute the statistics of the batch norms of a sharded model",
    "SnapshotDistillation": "a sharded model does not allow",
    "NoOpModel": "doesn't support scalar parameters",
    "WindowWarmup": "model must not be wrapped in FSDPModule",
}
"""The algorithms that `FSDP2` refuses, and a part of the error."""

# SGD without momentum: a rounding error stays one.
_SGD = partial(torch.optim.SGD, lr=0.05)


def train(names: list[str], strategy: str) -> dict[str, Any]:
    """Train with each algorithm, until one cannot be trained; return what each run leaves."""
    several = join_processes().several
    results: dict[str, Any] = {}
    for case in [one for one in ALGORITHMS if one.name in names]:
        try:
            results[case.name] = _train(case, STRATEGIES[strategy]())
        except Exception as error:
            results[case.name] = f"{type(error).__name__}: {error}"
            if several and not dist.is_initialized():
                break
    return results


def _train(case: AlgorithmCase, parallel: Any) -> dict[str, Any]:
    problem = next(one for one in PROBLEMS if case.acts_on(one))
    loader = list(problem.batches())
    trainer = problem.trainer(
        loader=loader,
        algorithms=case.example,
        eval_dataloader=loader,
        optimizers=_SGD,
        check_effects=False,
        parallel=parallel,
    )
    left = left_by(trainer.fit())
    weights = {name: dtensors.whole(tensor) for name, tensor in left["weights"].items()}
    return {
        "bits": digest({"weights": weights, "memory": left["memory"], "averages": left["averages"]})
        if getattr(parallel, "exact", False)
        else "",
        "loss": left["metrics"]["eval"]["loss"],
        "norm": float(sum(t.double().square().sum() for t in weights.values())),
        "counts": left["counts"],
    }
