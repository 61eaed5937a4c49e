"""Distillation from snapshots, as an algorithm."""

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import attrs
from attrs.validators import optional
from torch import Tensor, nn
from torch.func import functional_call

from composable._support.checks import check_entries, check_tensors
from composable._support.devices import compute_dtype
from composable._support.dtensors import is_sharded
from composable._support.targets import check_class_dim
from composable.algorithms._validators import batches_or_epochs, in_range, integer_at_least, passes
from composable.core.algorithm import Algorithm, Remark, Stage
from composable.core.evaluation_mode import evaluation_mode
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeLike, TimeUnit, check_time, share_of_run
from composable.core.window import Window
from composable.functional import distillation_loss
from composable.losses.positions import class_logits, positions_of
from composable.losses.watch import mean_like

_MEMORY = ("teacher", "frozen")


def _cycle(value: TimeLike) -> Time:
    return check_time("cycle", value)


@attrs.frozen(repr=False)
class SnapshotDistillation(Algorithm):
    """Learn from the snapshot of the previous cycle: see `composable.functional.distillation_loss`.

    At the end of each cycle the weights and buffers are copied. In the next cycle the copy is the
    teacher: it predicts each batch in evaluation mode, as it was augmented and mixed, and the loss
    becomes `(1 - alpha) * loss + alpha * distillation_loss`. The teacher is saved in checkpoints.
    Frozen parameters are not copied before they are unfrozen.

    The divergence is a mean over the positions over which the loss is one: those with a label, with
    the class weights of a cross entropy. For a loss that shifts or flattens its targets, it is one
    over all positions.

    Give the schedule the same cycle, such as `cosine_restarts("2ep")`, so that a snapshot is taken
    where the learning rate is low.

    Args:
        cycle: Length of a cycle, in batches or epochs. It must divide the run.
        alpha: Share of the divergence in the loss, in (0, 1).
        temperature: Temperature of the predictions, above 0.
        first_cycle: The first cycle with a teacher, counted from 1, at least 2.
        class_dim: Dimension of the classes in the logits: 1, or -1 for the last. Default: found
            from the shapes of logits and targets.

    Raises:
        ValueError: `cycle` is not in batches or epochs.
    """

    cycle: Time = attrs.field(converter=_cycle, validator=batches_or_epochs("2ep"), eq=str)
    alpha: float = attrs.field(default=0.5, validator=in_range(0, 1, ends="()"))
    temperature: float = attrs.field(default=1.0, validator=in_range(0, ends="()"))
    first_cycle: int = attrs.field(default=2, validator=integer_at_least(2))
    class_dim: int | None = attrs.field(
        default=None,
        validator=optional(passes(check_class_dim)),
    )

    stage = Stage.MIX
    reads = frozenset(
        {"batch", "loss", "loss_fn", "max_duration", "memory", "model", "outputs", "timestamp"}
    )
    writes = frozenset({"loss", "memory"})
    before = frozenset({"CutMix", "MixUp", "PrefixTokens"})
    """They replace the labels, which weight the positions of the divergence."""
    discouraged_with = MappingProxyType({"SnapshotDistillation": "each adds a divergence"})

    @property
    def events(self) -> frozenset[Event]:
        """The start of training, both sides of the loss, and the end of batches or epochs."""
        return frozenset({Event.FIT_START, Event.BEFORE_LOSS, Event.AFTER_LOSS, self._end})

    @property
    def _end(self) -> Event:
        return Event.EPOCH_END if self.cycle.unit is TimeUnit.EPOCH else Event.BATCH_END

    def window(self) -> Window:
        """Return the window from the end of the first cycle on."""
        return Window(Time(self.cycle.value * (self.first_cycle - 1), self.cycle.unit))

    def remark(self, state: State) -> Remark | None:
        """Warn if the run ends with the first snapshot."""
        share = self._share_of_run(state)
        if share is None or share * (self.first_cycle - 1) != 1:
            return None
        return Remark(
            f"{self.name} has no teacher: the first snapshot is taken at the end of this run of "
            f"{state.max_duration}. Pass a shorter cycle than '{self.cycle}', or train for longer.",
            warns=True,
        )

    def match(self, event: Event, state: State) -> bool:
        """Match if a cycle ends, or there is a teacher."""
        if event is Event.FIT_START:
            return True
        if event is not self._end:
            return self.name in state.memory
        now = state.timestamp.epoch if event is Event.EPOCH_END else state.timestamp.batch
        cycles, rest = divmod(now, self.cycle.value)
        return not rest and cycles + 1 >= self.first_cycle

    def apply(self, event: Event, state: State) -> State:
        """Check the cycle, take a snapshot, or add the divergence from the teacher to the loss."""
        if event is Event.FIT_START:
            return self._checked(state)
        if event is self._end:
            names = [*_tensors_of(state.model)]
            return state.remember(self.name, _copied({"teacher": {}, "frozen": names}, state.model))
        memory = state.memory[self.name]
        if event is Event.BEFORE_LOSS:
            state = state.remember(self.name, _copied(memory, state.model))
            divergence = self._divergence(state)
            return state.remember(self.name, {**state.memory[self.name], "divergence": divergence})
        own: Any = state.loss
        divergence = mean_like(memory["divergence"], own)
        loss = (1 - self.alpha) * own + self.alpha * divergence
        kept = {name: memory[name] for name in _MEMORY}
        return state.remember(self.name, kept).evolve(loss=loss)

    def check_memory(self, memory: Any, state: State) -> None:
        """Raise a `ValueError` if a loaded memory is not a teacher for the model."""
        check_entries(memory, *_MEMORY)
        check_tensors("teacher", memory["teacher"])
        if not isinstance(memory["frozen"], list):
            raise ValueError("frozen must be a list of the names of parameters.")
        self._check_fits(memory, state)

    def _divergence(self, state: State) -> Tensor:
        """Compute the divergence of the outputs from the teacher's."""
        positions = positions_of(state, self.name, self.class_dim)
        logits, weights = positions.logits, positions.weights
        memory = state.memory[self.name]
        self._check_fits(memory, state)
        with evaluation_mode(state.model), state.precision.autocast(state.device):
            batch, call = (
                state.precision.cast(state.batch),
                _with_weights(state.model, memory["teacher"]),
            )
            outputs = state.model_call(call, batch, state.batch_spec)
        divergence = distillation_loss.unchecked(
            logits.to(compute_dtype(logits.dtype)),
            class_logits(outputs, self.name),
            temperature=self.temperature,
            class_dim=positions.class_dim,
            weights=weights,
        )
        return (
            divergence * weights.sum() if positions.is_sum and weights is not None else divergence
        )

    def _check_fits(self, memory: Mapping[str, Any], state: State) -> None:
        """Raise a ValueError if the model has other tensors than the teacher."""
        own = _tensors_of(state.model)
        shared = {name: own[name] for name in memory["frozen"] if name in own}
        teacher = {**shared, **memory["teacher"]}
        for name in sorted(own.keys() | teacher.keys()):
            shapes = [tuple(one[name].shape) if name in one else None for one in (teacher, own)]
            if shapes[0] != shapes[1]:
                was, now = ("missing" if shape is None else f"of shape {shape}" for shape in shapes)
                raise ValueError(
                    f"the teacher of {self.name} does not fit the model: {name} is {was} in the "
                    f"teacher, and {now} in the model. A model that changes during training can "
                    "only learn from snapshots that are taken later: pass a higher first_cycle, or "
                    "load a checkpoint of the same model."
                )

    def _checked(self, state: State) -> State:
        """Raise a ValueError if the cycle doesn't divide the run, or the model is sharded."""
        if is_sharded(state.model) or any(hasattr(p, "ds_id") for p in state.model.parameters()):
            raise ValueError(
                f"{self.name} calls the model with the weights of a snapshot, which a sharded "
                "model does not allow between its passes; use parallel='ddp'."
            )
        share = self._share_of_run(state)
        if share and 1 / share % 1:
            count = max(self.first_cycle, round(1 / share))
            raise ValueError(
                f"cycle={str(self.cycle)!r} does not divide the run of {state.max_duration}, "
                f"so the last cycle would be cut; pass max_duration='{self.cycle * count}', or "
                "another cycle."
            )
        return state

    def _share_of_run(self, state: State) -> Fraction | None:
        """Return the share of a cycle in the run, if it is known."""
        return None if state.max_duration is None else share_of_run(state, self.cycle)


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _copied(memory: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return a teacher with copies of the frozen tensors that training changes from now on.

    Until the first step that changes it, a tensor has the value that it had in the snapshot.
    """
    own = _tensors_of(model)
    shared = {name: own[name] for name in memory["frozen"] if name in own}
    frozen = {n for n, t in shared.items() if isinstance(t, nn.Parameter) and not t.requires_grad}
    copies = {name: t.detach().clone() for name, t in shared.items() if name not in frozen}
    return {"teacher": {**memory["teacher"], **copies}, "frozen": sorted(frozen)}


def _with_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> Any:
    """Return a function that calls a model with other weights, and with copies of buffers."""
    buffers = dict(model.named_buffers())
    own = {name: t.clone() if name in buffers else t for name, t in tensors.items()}
    return lambda *args, **kwargs: functional_call(model, own, args, kwargs)
