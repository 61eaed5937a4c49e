"""What a run takes over from a checkpoint of another trainer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor
from torch.optim import Optimizer

from composable.checkpoint.errors import MismatchError
from composable.checkpoint.filters import covers, expanded, replaced
from composable.checkpoint.weights import match_weights, without_prefix
from composable.core.stateful import is_number
from composable.core.time import Timestamp
from composable.resume.changes import check_as_many, entry
from composable.resume.foreign import ForeignPoint, check_like
from composable.resume.verify import shard_like
from composable.trainer.run import Run


def foreign_tree(
    run: Run, own: Mapping[str, Any], point: ForeignPoint, ignored: Sequence[str]
) -> dict[str, Any]:
    """Return what a checkpoint of the run would hold, with the values of another trainer.

    Args:
        run: The run that was built.
        own: What a checkpoint of it would hold now.
        point: The checkpoint of the other trainer.
        ignored: Patterns of entries that stay as they are.

    Raises:
        MismatchError: A part does not fit the run.
    """
    state, tree = run.state, {**own, "raw": {"model": {}, "loss_fn": {}}}
    for name in ("memory", "averages", "metrics"):  # read-only in a state
        tree[name] = replaced(own[name], {}, [""])
    patterns = [pattern.removeprefix("model/weights/") for pattern in ignored]
    ours, argument = own["model"]["weights"], "load_ignore_keys"
    given, prefix = without_prefix(point.weights, ours, patterns)
    names = match_weights(ours, given, lambda one: one, point.path, patterns, True, argument).loaded
    weights = {**ours, **{name: _as_own(ours[name], given[name]) for name in names}}
    tree["model"] = {**own["model"], "weights": weights}
    tree["data"] = {**own["data"], "loader": None}
    if point.in_batches:
        tree["data"]["batches_per_step"] = 1
    with entry(f"{point.path}: state"):
        tree["timestamp"] = tree["previous_timestamp"] = _time(run, point)
        if not covers("optimizers", ignored):
            states = _optimizers(state.optimizers, own["optimizers"], point, prefix)
            tree["optimizers"] = list(states)
        if run.rates.steppers and not covers("rates", ignored):
            tree["rates"] = {**own["rates"], "schedulers": _schedulers(run, own, point)}
        if run.loss_scaler.enabled and point.scaler:
            with entry("loss_scaler"):
                scale, streak = point.scaler["scale"], point.scaler["_growth_tracker"]
                tree["loss_scaler"] = {"scale": float(scale), "streak": streak, "num_skipped": 0}
        found: dict[str, Any] = shard_like(state, replaced(tree, own, expanded(ignored)))
        return found


def describe_lost(run: Run, point: ForeignPoint) -> str:
    """Return which entries of a checkpoint have no place in a run, and what is unknown, or ""."""
    lost, now = list(point.unread), run.state.timestamp
    lost += ["its learning rate schedulers"] * bool(point.schedulers and not run.rates.steppers)
    lost += ["its loss scale"] * bool(point.scaler and not run.loss_scaler.enabled)
    more = f" and {len(lost) - 20} more" if lost[20:] else ""
    text = f" The run continues without {', '.join(lost[:20])}{more}." if lost else ""
    if point.timestamp is None:
        text += f" It has no time: batch {now.batch} of epoch {now.epoch} follows from the steps "
        text += "that optimizers or schedulers counted, and from epoch_length."
    return text and f"{point.path} was saved by {point.library}.{text}"


def _as_own(own: Any, value: Any) -> Any:
    both = isinstance(own, Tensor) and isinstance(value, Tensor)
    return value.to(own.dtype) if both else value


def _optimizers(
    optimizers: Sequence[Optimizer], own: Sequence[Any], point: ForeignPoint, prefix: str
) -> Iterator[dict[str, Any]]:
    given = point.optimizers
    named = list(given.items()) if isinstance(given, Mapping) else [(None, one) for one in given]
    check_as_many("optimizers", optimizers, named, "optimizers")
    for i, (optimizer, (kind, saved)) in enumerate(zip(optimizers, named, strict=True)):
        with entry(f"optimizers/{i}"):
            found = {**own[i], **_by_number(saved, prefix)}
            if kind not in (None, type(optimizer).__name__):
                found["type"] = kind
            ours, theirs = own[i]["param_groups"], found["param_groups"]
            check_as_many("groups", ours, theirs, "param_groups")
            check_like([{**group, "params": []} for group in ours], theirs, "param_groups")
            _check_shapes(optimizer, own[i]["parameters"], found)
        yield found


def _by_number(saved: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries of a state dict; if parameters have names in it, these become numbers."""
    groups, state = saved["param_groups"], saved["state"]
    names = [name for group in groups for name in group["params"]]
    if not all(isinstance(name, str) for name in names) or not names:
        return {"param_groups": groups, "state": state}
    number = {name: i for i, name in enumerate(names)}
    return {
        "parameters": [[n.removeprefix(prefix) for n in group["params"]] for group in groups],
        "param_groups": [{**one, "params": [number[n] for n in one["params"]]} for one in groups],
        "state": {number[name]: values for name, values in state.items()},
    }


def _check_shapes(optimizer: Optimizer, names: list[list[str]], found: Mapping[str, Any]) -> None:
    """Check the states of parameters: torch's optimizers have a value for each element, or row."""
    strict = type(optimizer).__module__.startswith("torch.optim")
    pairs = zip(names, optimizer.param_groups, strict=True)
    of = {n: p for ours, group in pairs for n, p in zip(ours, group["params"], strict=True)}
    for theirs, group in zip(found["parameters"], found["param_groups"], strict=True):
        for name, number in zip(theirs, group["params"], strict=False):
            shape = of[name].shape if name in of else ()
            for key, value in found["state"].get(number, {}).items():
                check_like(0 if key == "step" else None, value, f"state/{number}/{key}")
                if name in of and isinstance(value, Tensor) and not _fits(value, shape, strict):
                    raise MismatchError(
                        f"state/{number}/{key} has shape {list(value.shape)}, and {name} has "
                        f"{list(shape)}. Pass the parameters to the optimizer in the order of the "
                        "saved run."
                    )


def _fits(value: Tensor, shape: Sequence[int], strict: bool) -> bool:
    if value.dim() != len(shape):
        return not (strict and value.dim())
    pairs = zip(value.shape, shape, strict=True)
    return all(number in ((1, size) if strict else (1, *shape)) for number, size in pairs)


def _schedulers(run: Run, own: Mapping[str, Any], point: ForeignPoint) -> list[Any]:
    """Return the states of the PyTorch schedulers, by their positions or their classes."""
    steppers, saved = run.rates.steppers, point.schedulers
    if isinstance(saved, Mapping):
        saved = [saved[name] for stepper in steppers if (name := type(stepper).__name__) in saved]
    check_as_many("torch schedulers", steppers, saved, "rates/schedulers")
    found = []
    for i, (ours, theirs) in enumerate(zip(own["rates"]["schedulers"], saved, strict=True)):
        # The private entries differ between versions of PyTorch.
        same = {name: value for name, value in theirs.items() if not _is_private(name)}
        kept = {name: theirs.get(name, our) for name, our in ours.items() if _is_private(name)}
        with entry(f"rates/schedulers/{i}"):
            check_like(ours, {**same, **kept}, "state")
            if steppers[i] not in run.rates.plateaus:
                _check_interval(run, theirs, point.timestamp)
        found.append({**same, **kept})
    return found


def _check_interval(run: Run, saved: Mapping[str, Any], now: Timestamp | None) -> None:
    """Check that a scheduler that is to count epochs has not counted batches, or vice versa."""
    epochs, count = bool(run.rates.every_epoch), saved.get("last_epoch")
    other = None if now is None else now.batch if epochs else now.epoch
    if now is not None and now.batch != now.epoch and count == other:
        raise MismatchError(
            f"last_epoch is {count}, at batch {now.batch} of epoch {now.epoch}; pass "
            f"step_schedulers_every_batch={epochs}, as in the saved run."
        )


def _is_private(name: Any) -> bool:
    return str(name).startswith("_") or name == "verbose"


def _time(run: Run, point: ForeignPoint) -> Timestamp:
    """Return the progress of the saved run; what it has not counted follows from the loader."""
    now, length = point.timestamp, run.state.epoch_length
    if now is None:
        steps, scheduled = _count(point.optimizers, "step"), _count(point.schedulers, "last_epoch")
        batch = steps or scheduled * ((length or 0) if run.rates.every_epoch else 1)
        epoch, within = divmod(batch, length) if length else (0, 0)
        now = Timestamp(epoch=epoch, batch=batch, batch_in_epoch=within)
    if now.sample:
        return now
    size, count = run.data.batch_size or 0, run.data.batches_per_step
    iteration, rest = divmod(now.epoch, run.iteration_length or now.epoch + 1)
    return attrs.evolve(
        now,
        iteration=iteration,
        epoch_in_iteration=rest,
        sample=now.batch * size * count,
        sample_in_epoch=now.batch_in_epoch * size * (1 if point.in_batches else count),
    )


def _count(tree: Any, name: str, depth: int = 4) -> int:
    """Return the largest number of this name in a tree, or 0."""
    values = tree if isinstance(tree, list) else [*tree.values()] if isinstance(tree, dict) else []
    own = [tree[name]] if isinstance(tree, dict) and is_number(tree.get(name)) else []
    return max([0, *map(int, own), *(_count(value, name, depth - 1) for value in values if depth)])
