"""What the user requested, as plain values: recorded with a run, and compared when resuming."""

import inspect
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from composable._support.secrets import redact
from composable._support.strict_json import as_finite
from composable.core.time import Time
from composable.data.fetching import loader_length
from composable.plan.plan import Plan
from composable.trainer.options import TrainerOptions
from composable.trainer.run import Run

_OPTIONS = (
    *("grad_accum", "accumulate_batches", "microbatch_size", "loss_mean_over", "count_tokens"),
    *("epoch_batches", "input_key", "batch_layout"),
    *("target_key", "nonfinite_loss", "step_schedulers_every_batch", "iteration_length"),
    *("deterministic_mode", "decay_norms_and_biases", "compile"),
)
_OF_UPDATE = ("loss", "parameters", "every", "times", "batch", "mean_over")
_MOST = 400


def describe_request(options: TrainerOptions, model: nn.Module) -> dict[str, Any]:
    """Describe the parts of a run that a checkpoint does not restore: the code's values are used.

    Args:
        options: The arguments of the `Trainer`.
        model: The model after surgery; each of its modules without children is described.
    """
    loss = options.loss_fn
    return {
        "modules": {
            name: _without_sharding(module, describe_value(module))
            for name, module in model.named_modules()
            if not any(True for _ in module.children())
        },
        "loss_fn": f"{type(options.model).__name__}.loss" if loss is None else describe_value(loss),
        "data": _describe_loader(options.train_dataloader),
        "evaluators": {
            evaluator.label: {
                "eval_interval": describe_value(evaluator.eval_interval),
                "metrics": sorted(evaluator.metrics or {}),
                "data": _describe_loader(evaluator.dataloader),
            }
            for evaluator in options.evaluators
        },
        "updates": {
            update.name: {name: describe_value(getattr(update, name)) for name in _OF_UPDATE}
            for update in options.updates
        }
        or None,
        "options": {
            **{name: describe_value(getattr(options, name)) for name in _OPTIONS},
            "precision": repr(options.precision.on(options.device)),
        },
    }


def _without_sharding(module: nn.Module, text: Any) -> Any:
    """Remove the prefix of the class that `fully_shard` makes for a module."""
    sharded = hasattr(module, "unshard") and isinstance(text, str)
    return text.removeprefix("FSDP") if sharded else text


def describe_hyperparameters(run: Run) -> dict[str, Any]:
    """Describe what a checkpoint restores: the hyperparameters of optimizers and schedulers.

    The keys are their paths in the state of a checkpoint.
    """
    described: dict[str, Any] = {}
    for i, optimizer in enumerate(run.state.optimizers):
        for j, group in enumerate(optimizer.param_groups):
            described[f"optimizers/{i}/param_groups/{j}"] = {
                name: describe_value(group.get(f"initial_{name}", value))
                for name, value in group.items()
                if name not in ("params", "param_names", *(f"initial_{one}" for one in group))
            }
    for i, scheduler in enumerate(run.rates.steppers):
        described[f"rates/schedulers/{i}"] = settings_of(scheduler)
    return described


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Describe what runs at each event, for a report."""
    return {
        "steps": [
            {"event": s.event.value, "who": s.who, "stage": s.stage, "why": s.why}
            for s in plan.steps()
        ],
        "caveats": [str(caveat) for caveat in plan.caveats],
    }


def settings_of(value: Any) -> str:
    """Describe an object by the arguments of its constructor that it keeps as attributes.

    Example:
        >>> from composable.callbacks import SpeedMonitor
        >>> from composable.trainer.description import settings_of
        >>> settings_of(SpeedMonitor(5))
        'SpeedMonitor(window_size=5, flops_per_batch=None, gpu_flops_available=None)'
    """
    own = getattr(value, "__dict__", {})
    kept = {n: own[n] for n in _parameters(type(value)) if n in own and n not in _NOT_SETTINGS}
    listed = ", ".join(f"{name}={describe_value(one)}" for name, one in redact(kept).items())
    return f"{type(value).__name__}({listed})"


_NOT_SETTINGS = ("optimizer", "last_epoch")


def _parameters(kind: type) -> Sequence[str]:
    try:
        return list(inspect.signature(kind).parameters)
    except (TypeError, ValueError):  # a class of an extension module
        return ()


def describe_value(value: Any) -> Any:
    """Return a value of JSON, or a text that is the same in every process."""
    if value is None or isinstance(value, (bool, int, float)):
        return as_finite(value)
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Path):  # on another machine, the same run is in another folder
        return value.name if value.is_absolute() else str(value)
    if isinstance(value, Time):
        return str(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return as_finite(value.item())
    if isinstance(value, partial):
        arguments = [str(describe_value(one)) for one in value.args]
        arguments += [f"{name}={describe_value(one)}" for name, one in value.keywords.items()]
        return redact(f"{describe_value(value.func)}({', '.join(arguments)})")
    text = getattr(value, "__qualname__", None) or repr(value)
    return redact(re.sub(r" at 0x[0-9a-fA-F]+", "", str(text))[:_MOST])


def _describe_loader(loader: Any) -> Any:
    if not isinstance(loader, DataLoader):
        return (
            None
            if loader is None
            else {"type": type(loader).__name__, "batches": loader_length(loader)}
        )
    by = loader.sampler if loader.batch_size is not None else loader.batch_sampler
    return {
        "type": type(loader).__name__,
        "dataset": type(loader.dataset).__name__,
        "examples": loader_length(loader.dataset),
        "batch_size": loader.batch_size,
        "sampler": type(by).__name__,
        "drop_last": loader.drop_last,
        "generator": loader.generator is not None,
    }
