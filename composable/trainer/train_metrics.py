"""The metrics of training, measured on the outputs of the steps."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.devices import send
from composable._support.tree import map_tensors
from composable.batches.model_call import metric_outputs
from composable.batches.precision import widest_float
from composable.core.callback import Callback
from composable.core.event import Event
from composable.core.intervals import has_completed
from composable.core.logger import Logger, check_real
from composable.core.state import State
from composable.core.time import Time
from composable.distributed.processes import Processes
from composable.functional.mixed import MixedTargets, broadcast_weight
from composable.losses.loss import OutputLoss
from composable.metrics import (
    OfLoss,
    add_results,
    computed_alone,
    confirm_mean,
    value_of,
)

__all__ = ["TrainMetrics"]

_COMPARED = 10
"""How many microbatches compare a single value with those of their halves."""


class Totals:
    """Sums of values and their numbers since the last report, and objects that were updated.

    Args:
        names: The names of the sums.
        objects: Metrics that are objects, by name; they are copied.
    """

    def __init__(self, names: Iterable[str], objects: Mapping[str, Any]) -> None:
        self.steps = 0
        self.sums = {name: torch.zeros(2, dtype=torch.float64) for name in names}
        self.objects = {name: copy.deepcopy(one) for name, one in objects.items()}
        for one in self.objects.values():
            one.reset()
            if hasattr(one, "persistent"):
                one.persistent(True)

    def to(self, device: torch.device) -> None:
        """Move to a device."""
        self.sums = {n: one.to(device, widest_float(device)) for n, one in self.sums.items()}
        for one in self.objects.values():
            if isinstance(one, nn.Module):
                one.to(device)

    def add(self, sums: Mapping[str, Tensor], pairs: Iterable[tuple[Any, Any]]) -> None:
        """Add a step: sums of values and their numbers, and outputs and targets for the objects."""
        self.steps += 1
        self.sums = {name: one + sums[name] for name, one in self.sums.items()}
        for outputs, targets in pairs:
            for one in self.objects.values():
                one.update(outputs, targets)

    def joined(self, processes: Processes) -> dict[str, Tensor]:
        """Return the sums of all processes."""
        return dict(zip(self.sums, processes.sum(torch.stack([*self.sums.values()])), strict=True))

    def reset(self) -> None:
        """Start again."""
        self.steps = 0
        self.sums = {name: torch.zeros_like(one) for name, one in self.sums.items()}
        for one in self.objects.values():
            one.reset()

    def state_dict(self, processes: Processes) -> dict[str, Any]:
        """Return the sums and objects of all processes."""
        if not self.steps:
            return {"steps": 0, "sums": {}, "objects": {}}
        objects = {}
        for name, one in self.objects.items():
            with one.sync_context() if processes.several else nullcontext():
                objects[name] = dict(one.state_dict())
        return {"steps": self.steps, "sums": self.joined(processes), "objects": objects}

    def load_state_dict(self, state: Mapping[str, Any], processes: Processes) -> None:
        """Restore what `state_dict` returned, on rank 0 alone, since sums are joined."""
        self.reset()
        self.steps = state["steps"]
        if not processes.is_main:
            return
        for name in self.sums.keys() & state["sums"].keys():
            self.sums[name] = state["sums"][name].to(self.sums[name])
        for name in self.objects.keys() & state["objects"].keys():
            one = self.objects[name]
            one.load_state_dict({n: _as_in(one, n, v) for n, v in state["objects"][name].items()})


def _as_in(metric: Any, name: str, value: Any) -> Any:
    """Return a state as the metric updates it: of several processes, a list was joined."""
    listed = isinstance(getattr(metric, name, None), list) and isinstance(value, Tensor)
    return [value] if listed else value


class TrainMetrics(Callback):
    """Measures the outputs of the steps, and logs averages at intervals and of each epoch.

    The sums are on the device, and are joined over processes when they are logged or saved. What a
    step measures is kept by microbatch until it is made: a pass that ran out of memory is replaced
    by the next one, and a batch that is skipped is not counted.

    Args:
        metrics: The metrics by name.
        log_interval: When averages are logged.
    """

    def __init__(self, metrics: Mapping[str, Any], log_interval: Time) -> None:
        self.log_interval = log_interval
        self._of_loss = {n: one for n, one in metrics.items() if isinstance(one, OfLoss)}
        self._objects = {n: one for n, one in metrics.items() if hasattr(one, "compute")}
        known = {*self._of_loss, *self._objects}
        self._functions = {n: one for n, one in metrics.items() if n not in known}
        self._left = dict.fromkeys(self._functions, _COMPARED)
        names = (*self._functions, "loss")
        self._totals = {one: Totals(names, self._objects) for one in ("train", "train_epoch")}
        self._active, self._batch, self._made = True, -1, False
        self._measured: dict[tuple[int, ...], tuple[dict[str, Tensor], Any]] = {}
        self._gathered: dict[str, Any] | None = None

    def attach(self, run: Any) -> None:
        """Measure the steps of a run."""
        run.train_metrics = self
        for totals in self._totals.values():
            totals.to(run.state.device)

    # --- a step ---

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Measure nothing in the block: a second pass over the batch of a step."""
        self._active = False
        try:
            yield
        finally:
            self._active = True

    def measure(self, state: State, outputs: Any, place: tuple[int, ...]) -> None:
        """Measure the outputs of a microbatch.

        Args:
            state: The state before the loss, whose targets may be mixed, and are not smoothed.
            outputs: The outputs.
            place: The numbers of the microbatch in the step.

        Raises:
            ValueError: A value can't be averaged, or weighted as the targets are.
        """
        if not self._active:
            return
        if state.timestamp.batch != self._batch:
            self._batch, self._made = state.timestamp.batch, False
            self._measured.clear()
        own = isinstance(state.loss_fn, OutputLoss)
        outputs = map_tensors(Tensor.detach, metric_outputs(outputs, own_loss=own))
        targets, count = state.targets, state.batch_spec.count(state.batch)
        if self._objects and isinstance(targets, MixedTargets):
            raise ValueError(
                f"train_metrics[{next(iter(self._objects))!r}] is an object, which has no weights "
                "for the two targets of a mixed batch; pass a function (outputs, targets)."
            )
        with torch.no_grad():
            sums = {
                name: self._sums(name, function, outputs, targets, count)
                for name, function in self._functions.items()
            }
        self._measured[place] = sums, (outputs, targets) if self._objects else None

    def _sums(
        self, name: str, function: Callable[..., Any], outputs: Any, targets: Any, count: int
    ) -> Tensor:
        """Return the sum of the values for a microbatch, and their number."""
        mixed = isinstance(targets, MixedTargets)
        pair = targets[:2] if mixed else [targets]
        returned = [function(outputs, one) for one in pair]
        values = [check_real(name, value_of(name, one)) for one in returned]
        if self._left[name]:
            self._left[name] -= confirm_mean(name, function, returned[0], (outputs, pair[0]), count)
        if not mixed:
            return sum_of(values[0], count)
        weight = send(targets.weight, values[0].device, values[0].dtype)
        if not weight.ndim:
            kept, partner = (sum_of(one, count) for one in values)
            return torch.lerp(partner, kept, weight.to(kept.dtype))
        if any(one.shape[:1] != weight.shape for one in values):
            raise ValueError(
                f"train_metrics[{name!r}] returned values of shape {tuple(values[0].shape)} for "
                f"{count} examples, each of which mixes targets with a weight of its own; return "
                "one value for each example."
            )
        return sum_of(torch.lerp(*values[::-1], broadcast_weight(weight, values[0])), count)

    def accept(self, state: State) -> State:
        """Let the step count that is made now."""
        self._made = True
        return state

    # --- reports ---

    def batch_end(self, state: State, logger: Logger) -> None:
        """Count the step, and log what is due."""
        if self._made:
            self._count(state)
        self._measured.clear()
        self._made = False
        if has_completed(self.log_interval, state, Event.BATCH_END):
            self._log("train", state, logger)

    def _count(self, state: State) -> None:
        examples = state.timestamp.sample - state.previous_timestamp.sample
        loss = sum_of(state.loss.detach(), examples)  # type: ignore[union-attr]  # of the step
        sums = {"loss": loss if Processes.current().is_main else torch.zeros_like(loss)}
        for one, _ in self._measured.values():
            sums |= {name: sums[name] + row if name in sums else row for name, row in one.items()}
        for totals in self._totals.values():
            totals.add(sums, [pair for _, pair in self._measured.values() if pair is not None])

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Log the averages over the epoch."""
        if has_completed(self.log_interval, state, Event.EPOCH_END):
            self._log("train", state, logger)
        self._log("train_epoch", state, logger)

    def _log(self, label: str, state: State, logger: Logger) -> None:
        totals, processes = self._totals[label], Processes.current()
        if not totals.steps:
            return
        means = {name: one[0] / one[1] for name, one in totals.joined(processes).items()}
        results: dict[str, Any] = {name: means[name] for name in self._functions}
        results |= {name: one(means["loss"]) for name, one in self._of_loss.items()}
        for name, one in totals.objects.items():
            with nullcontext() if processes.several else computed_alone(one):
                add_results(results, name, one.compute())
        named = {f"metrics/{label}/{name}": value for name, value in results.items()}
        logger.log_metrics(named, state.timestamp)
        totals.reset()

    # --- checkpoints ---

    def gather(self) -> None:
        """Join what all processes have measured, before a checkpoint is saved."""
        processes = Processes.current()
        self._gathered = {name: one.state_dict(processes) for name, one in self._totals.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured since the last reports."""
        gathered, self._gathered = self._gathered, None
        alone = Processes()
        return gathered or {name: one.state_dict(alone) for name, one in self._totals.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, totals in self._totals.items():
            totals.load_state_dict(state[name], Processes.current())


def sum_of(value: Tensor, count: int) -> Tensor:
    """Return the sum of values and their number, or for a mean those of `count` values."""
    value = value.to(widest_float(value.device))
    total, number = (value.sum(), value.numel()) if value.ndim else (value * count, count)
    return torch.stack([total, torch.full_like(total, number)])
