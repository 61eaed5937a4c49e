"""Checks of a loaded state against the run that was built, before anything is changed.

The hashes of a checkpoint say that its bytes are those that were written. They do not say that a
run wrote them, nor that it was this run. So the structure, the types and the counts of everything
are compared, and each error names the path in the file.
"""

from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.checkpoint.errors import DamagedCheckpointError, MismatchError
from composable.core.control import Control
from composable.core.time import Time, Timestamp
from composable.data.order import check_loader_state, get_generators, is_stateful
from composable.plan.compatibility import occurrences
from composable.trainer.arguments import check_countable, check_duration, check_iterations
from composable.trainer.optimizer_state import alike
from composable.trainer.run import Run
from composable.trainer.training_data import TrainingData

__all__ = ["check_run_state", "check_structure"]


# --- the structure ---


@attrs.frozen
class _Kind:
    """What a value must be, in words and as a test."""

    name: str
    fits: Callable[[Any], bool]


@attrs.frozen
class _Each:
    """A list, or a dictionary with names as keys, whose values are all of one kind."""

    kind: Any
    container: Any = list


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_number(value: Any) -> bool:
    single = isinstance(value, Tensor) and value.numel() == 1
    return single or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _is_scale(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 2.0**128


def _is_best(value: Any) -> bool:
    names = {"model", "loss_fn", "averages", "memory"}
    return isinstance(value, dict) and value.keys() == names and all(map(_is_dict, value.values()))


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_first_batch(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.keys() == {"epoch", "step", "digest"}
        and _is_count(value["epoch"])
        and _is_count(value["step"])
        and isinstance(value["digest"], str)
    )


_ANY = _Kind("anything", lambda _: True)
_COUNT = _Kind("a non-negative integer", _is_count)
_FLAG = _Kind("True or False", lambda value: isinstance(value, bool))
_NUMBER = _Kind("a number", _is_number)
_TEXT = _Kind("a string", lambda value: isinstance(value, str))
_TENSOR = _Kind("a tensor", lambda value: isinstance(value, Tensor))
_MAPPING = _Kind("a dictionary", lambda value: isinstance(value, Mapping))
_LOADER = _Kind("a dictionary or None", lambda value: isinstance(value, (Mapping, NoneType)))
_SIZE = _Kind("a positive integer or None", lambda v: v is None or (_is_count(v) and v > 0))
_SCALE = _Kind("a positive number or None", lambda v: v is None or _is_scale(v))
_BEST = _Kind("the weights of a checkpoint or None", lambda v: v is None or _is_best(v))
_TIME = _Kind("a Time or None", lambda value: isinstance(value, (Time, NoneType)))
_CALL = _Kind("a time or None", lambda value: isinstance(value, (str, NoneType)))
_LOSS = _Kind("a number in a tensor, or None", lambda v: v is None or _is_number(v))
_ALL = sum(one.value for one in Control)
_REQUESTS = _Kind("requests of callbacks", lambda value: _is_count(value) and value <= _ALL)

_FIRST = _Kind(
    "the epoch, the step and the digest of a batch, or None",
    lambda value: value is None or _is_first_batch(value),
)

_ADDED = {"first_batch"}
"""Entries that the checkpoints of earlier versions lack."""

_MODULE = {
    "weights": _Each(_ANY, dict),
    "buffers": _Each(_TENSOR, dict),
    "without_gradients": _Each(_TEXT),
    "in_evaluation": _Each(_TEXT),
}
_STRUCTURE: dict[str, Any] = {
    "model": _MODULE,
    "loss_fn": _MODULE,
    "raw": {"model": _Each(_TENSOR, dict), "loss_fn": _Each(_TENSOR, dict)},
    "optimizers": _Each(
        {
            "type": _TEXT,
            "parameters": _Each(_Each(_TEXT)),
            "state": _MAPPING,
            "param_groups": _Each(_MAPPING),
        }
    ),
    "loss": _LOSS,
    "memory": _Each(_ANY, dict),
    "averages": _Each(_Each(_TENSOR, dict), dict),
    "metrics": _Each(_Each(_ANY, dict), dict),
    "rates": {"schedulers": _Each(_MAPPING), "last_lrs": _Each(_NUMBER, dict)},
    "data": {
        "loader": _LOADER,
        "generators": _Each(_TENSOR),
        "batches_per_step": _SIZE,
        "shards": _SIZE,
        "first_batch": _FIRST,
    },
    "evaluation": {"last_run": _Each(_COUNT, dict)},
    "guard": {
        "num_skipped": _COUNT,
        "num_rollbacks": _COUNT,
        "skipped_batches": _Each(_COUNT),
        "consecutive": _COUNT,
    },
    "loss_scaler": {"scale": _SCALE, "streak": _COUNT, "num_skipped": _COUNT},
    "loss_shares": {"unit": _SCALE},
    "microbatches": {"size": _SIZE},
    "progress": {
        "requested_duration": _TIME,
        "num_fits": _COUNT,
        "fit_in_progress": _FLAG,
        "calls": _Each(_CALL),
    },
    "requests": {"pending": _REQUESTS},
    "weights": {"best": _BEST},
    "callbacks": _Each(_ANY, dict),
}


def check_structure(saved: Mapping[str, Any], path: str) -> None:
    """Check the entries of a state and their types.

    Args:
        saved: What `composable.trainer.run_state.capture` returned.
        path: Where it was read, for errors.

    Raises:
        DamagedCheckpointError: An entry is missing or unexpected, or has another type.
    """
    for name, kind in _STRUCTURE.items():
        if name in saved:
            _check_kind(saved[name], kind, f"{path}: state/{name}")
    for i, optimizer in enumerate(saved.get("optimizers", ())):
        for j, group in enumerate(optimizer["param_groups"]):
            where = f"{path}: state/optimizers/{i}/param_groups/{j}/params"
            _check_kind(group.get("params"), _Each(_COUNT), where)
        _check_lengths(optimizer, f"{path}: state/optimizers/{i}/parameters")


def _check_kind(value: Any, kind: Any, where: str) -> None:
    if isinstance(kind, _Kind):
        if not kind.fits(value):
            raise DamagedCheckpointError(f"{where} is {_short(value)}, and must be {kind.name}.")
    elif isinstance(kind, _Each):
        if not isinstance(value, kind.container):
            plain = "a dictionary" if kind.container is dict else "a list"
            raise DamagedCheckpointError(f"{where} is {_short(value)}, and must be {plain}.")
        items: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for name, one in items:
            if isinstance(value, dict) and not isinstance(name, str):
                raise DamagedCheckpointError(f"{where} has the key {_short(name)}: not a string.")
            _check_kind(one, kind.kind, f"{where}/{str(name)[:80]}")
    else:
        added = _ADDED & kind.keys()
        if not isinstance(value, dict) or value.keys() | added != kind.keys():
            has = sorted(map(str, value))[:12] if isinstance(value, dict) else _short(value)
            raise DamagedCheckpointError(f"{where} is {has}, and must have {sorted(kind)}.")
        for name in value:
            _check_kind(value[name], kind[name], f"{where}/{name}")


def _check_lengths(optimizer: Mapping[str, Any], where: str) -> None:
    named = [len(names) for names in optimizer["parameters"]]
    numbered = [len(group["params"]) for group in optimizer["param_groups"]]
    if named != numbered:
        raise DamagedCheckpointError(
            f"{where} names {named} parameters, and the groups have {numbered}."
        )


def _short(value: Any) -> str:
    if isinstance(value, (str, int, float, NoneType)):
        try:
            return repr(value)[:80]
        except ValueError:  # an integer with too many digits to print
            return "an integer"
    return f"a {type(value).__name__}"


# --- the run ---


def check_run_state(run: Run, saved: Mapping[str, Any], path: str) -> None:
    """Check the parts of a state that belong to no optimizer against the run.

    Args:
        run: The run that was built.
        saved: A state whose structure was checked.
        path: Where it was read, for errors.

    Raises:
        MismatchError: The state belongs to another run.
        DamagedCheckpointError: The state contradicts itself.
    """
    for name in ("timestamp", "previous_timestamp"):
        _check_timestamp(saved[name], f"{path}: state/{name}")
    for fault in _faults(run, saved):
        raise MismatchError(f"{path}: state/{fault} Build the Trainer as in the saved run.")
    progress, name = saved["progress"], f"{path}: state/max_duration"
    unchanged = run.progress.requested_duration == progress["requested_duration"]
    time = saved["max_duration"] if unchanged else run.state.max_duration
    if time is None and (progress["requested_duration"] is not None or progress["fit_in_progress"]):
        raise DamagedCheckpointError(f"{name} is None, and must be a duration.")
    try:
        if time is not None:
            check_duration(time)
        check_iterations(time, run.iteration_length, name)
        check_countable(name, time, run.data.count_tokens)
        run.state.evolve(max_duration=time)
    except ValueError as error:
        raise MismatchError(f"{name}: {error}") from None


_PARTS = (
    *((f"{unit}_in_epoch", unit) for unit in ("batch", "sample", "token")),
    *((f"{unit}_in_iteration", unit) for unit in ("epoch", "token")),
    *((f"{part}_wct", "total_wct") for part in ("iteration", "epoch", "batch")),
    ("token_in_epoch", "token_in_iteration"),
    ("epoch_wct", "iteration_wct"),
    ("epoch", "batch"),
)
"""Fields of a timestamp, each with one that it never exceeds."""


def _check_timestamp(now: Timestamp, where: str) -> None:
    """Check that no part of a timestamp exceeds the whole."""
    for part, whole in _PARTS:
        if getattr(now, part) > getattr(now, whole):
            raise DamagedCheckpointError(
                f"{where} has {getattr(now, part)} as {part}, more than {getattr(now, whole)} as "
                f"{whole}."
            )


def _faults(run: Run, saved: Mapping[str, Any]) -> Iterator[str]:
    """Yield what contradicts the run, with the path."""
    yield from _module_faults(run.state.model, saved["model"], "model")
    for i, (own, state) in enumerate(
        zip(run.rates.steppers, saved["rates"]["schedulers"], strict=True)
    ):
        yield from _scheduler_faults(own, state, f"rates/schedulers/{i}")
    for i, (generator, state) in enumerate(
        zip(get_generators(run.data.loader), saved["data"]["generators"], strict=True)
    ):
        try:
            torch.Generator(generator.device).set_state(state.cpu())
        except (RuntimeError, TypeError) as error:
            yield f"data/generators/{i} is not the state of a generator: {error}."
    if saved["timestamp"].batch_in_epoch:
        yield from _position_faults(run.data, saved["data"])
    yield from _memory_faults(run, saved["memory"])


def _position_faults(data: TrainingData, saved: Mapping[str, Any]) -> Iterator[str]:
    count, own = saved["batches_per_step"], data.batches_per_step
    if count != own:
        yield (
            f"data/batches_per_step is {count}, and this run, which resumes within an epoch, has "
            f"accumulate_batches={own}; change it at the end of an epoch."
        )
    state, loader = saved["loader"], data.loader
    if state is None:
        return
    if not is_stateful(loader):
        yield (
            "data/loader is the state of a loader, and the train_dataloader of this run has no "
            "state_dict."
        )
        return
    try:
        check_loader_state(loader, state)
    except ValueError as error:
        yield f"data/loader does not fit the train_dataloader: {error}"


def _module_faults(model: nn.Module, saved: Mapping[str, Any], where: str) -> Iterator[str]:
    names = {
        "without_gradients": {name for name, _ in model.named_parameters()},
        "in_evaluation": {name for name, _ in model.named_modules()},
    }
    for field, known in names.items():
        if unknown := sorted(set(saved[field]) - known):
            yield f"{where}/{field} has {unknown[0][:80]!r}, which this model does not have."


def _scheduler_faults(own: Any, saved: Mapping[str, Any], where: str) -> Iterator[str]:
    state = own.state_dict()
    if differing := sorted(map(str, state.keys() ^ saved.keys())):
        yield f"{where} and this run's {type(own).__name__} differ in the entries {differing[:5]}."
    for name in state.keys() & saved.keys():
        if not alike(state[name], saved[name]):
            wanted = _short(state[name])
            yield f"{where}/{name} is {_short(saved[name])}, and must be like {wanted}."


def _memory_faults(run: Run, memory: Mapping[str, Any]) -> Iterator[str]:
    for algorithm in run.dispatcher.plan.algorithms:
        for occurrence in occurrences(algorithm):
            one = occurrence.algorithm
            if one.name not in memory:
                continue
            try:
                one.check_memory(memory[one.name], run.state)
            except ValueError as error:
                yield f"memory/{one.name} is not a memory of {type(one).__name__}: {error}"
