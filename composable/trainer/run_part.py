"""What a checkpoint has of a run beside its parts: the model, the optimizers, and the state.

Resuming has two steps. The run is first rebuilt from code: the same arguments, the same surgery.
Then every value is restored. So nothing needs to know what an algorithm did to the state before.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any

import attrs
from torch import Tensor, nn
from typing_extensions import TypedDict

from composable._support.tree import map_tensors
from composable.core.key import Key
from composable.core.state import State
from composable.core.stateful import Kind, is_number
from composable.core.time import Time, Timestamp, crossed
from composable.plan.compatibility import occurrences
from composable.plan.plan import Plan
from composable.resume.changes import check_as_many, entry
from composable.resume.modules import (
    ModuleState,
    capture_module,
    check_saved_tensors,
    module_tensors,
    restore_module,
)
from composable.resume.optimizers import (
    OptimizerState,
    capture_optimizer,
    parameter_names,
    restore_optimizer,
)
from composable.trainer.evaluated_weights import Weights, equal_bits, loss_module_of

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
    losses: dict[str, Loss]
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
        state: The state to save; by default the run's.
    """

    run: Any
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
            "optimizers": [capture_optimizer(optimizer, names) for optimizer in state.optimizers],
            "loss": None if state.loss is None else state.loss.detach(),
            "losses": {**self.run.unlogged, **state.losses},
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

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `saved` has the states of all other parts too.

        Raises:
            MismatchError: It belongs to another run.
        """
        run, state, loss = self.run, self.state, loss_module_of(self.state)
        live: dict[int, Tensor] = {}
        for key, module in (("model", state.model), ("loss_fn", loss)):
            live |= restore_module(module, saved[key], saved["raw"][key], key)
            if best := saved["weights"]["best"]:
                check_saved_tensors(module, best[key], f"weights/best/{key}")
        for name, average in saved["averages"].items():
            check_saved_tensors(state.model, average, f"averages/{name}")
        check_as_many("optimizers", state.optimizers, saved["optimizers"], "optimizers")
        names = parameter_names(state.model, loss)
        for i, (one, values) in enumerate(zip(state.optimizers, saved["optimizers"], strict=True)):
            with entry(f"optimizers/{i}"):
                restore_optimizer(one, values, names)
        now = self.timestamp(saved)
        for algorithm in chain.from_iterable(map(occurrences, self.plan.algorithms)):
            name = algorithm.algorithm.name
            if name in saved["memory"]:
                with entry(f"memory/{name}"):
                    algorithm.algorithm.check_memory(saved["memory"][name], state)
        run.state = state.evolve(
            timestamp=now,
            previous_timestamp=saved["previous_timestamp"],
            key=saved["key"],
            max_duration=self.duration(saved),
            loss=saved["loss"],
            losses=saved["losses"],
            memory=map_tensors(lambda one: live.get(id(one), one), saved["memory"]),
            averages=saved["averages"],
            metrics=saved["metrics"],
        )
        before = run.state.evolve(timestamp=saved["previous_timestamp"])
        run.unlogged = {} if crossed(before, run.state, run.log_interval) else dict(saved["losses"])

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.run.dispatcher.plan  # type: ignore[no-any-return]

    def timestamp(self, saved: Mapping[str, Any]) -> Timestamp:
        """Return the saved time, within an epoch in the steps of the loader of this run."""
        now: Timestamp = saved["timestamp"]
        if now.batch_in_epoch:
            with entry("data"):
                now = self.run.data.position(saved["data"], now)
        return now

    def duration(self, saved: Mapping[str, Any]) -> Time | None:
        """Return the saved duration, which algorithms may have changed, or a new request."""
        progress = saved["progress"]
        unchanged = self.run.progress.requested_duration == progress["requested_duration"]
        kept = unchanged or progress["of_call"]
        return saved["max_duration"] if kept else self.state.max_duration


def _trained(model: nn.Module, evaluated: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values that are trained, for the tensors that are evaluated with others."""
    own = module_tensors(model)
    return {
        name: own[name].detach()
        for name, value in evaluated.items()
        if not equal_bits(own[name].detach(), value.to(own[name].device))
    }
