"""The metrics of training, measured on the outputs of the steps."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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
    called,
    computed_alone,
    confirm_mean,
    value_of,
)

_COMPARED = 10
"""How many microbatches compare a single value with the values for their halves."""


class Totals:
    """Sums of values and their numbers since the last report, and objects that were updated.

    Args:
        names: The names of the sums.
        objects: Metrics that are objects, by name; they are copied.
    """

    def __init__(self, names: Sequence[str], objects: Mapping[str, Any]) -> None:
        self.names, self.objects = list(names), copy.deepcopy(dict(objects))
        self.sums = torch.zeros(len(names), 2, dtype=torch.float64)
        self.reset()
        for one in self.objects.values():
            if hasattr(one, "persistent"):
                one.persistent(True)

    def reset(self) -> None:
        """Start again."""
        self.steps, self.sums = 0, torch.zeros_like(self.sums)
        for one in self.objects.values():
            one.reset()

    def state_dict(self, processes: Processes) -> dict[str, Any]:
        """Return the sums and objects of all processes."""
        objects = {}
        for name, value in self.objects.items() if self.steps else ():
            with value.sync_context() if processes.several else nullcontext():
                objects[name] = dict(value.state_dict())
        sums = processes.sum(self.sums)
        return {"steps": self.steps, "names": self.names, "sums": sums, "objects": objects}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, of the same metrics, on rank 0 alone."""
        self.reset()
        if state["names"] != self.names or state["objects"].keys() - self.objects.keys():
            return
        self.steps = state["steps"]
        if Processes.current().is_main:
            self.sums = state["sums"].to(self.sums)
            for name, saved in state["objects"].items():
                one = self.objects[name]
                one.load_state_dict({n: _as_in(one, n, value) for n, value in saved.items()})
                if hasattr(one, "_update_count"):  # torchmetrics warns where it is 0
                    one._update_count = self.steps


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
        log_interval: When averages are logged; None in an external loop, which reads them.
    """

    def __init__(self, metrics: Mapping[str, Any], log_interval: Time | None = None) -> None:
        self.log_interval = log_interval
        self.active = True
        """Whether the outputs belong to the step, and not to a second pass of it."""
        self.of_loss = {n: metric for n, metric in metrics.items() if isinstance(metric, OfLoss)}
        objects = {n: metric for n, metric in metrics.items() if hasattr(metric, "compute")}
        known = {*self.of_loss, *objects}
        self._functions = {n: metric for n, metric in metrics.items() if n not in known}
        self._left = dict.fromkeys(self._functions, _COMPARED)
        names = (*self._functions, "loss")
        self.totals = {one: Totals(names, objects) for one in ("train", "train_epoch")}
        self._batch, self._made = -1, False
        self._measured: dict[tuple[int, ...], tuple[list[Tensor], Any]] = {}
        self._gathered: dict[str, Any] | None = None

    def attach(self, run: Any) -> None:
        """Measure the steps of a run."""
        run.train_metrics = self
        self.to(run.state.device)

    def to(self, device: torch.device) -> None:
        """Move the sums and objects to a device."""
        for totals in self.totals.values():
            totals.sums = totals.sums.to(device, widest_float(device))
            for one in totals.objects.values():
                if isinstance(one, nn.Module):
                    one.to(device)

    # --- a step ---

    def measure(self, state: State, outputs: Any, place: tuple[int, ...]) -> None:
        """Measure the outputs of a microbatch.

        Args:
            state: The state before the loss, whose targets may be mixed, and are not smoothed.
            outputs: The outputs.
            place: The numbers of the microbatch in the step.

        Raises:
            ValueError: A value can't be averaged, or weighted as the targets are.
        """
        if not self.active:
            return
        if state.timestamp.batch != self._batch:
            self._batch, self._made = state.timestamp.batch, False
            self._measured.clear()
        targets, computes = state.targets, isinstance(state.loss_fn, OutputLoss)
        outputs = map_tensors(Tensor.detach, metric_outputs(outputs, own_loss=computes))
        count, objects = state.batch_spec.count(state.batch), self.totals["train"].objects
        if objects and isinstance(targets, MixedTargets):
            raise ValueError(
                f"train_metrics[{next(iter(objects))!r}] is an object, which can weight no "
                "targets of a mixed batch; pass a function (outputs, targets)."
            )
        with torch.no_grad():
            rows = [self._sums(name, outputs, targets, count) for name in self._functions]
        self._measured[place] = rows, (outputs, targets) if objects else None

    def _sums(self, name: str, outputs: Any, targets: Any, count: int) -> Tensor:
        """Return the sum of the values for a microbatch, and their number."""
        function, mixed = self._functions[name], isinstance(targets, MixedTargets)
        pair = targets[:2] if mixed else [targets]
        returned = [called(name, function, (outputs, one)) for one in pair]
        values = [check_real(name, value_of(name, one)) for one in returned]
        if self._left[name]:
            self._left[name] -= confirm_mean(name, function, returned[0], (outputs, pair[0]), count)
        if not mixed:
            return values_in(values[0], count)
        kept, partner = values
        weight = send(targets.weight, kept.device, kept.dtype)
        if kept.shape != partner.shape or (weight.ndim and kept.shape[:1] != weight.shape):
            raise ValueError(
                f"train_metrics[{name!r}] returned values of the shapes {tuple(kept.shape)} and "
                f"{tuple(partner.shape)} for the two targets of {count} mixed examples; return one "
                "value for each example."
            )
        return values_in(torch.lerp(partner, kept, broadcast_weight(weight, kept)), count)

    def accept(self, state: State) -> State:
        """Let the step count that is made now."""
        self._made = True
        return state

    # --- reports ---

    def batch_end(self, state: State, logger: Logger) -> None:
        """Count the step, and log what is due."""
        if self._made:  # every process has the loss of the step, which rank 0 alone counts
            examples = state.timestamp.sample - state.previous_timestamp.sample
            self.count(state.loss, examples if Processes.current().is_main else None)
        self.discard()
        if has_completed(self.log_interval, state, Event.BATCH_END):
            self._log("train", state, logger)

    def count(self, loss: Any, examples: Any) -> None:
        """Count a step: what its microbatches measured, and a loss of some examples, or None."""
        loss = values_in(loss.detach(), 1)
        nothing = torch.zeros_like(loss)
        own = nothing if examples is None else loss * examples
        rows = [torch.stack([*one, nothing]) for one, _ in self._measured.values()]
        sums = sum(rows, torch.stack([*[nothing] * len(self._functions), own]))
        for totals in self.totals.values():
            totals.steps, totals.sums = totals.steps + 1, totals.sums + sums
            for one in totals.objects.values():
                for _, pair in self._measured.values():
                    one.update(*pair)

    def discard(self) -> None:
        """Forget what the microbatches measured."""
        self._measured.clear()
        self._made = False

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Log the averages over the epoch."""
        if has_completed(self.log_interval, state, Event.EPOCH_END):
            self._log("train", state, logger)
        self._log("train_epoch", state, logger)

    def _log(self, label: str, state: State, logger: Logger) -> None:
        if results := self.results(label):
            named = {f"metrics/{label}/{name}": value for name, value in results.items()}
            logger.log_metrics(named, state.timestamp)
            self.totals[label].reset()

    def results(self, label: str) -> dict[str, Any]:
        """Return the averages over all processes; none if no step was counted."""
        totals, processes = self.totals[label], Processes.current()
        if not totals.steps:
            return {}
        sums = processes.sum(totals.sums)
        means = dict(zip(totals.names, sums[:, 0] / sums[:, 1], strict=True))
        results: dict[str, Any] = {name: means[name] for name in self._functions}
        results |= {name: loss(means["loss"]) for name, loss in self.of_loss.items()}
        for name, value in totals.objects.items():
            with nullcontext() if processes.several else computed_alone(value):
                add_results(results, name, value.compute())
        return results

    # --- checkpoints ---

    def gather(self) -> None:
        """Join what all processes have measured, before a checkpoint is saved."""
        self._gathered = self.states(Processes.current())

    def states(self, processes: Processes) -> dict[str, Any]:
        """Return the sums since the last reports, over these processes."""
        return {name: total.state_dict(processes) for name, total in self.totals.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums since the last reports."""
        gathered, self._gathered = self._gathered or self.states(Processes()), None
        return gathered

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, by other objects."""
        self.totals = copy.deepcopy(self.totals)
        for name, totals in self.totals.items():
            totals.load_state_dict(state[name])


def values_in(value: Tensor, count: int) -> Tensor:
    """Return the sum of values and their number, or what a mean of `count` values stands for."""
    value = value.to(widest_float(value.device))
    total, number = (value.sum(), value.numel()) if value.ndim else (value * count, count)
    return torch.stack([total, torch.full_like(total, number)])
