"""Selective backprop, as an algorithm."""

from fractions import Fraction
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from composable._support.checks import check_order, with_fields
from composable.algorithms._scoring import example_losses
from composable.algorithms._validators import in_range, integer_at_least
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeUnit
from composable.core.window import Window
from composable.functional import select_using_loss, should_select

_MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}


@attrs.frozen(repr=False)
class SelectiveBackprop(Algorithm):
    """Train on the examples with high loss: see `composable.functional.select_using_loss`.

    The whole batch is scored in one forward pass without gradients, before any augmentation. The
    pass changes no running statistics, nor the random numbers of the step.

    Args:
        start: Fraction of training at which selection starts, in [0, 1].
        end: Fraction of training at which selection ends, at least `start`.
        keep: Share of each batch to keep, in (0, 1].
        scale_factor: Scale of the inputs in the scoring pass, in (0, 1]. Smaller is cheaper.
        interrupt: Train on the full batch once in every `interrupt` batches. 0 for never.
    """

    start: float = attrs.field(default=0.5, validator=in_range(0, 1))
    end: float = attrs.field(default=0.9, validator=in_range(0, 1))
    keep: float = attrs.field(default=0.5, validator=in_range(0, 1, ends="(]"))
    scale_factor: float = attrs.field(default=1.0, validator=in_range(0, 1, ends="(]"))
    interrupt: int = attrs.field(default=2, validator=integer_at_least(0))

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.SELECT
    reads = frozenset({"batch", "model", "loss_fn", "key", "timestamp", "max_duration"})
    writes = frozenset({"batch"})

    def __attrs_post_init__(self) -> None:
        check_order("start", self.start, "end", self.end)

    def match(self, event: Event, state: State) -> bool:
        """Match in the batches to select from."""
        elapsed = state.elapsed
        if not self.start <= elapsed < self.end:  # cheaper than should_select and its checks
            return False
        return with_fields(self, should_select)(elapsed, state.timestamp.batch)

    def window(self) -> Window:
        """Return the window from `start` to `end`, without every `interrupt`-th batch."""
        start, end = (
            Time(Fraction(repr(float(share))), TimeUnit.DURATION)
            for share in (self.start, self.end)
        )
        whole = f"but for one batch in {self.interrupt}" if self.interrupt else ""
        return Window(start, end, condition=whole)

    def idle_reason(self) -> str | None:
        """Return a reason if no batch lies between `start` and `end`."""
        empty = self.start == self.end
        return f"no batch lies between start={self.start} and end={self.end}" if empty else None

    def apply(self, event: Event, state: State) -> State:
        """Score the batch, and keep a random selection of its examples."""
        chosen = select_using_loss.unchecked(
            self.score(state), keep=self.keep, generator=state.generator(self.name)
        )
        return state.evolve(batch=state.batch_spec.select(state.batch, chosen))

    def score(self, state: State) -> Tensor:
        """Compute the loss of each example, without side effects."""
        if self.scale_factor < 1:
            state = state.with_batch(inputs=_shrink(state.inputs, self.scale_factor))
        buffers = {name: b.clone() for name, b in state.model.named_buffers()}
        with torch.no_grad():
            return example_losses(state, state.model, buffers, self.name)


def _shrink(inputs: Any, scale_factor: float) -> Tensor:
    if not isinstance(inputs, Tensor) or inputs.ndim not in _MODES:
        raise ValueError(
            f"scale_factor={scale_factor!r} must be 1.0 unless inputs is a tensor of 3, 4 or 5 "
            "dimensions (signals, images or volumes)."
        )
    return interpolate(inputs, scale_factor=scale_factor, mode=_MODES[inputs.ndim])
