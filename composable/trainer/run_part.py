"""What a checkpoint has of a run beside its parts: the model, the optimizers, and the state.

Resuming has two steps. The run is first rebuilt from code: the same arguments, the same surgery.
Then every value is restored. So nothing needs to know what an algorithm did to the state before.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import attrs
from torch import Tensor, nn
from typing_extensions import TypedDict

from composable._support.tree import map_tensors
from composable.checkpoint.errors import DamagedCheckpointError, MismatchError
from composable.core.key import Key
from composable.core.state import State
from composable.core.stateful import Kind, is_number
from composable.core.time import Time, Timestamp
from composable.plan.compatibility import occurrences
from composable.resume.changes import check_as_many
from composable.resume.modules import (
    ModuleState,
    capture_module,
    check_saved_module,
    check_saved_tensors,
    module_tensors,
    restore_module,
)
from composable.resume.optimizers import (
    OptimizerState,
    capture_optimizer,
    check_saved_optimizer,
    parameter_names,
    restore_optimizer,
)
from composable.trainer.arguments import check_countable, check_duration, check_iterations
from composable.trainer.evaluated_weights import Weights, equal_bits, loss_module_of
from composable.trainer.run import Run

__all__ = ["RunPart"]

Loss = Annotated[
    Tensor | None,
    Kind("a number in a tensor, or None", lambda value: value is None or is_number(value)),
]


class RawState(TypedDict):
    """The values that are trained, of the tensors that are evaluated with others."""

    model: dict[str, Tensor]
    loss_fn: dict[str, Tensor]


class WeightsEntries(TypedDict):
    """What a checkpoint has that is saved to use the model for inference."""

    model: ModuleState
    timestamp: Timestamp
    key: Key


class RunEntries(WeightsEntries):
    """What a checkpoint has in addition to the states of the parts."""

    loss_fn: ModuleState
    raw: RawState
    optimizers: list[OptimizerState]
    loss: Loss
    memory: dict[str, Any]
    averages: dict[str, dict[str, Tensor]]
    metrics: dict[str, dict[str, Any]]
    previous_timestamp: Timestamp
    max_duration: Time | None


@attrs.define(eq=False)
class RunPart:
    """A run as a part of itself: its entries in a checkpoint have the names of parts.

    Args:
        run: The run; its model and optimizers are restored in place.
        state: The state to save; by default that of the run.
    """

    run: Run
    state: State

    def state_dict(self) -> RunEntries:
        """Return the model, the optimizers, and the fields of the state."""
        state, loss = self.state, loss_module_of(self.state)
        evaluated, names = self.run.weights.of(state), parameter_names(state.model, loss)
        return {
            **self.weights(evaluated),
            "loss_fn": capture_module(loss, evaluated.loss_fn),
            "raw": {
                "model": _trained(state.model, evaluated.model),
                "loss_fn": _trained(loss, evaluated.loss_fn),
            },
            "optimizers": [capture_optimizer(one, names) for one in state.optimizers],
            "loss": None if state.loss is None else state.loss.detach(),
            "memory": state.memory,  # type: ignore[typeddict-item]
            "averages": state.averages,  # type: ignore[typeddict-item]
            "metrics": state.metrics,  # type: ignore[typeddict-item]
            "previous_timestamp": state.previous_timestamp,
            "max_duration": state.max_duration,
        }

    def weights(self, evaluated: Weights | None = None) -> WeightsEntries:
        """Return the model alone, with its timestamp and key, to use it for inference.

        Its weights are those with which the run is evaluated, if they aren't given.
        """
        state = self.state
        evaluated = evaluated or self.run.weights.of(state)
        return {
            "model": capture_module(state.model, evaluated.model),
            "timestamp": state.timestamp,
            "key": state.key,
        }

    # --- check ---

    def check_state_dict(self, saved: Mapping[str, Any], where: str) -> None:
        """Compare all that was saved with the run, also across its parts.

        Raises:
            MismatchError: It is that of another run.
            DamagedCheckpointError: A value is not what a run saves.
        """
        run, state, loss = self.run, self.state, loss_module_of(self.state)
        path = where.removesuffix(": state")
        for key, module in (("model", state.model), ("loss_fn", loss)):
            check_saved_module(module, saved[key], path, key)
            check_saved_tensors(module, saved["raw"][key], f"{where}/raw/{key}")
        for name, average in saved["averages"].items():
            place = f"{where}/averages/{name}"
            check_saved_tensors(state.model, average, place)
            if not average:
                raise MismatchError(f"{place} is empty, and must have tensors of this model.")
        best = saved["weights"]["best"]
        if best is not None:
            check_saved_tensors(state.model, best["model"], f"{where}/weights/best/model")
            check_saved_tensors(loss, best["loss_fn"], f"{where}/weights/best/loss_fn")
        self._check_optimizers(saved["optimizers"], f"{where}/optimizers")
        for name in ("timestamp", "previous_timestamp"):
            _check_timestamp(saved[name], f"{where}/{name}")
        if saved["timestamp"].batch_in_epoch:
            run.data.check_position(saved["data"], f"{where}/data")
        for fault in _memory_faults(run, saved["memory"]):
            raise MismatchError(f"{where}/{fault} Build the Trainer as in the saved run.")
        self._check_duration(saved, f"{where}/max_duration")

    def _check_optimizers(self, saved: Sequence[OptimizerState], where: str) -> None:
        own = self.state.optimizers
        check_as_many("optimizers", own, saved, where)
        names = parameter_names(self.state.model, self.state.loss_module)
        for i, (optimizer, values) in enumerate(zip(own, saved, strict=True)):
            check_saved_optimizer(optimizer, values, names, f"{where}/{i}")

    def _check_duration(self, saved: Mapping[str, Any], name: str) -> None:
        """Check the duration that the run will have."""
        progress, run = saved["progress"], self.run
        time = self._duration(saved)
        if time is None and (
            progress["requested_duration"] is not None or progress["fit_in_progress"]
        ):
            raise DamagedCheckpointError(f"{name} is None, and must be a duration.")
        try:
            if time is not None:
                check_duration(time)
            check_iterations(time, run.iteration_length, name)
            check_countable(name, time, run.data.count_tokens)
            run.state.evolve(max_duration=time)
        except ValueError as error:
            raise MismatchError(f"{name}: {error}") from None

    def _duration(self, saved: Mapping[str, Any]) -> Time | None:
        """Return the saved duration, which algorithms may have changed, or a new request."""
        requested = saved["progress"]["requested_duration"]
        unchanged = self.run.progress.requested_duration == requested
        return saved["max_duration"] if unchanged else self.run.state.max_duration

    # --- restore ---

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        run, state, loss = self.run, self.state, loss_module_of(self.state)
        live = restore_module(state.model, saved["model"], saved["raw"]["model"])
        live |= restore_module(loss, saved["loss_fn"], saved["raw"]["loss_fn"])
        names = parameter_names(state.model, loss)
        for optimizer, values in zip(state.optimizers, saved["optimizers"], strict=True):
            restore_optimizer(optimizer, values, names)
        run.state = state.evolve(
            timestamp=saved["timestamp"],
            previous_timestamp=saved["previous_timestamp"],
            key=saved["key"],
            max_duration=self._duration(saved),
            loss=saved["loss"],
            memory=map_tensors(lambda one: live.get(id(one), one), saved["memory"]),
            averages=saved["averages"],
            metrics=saved["metrics"],
        )


def _trained(model: nn.Module, evaluated: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values that are trained, for the tensors that are evaluated with others."""
    own = module_tensors(model)
    return {
        name: own[name].detach()
        for name, value in evaluated.items()
        if not equal_bits(own[name].detach(), value.to(own[name].device))
    }


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
