"""Selective backprop, as an algorithm."""

from fractions import Fraction
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import interpolate

from composable.algorithms._validators import integer, number
from composable.core.algorithm import Algorithm, Stage
from composable.core.batch import count_examples, select_examples
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import Time, TimeUnit
from composable.core.window import Window
from composable.functional import select_using_loss, should_select
from composable.utils.reproducibility import seed_torch

__all__ = ["SelectiveBackprop"]

_MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}


@attrs.frozen(repr=False)
class SelectiveBackprop(Algorithm):
    """Train on the examples with a high loss: see `composable.functional.select_using_loss`.

    The whole batch is scored in one forward pass without gradients, before anything is done to
    it. The pass leaves no trace: normalisation layers keep their statistics, and the random
    numbers of the step are the same as without it.

    Args:
        start: The fraction of training at which selection begins.
        end: The fraction of training at which it ends.
        keep: The share of each batch that is kept, in (0, 1].
        scale_factor: Score inputs of this size relative to their own, in (0, 1]: cheaper.
        interrupt: Every so many batches one is trained on whole; 0 for none.
    """

    start: float = attrs.field(default=0.5, validator=number(0, 1))
    end: float = attrs.field(default=0.9, validator=number(0, 1))
    keep: float = attrs.field(default=0.5, validator=number(0, 1, ends="(]"))
    scale_factor: float = attrs.field(default=1.0, validator=number(0, 1, ends="(]"))
    interrupt: int = attrs.field(default=2, validator=integer(0))

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.SELECT
    reads = frozenset({"batch", "model", "loss_fn", "key", "timestamp", "max_duration"})
    writes = frozenset({"batch"})

    def __attrs_post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"end={self.end!r} must not be before start={self.start!r}.")

    def match(self, event: Event, state: State) -> bool:
        """In the batches that are selected from."""
        elapsed = state.elapsed
        if not self.start <= elapsed < self.end:  # cheap: should_select checks its arguments
            return False
        return should_select(
            elapsed,
            state.timestamp.batch,
            start=self.start,
            end=self.end,
            interrupt=self.interrupt,
        )

    def window(self) -> Window:
        """From `start` up to `end`, but for the batches that are trained on whole."""
        start, end = (
            Time(Fraction(repr(float(share))), TimeUnit.DURATION)
            for share in (self.start, self.end)
        )
        whole = f"but for one batch in {self.interrupt}" if self.interrupt else ""
        return Window(start, end, condition=whole)

    def idle_reason(self) -> str | None:
        """No batch lies between its ends."""
        empty = self.start == self.end
        return f"no batch lies from start={self.start} up to end={self.end}" if empty else None

    def apply(self, event: Event, state: State) -> State:
        """Score the batch and keep the examples that were drawn."""
        chosen = select_using_loss(
            self.score(state), keep=self.keep, generator=state.generator(self.name)
        )
        count = count_examples(state.inputs)
        return state.evolve(batch=select_examples(state.batch, chosen, count))

    def score(self, state: State) -> Tensor:
        """The loss of each example, computed without a trace."""
        if self.scale_factor < 1:
            state = state.with_batch(inputs=_shrink(state.inputs, self.scale_factor))
        devices = [state.device.index or 0] if state.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            # A stream of its own, so that scores don't depend on what was drawn before.
            seed_torch(state.key.fold(self.name, "score", state.timestamp.batch).seed)
            buffers = {name: b.clone() for name, b in state.model.named_buffers()}
            inputs = state.batch if state.model_takes_batch else state.inputs
            outputs = functional_call(state.model, buffers, (inputs,))
            return _per_example(state.loss_fn, outputs, state.batch)


def _per_example(loss_fn: Any, outputs: Any, batch: Any) -> Tensor:
    losses: Tensor = loss_fn.per_example(outputs, batch)
    return losses


def _shrink(inputs: Any, scale_factor: float) -> Tensor:
    if not isinstance(inputs, Tensor) or inputs.ndim not in _MODES:
        raise ValueError(
            f"scale_factor={scale_factor!r} needs inputs that are one tensor of 3, 4 or 5 "
            "dimensions (signals, images, volumes): leave it at 1.0 for others."
        )
    return interpolate(inputs, scale_factor=scale_factor, mode=_MODES[inputs.ndim])
