"""The plain values of a state as JSON: to look at, and to send elsewhere."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import attrs
import torch
import torch.distributed as dist

from composable._support import strict_json
from composable.core.time import TimeUnit, elapsed


def write_json(state: Any, indent: int | None = None) -> str:
    """Return the plain values of a state as JSON: see `State.to_json`."""
    return json.dumps(_plain(state), indent=indent, allow_nan=False, default=dict)


def is_main_process() -> bool:
    """Return whether this process has rank 0, or is the only one."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _plain(state: Any) -> dict[str, Any]:
    whole = state.max_duration
    return {
        "model": type(state.model).__name__,
        "optimizers": [type(optimizer).__name__ for optimizer in state.optimizers],
        "schedulers": [type(scheduler).__name__ for scheduler in state.schedulers],
        "device": str(state.device),
        "precision": state.precision.name,
        "torch": str(torch.__version__),
        "is_main_process": is_main_process(),
        "local_rank": int(os.environ.get("LOCAL_RANK", 0)),
        "epoch": _epochs(state),
        "max_steps": _max_steps(state),
        "elapsed": None if whole is None else elapsed(state),
        "timestamp": attrs.asdict(state.timestamp),
        "previous_timestamp": attrs.asdict(state.previous_timestamp),
        "max_duration": None if whole is None else str(whole),
        "epoch_length": state.epoch_length,
        "seed": state.key.seed,
        "metrics": {
            label: {name: strict_json.as_finite(value) for name, value in results.items()}
            for label, results in state.metrics.items()
        },
        "frozen": sorted(state.frozen),
        "memory": {name: one for name, one in state.memory.items() if _is_json(one)},
    }


def _epochs(state: Any) -> float | None:
    """Return the number of epochs, with the finished fraction of this one; None if unknown."""
    now, length = state.timestamp, state.epoch_length
    if not now.batch_in_epoch:
        return float(now.epoch)
    return None if not length else now.epoch + now.batch_in_epoch / length


def _max_steps(state: Any) -> int | None:
    """Return the number of batches of the run, or None if unknown."""
    whole, length = state.max_duration, state.epoch_length
    if whole is None or whole.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH):
        return None
    if whole.unit is TimeUnit.BATCH:
        length = 1
    return math.ceil(whole.value) * length if length else None


def _is_json(value: Any) -> bool:
    """Return whether JSON represents a value exactly."""
    if isinstance(value, Mapping):
        return all(type(name) is str and _is_json(one) for name, one in value.items())
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)
