"""The step of an optimizer that computes the loss and its gradients again, such as LBFGS."""

from collections.abc import Callable
from itertools import count
from typing import Any

import attrs

from composable.core.event import Event
from composable.core.state import State
from composable.engines.modules import Buffers, computing_again, write_gradients
from composable.optim.multi import base_optimizers
from composable.optim.per_name import update_of
from composable.optim.stepping import needs_closure
from composable.plan.dispatch import Dispatcher


@attrs.define(eq=False)
class ClosureSteps:
    """The step of an optimizer with a closure: gradients are computed again at other weights.

    Each call has the random numbers and the buffers of the first one, whose loss, memory and
    statistics stay. So the step is a function of the state.

    Args:
        compute: Computes gradients.
        dispatcher: It has the algorithms that change gradients.
        metrics: Measures the outputs of the first call only.
    """

    compute: Callable[[State], State]
    dispatcher: Dispatcher
    metrics: Any
    _first: Any = attrs.field(init=False, default=None)

    def gradients(self, state: State) -> State:
        """Compute the gradients of the first call."""
        self._first = state, Buffers.of(state)
        return self.compute(state)

    def step(self, state: State) -> State:
        """Step the optimizer."""
        (first, before), calls, self._first = self._first, count(), None

        def closure() -> Any:
            if not next(calls):
                return state.loss
            with computing_again(state, before, self.metrics):
                again = self.compute(first)
            again = self.dispatcher.run_algorithms(Event.BEFORE_OPTIMIZER_STEP, again)
            if again.gradients is not None:
                write_gradients(again)
            return again.loss

        state.optimizers[0].step(closure)
        return state


def check_closures(state: State, *, in_parts: bool) -> None:
    """Check that a run can step an optimizer that computes gradients again.

    Args:
        state: The state with the optimizers.
        in_parts: Whether each process has a part of the parameters.

    Raises:
        ValueError: It can't.
    """
    for optimizer in filter(needs_closure, base_optimizers(state.optimizers)):
        update, precision = update_of(optimizer), state.precision
        alone = optimizer in state.optimizers and (update is not None or len(state.optimizers) == 1)
        reasons = {
            f"which precision={precision.name!r} scales: use 'amp_bf16'": precision.scales_loss,
            "of whole parameters, of which each process has a part: use parallel='ddp'": in_parts,
            "which other optimizers change: pass an Update for each optimizer": not alone,
        }
        place = "optimizers" if update is None else f"the update {update!r}"
        for why in [text for text, holds in reasons.items() if holds]:
            raise ValueError(f"{type(optimizer).__name__} of {place} compares losses {why}.")
