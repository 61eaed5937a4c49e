"""One computation in the place of those of several runs: outputs, gradients, optimizer steps.

Each run is trained by its own `Trainer` in a thread of its own (see `Lockstep`), with its own
loader, algorithms, loss, schedules and metrics. Three functions of its step are replaced: they wait
until all runs have come to them, and then one call computes the results of all. The parameters,
buffers, gradients and optimizer states of each run are views of the stacked ones, so everything
else finds them where they are in a run by itself, and a run may continue by itself at any time.

The first steps compute both, and compare.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.optim import Optimizer

from composable.comparison.seeds.dropout import DRAWS, SeededDropout
from composable.comparison.seeds.lockstep import Lockstep
from composable.comparison.seeds.pace import Pace
from composable.comparison.seeds.stacked_optimizers import StackedOptimizers, refusal, stackable
from composable.comparison.seeds.stacking import NotStackable, Stack, attributes, is_same
from composable.core.batch import tensors_of
from composable.core.event import Event
from composable.core.state import State
from composable.optim.stepping import OptimizerSteps
from composable.trainer.guards import skip_nonfinite
from composable.trainer.run import Run
from composable.trainer.step import (
    computes_loss,
    forward_backward,
    optimizer_step,
    second_pass,
    update_weights,
)
from composable.utils.reproducibility import get_rng_state

__all__ = ["Member", "Together"]

ALONE = object()
"""What a meeting gives where each run computes by itself."""
_CHECKED = 2
_TOLERANCE = {torch.float64: 1e-9}
_DEFAULT_TOLERANCE = 1e-3


@attrs.frozen(eq=False)
class Forward:
    """A run is about to call its model."""

    state: State
    training: bool
    generator: Tensor
    """The state of torch's global generator."""


@attrs.frozen(eq=False)
class Backward:
    """A run has computed its loss."""

    loss: Tensor


@attrs.frozen(eq=False)
class Step:
    """A run is about to step its optimizers."""

    optimizers: tuple[Optimizer, ...]


@attrs.frozen(eq=False)
class Computed:
    """The outputs of a run as computed for all."""

    outputs: Any
    generator: Tensor
    """The state of torch's global generator after the call."""


@attrs.frozen(eq=False)
class Checked(Computed):
    """Outputs to be compared with those of the run by itself."""

    number: int
    stack: Stack
    buffers: Mapping[str, Tensor]


class Together:
    """Computes for several runs.

    Args:
        count: The number of runs.
        pace: Decides when to compute for all.
        clock: Returns seconds.
    """

    def __init__(self, count: int, pace: Pace, clock: Callable[[], float]) -> None:
        self.lockstep = Lockstep(count, self._meeting, clock)
        self.pace = pace
        self._stack: Stack | None = None
        self._optimizers: StackedOptimizers | None = None
        self._checks: dict[Any, int] = {}
        self._found: dict[str, tuple[Tensor, Sequence[Tensor]]] = {}
        """The stacked gradients of this step, and their parts."""

    @property
    def ended(self) -> bool:
        """Whether each run trains by itself from now on."""
        return self.pace.decided_alone

    def _meeting(self, waiting: Mapping[int, Any]) -> Mapping[int, Any]:
        brought = list(waiting.values())
        kinds = {type(one) for one in brought}
        if kinds == {Forward}:
            training = brought[0].training
            if training:
                self.pace.begin_step()
            else:
                self.pace.interrupt()
        together = len(brought) > 1 and len(kinds) == 1 and self.pace.together
        if not together:
            self._release()
            return dict.fromkeys(waiting, ALONE)
        meetings: dict[Any, Callable[[Any], Sequence[Any]]] = {
            Forward: self._outputs,
            Backward: self._gradients,
            Step: self._step,
        }
        results = meetings[kinds.pop()](brought)
        return dict(zip(waiting, results, strict=True))

    def _release(self) -> None:
        if self._optimizers is not None:
            self._optimizers.release()
            self._optimizers = None

    def _stack_of(self, states: Sequence[State], *, training: bool) -> Stack:
        models = tuple(state.model for state in states)
        if self._stack is not None and _are(self._stack.models, models):
            return self._stack
        if not training:  # such as averages, which last as long as the evaluation
            return Stack(models, views=False)
        self._release()
        self._stack = Stack(models, views=True)
        return self._stack

    # --- outputs ---

    def _outputs(self, brought: Sequence[Forward]) -> Sequence[Computed]:
        states, training = [one.state for one in brought], brought[0].training
        if any(one.training != training for one in brought):
            raise NotStackable("some seeds train while others evaluate")
        stack = self._stack_of(states, training=training)
        if training:
            stack.trained  # noqa: B018  # raises if they differ
        signature = (training, states[0].model.training, len(states), _signature(states[0]))
        done = self._checks.setdefault(signature, 0)
        self._checks[signature] = done + 1
        if done < _CHECKED:
            return self._checked_outputs(stack, brought)
        return _call(stack, brought, stack.buffers)

    def _checked_outputs(self, stack: Stack, brought: Sequence[Forward]) -> list[Checked]:
        buffers = {name: buffer.clone() for name, buffer in stack.buffers.items()}
        model = brought[0].state.model
        before = attributes(model)
        computed = _call(stack, brought, buffers)
        if attributes(model) != before:
            raise NotStackable("the model changes its own attributes in its forward pass")
        return [
            Checked(
                one.outputs,
                one.generator,
                i,
                stack,
                {name: buffer[i] for name, buffer in buffers.items()},
            )
            for i, one in enumerate(computed)
        ]

    # --- gradients ---

    def _gradients(self, brought: Sequence[Backward]) -> list[None]:
        stack = self._stack
        assert stack is not None
        trained = stack.trained
        losses = [one.loss for one in brought]
        found = torch.autograd.grad(losses, list(trained.values()), allow_unused=True)
        for name, gradient in zip(trained, found, strict=True):
            if gradient is not None:
                parts = gradient.unbind()
                self._found[name] = gradient, parts
                for own, part in zip(stack.own, parts, strict=True):
                    held = own[name].grad
                    own[name].grad = part if held is None else held + part
        return [None] * len(brought)

    # --- optimizers ---

    def _step(self, brought: Sequence[Step]) -> list[Any]:
        runs, stack = [one.optimizers for one in brought], self._stack
        if (reason := refusal(runs[0])) is not None:  # of one that an algorithm has made
            raise NotStackable(reason)
        if stack is None or not all(map(stackable, runs)):
            return [ALONE] * len(runs)
        if not self._collect_gradients(stack):
            self._release()
            return [ALONE] * len(runs)
        if self._optimizers is None or not _all_are(self._optimizers.runs, runs):
            self._release()
            self._optimizers = StackedOptimizers(stack, runs)
        self._optimizers.step()
        for parameter in stack.parameters.values():
            parameter.grad = None
        return [None] * len(runs)

    def _collect_gradients(self, stack: Stack) -> bool:
        """Stack the gradients, and return whether each is there for all runs or for none."""
        found, self._found = self._found, {}
        for name, parameter in stack.parameters.items():
            gradients = [own[name].grad for own in stack.own]
            if name in found and _are(gradients, found[name][1]):
                parameter.grad = found[name][0]
                continue
            missing = sum(one is None for one in gradients)
            if 0 < missing < len(gradients):
                return False
            parameter.grad = None if missing else torch.stack(gradients)  # type: ignore[arg-type]
        return True


@attrs.define(eq=False)
class Member:
    """One of the runs that are trained together.

    Args:
        together: Computes for all.
        number: The number of the run.
        run: The run.
    """

    together: Together
    number: int
    run: Run
    _alone: bool = False
    _checked: tuple[Checked, Any] | None = None
    _generators: Any = None
    """Their states after a checked call of the model."""
    _own_steps: OptimizerSteps = attrs.field(factory=OptimizerSteps)

    def join(self) -> None:
        """Replace the functions of the run."""
        run = self.run
        run.forward = attrs.evolve(run.forward, outputs=partial(self._outputs, run.forward.outputs))

    def compose(self) -> None:
        """Compose the step of the run."""
        run = self.run
        fire = run.dispatcher.fire
        gradients = forward_backward(
            fire, computes_loss(run.dispatcher, run.forward), self._backward
        )
        update = update_weights(fire, self._step)
        step = optimizer_step(
            run.dispatcher, fire, run.rates, second_pass(gradients), run.guard, update
        )
        if run.guard.policy == "skip":
            step = skip_nonfinite(step, run.dispatcher, run.guard)
        run.step = lambda state: step(fire(Event.BATCH_START, state))

    def _outputs(self, own: Callable[[State], Any], state: State) -> Any:
        self._checked = None
        self._alone = self.together.ended
        if self._alone:
            return own(state)
        generator = torch.get_rng_state()
        training = torch.is_grad_enabled()
        found = self._meet(Forward(state, training, generator), generator)
        if found is ALONE:
            self._alone = True
            return own(state)
        if isinstance(found, Checked):
            return self._compared(found, own, state)
        torch.set_rng_state(found.generator)
        return found.outputs

    def _meet(self, brought: Forward | Backward | Step, generator: Tensor) -> Any:
        """Meet the other runs, which use torch's global generator until this one continues."""
        found = self.together.lockstep.meet(self.number, brought)
        torch.set_rng_state(generator)
        return found

    def _compared(self, found: Checked, own: Callable[[State], Any], state: State) -> Any:
        """Return the outputs of the model itself, which must be those of the call for all."""
        expected = get_rng_state() | {"torch": found.generator}
        outputs = own(state)
        self._generators = get_rng_state()
        if not is_same(expected, self._generators):
            raise NotStackable(DRAWS)
        _compare("outputs", tuple(tensors_of(outputs)), tuple(tensors_of(found.outputs)))
        buffers = dict(state.model.named_buffers())
        _compare("buffers", [buffers[name] for name in found.buffers], [*found.buffers.values()])
        if torch.is_grad_enabled():
            self._checked = found, outputs
        return outputs

    def _backward(self, loss: Tensor) -> None:
        if self._checked is not None:
            self._check_gradients(*self._checked, loss)
        elif self._alone:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._meet(Backward(loss), torch.get_rng_state())

    def _check_gradients(self, found: Checked, outputs: Any, loss: Tensor) -> None:
        pairs = [
            pair
            for pair in zip(tensors_of(outputs), tensors_of(found.outputs), strict=True)
            if pair[0].requires_grad
        ]
        mine, theirs = zip(*pairs, strict=True)
        by_output = torch.autograd.grad(loss, mine, retain_graph=True, allow_unused=True)
        loss.backward()  # type: ignore[no-untyped-call]
        used = [(t, g) for t, g in zip(theirs, by_output, strict=True) if g is not None]
        trained = found.stack.trained
        gradients = torch.autograd.grad(
            [t for t, _ in used],
            list(trained.values()),
            [g for _, g in used],
            retain_graph=True,
            allow_unused=True,
        )
        own = found.stack.own[found.number]
        for name, gradient in zip(trained, gradients, strict=True):
            held = own[name].grad
            if (held is None) != (gradient is None):
                raise NotStackable(f"the loss uses {name} in another way than the model does")
            if gradient is not None and held is not None:
                _compare("gradients", [held], [gradient[found.number]])

    def _step(self, state: State) -> None:
        optimizers = state.optimizers
        if self._checked is not None and not is_same(self._generators, get_rng_state()):
            raise NotStackable("the loss or an algorithm draws from the global generators")
        if self.together.ended or (self._meet(Step(optimizers), torch.get_rng_state()) is ALONE):
            self._own_steps(optimizers)


def _call(
    stack: Stack, brought: Sequence[Forward], buffers: Mapping[str, Tensor]
) -> list[Computed]:
    first = brought[0].state
    dropout = SeededDropout([one.generator for one in brought])

    def call(model: Any, batch: Any) -> Any:
        with dropout:
            return first.model_call(model, batch, first.batch_spec)

    try:
        outputs = stack.call(call, [one.state.batch for one in brought], buffers)
    except NotStackable:
        raise
    except Exception as error:
        text = str(error).partition("\n")[0]
        if "randomness" in text:
            raise NotStackable(DRAWS) from error
        raise NotStackable(f"the model fails under vmap: {type(error).__name__}: {text}") from error
    return list(map(Computed, outputs, dropout.generators))


def _signature(state: State) -> Any:
    shapes = tuple((tuple(t.shape), t.dtype) for t in tensors_of(state.batch))
    return shapes, state.frozen


def _are(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _all_are(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(_are, some, others))


def _compare(what: str, own: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    for one, other in zip(own, found, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise NotStackable(f"the {what} of the model differ under vmap in shape or dtype")
        if not one.numel() or torch.equal(one, other):
            continue
        if not one.is_floating_point():
            raise NotStackable(f"the {what} of the model differ under vmap")
        scale = one.detach().abs().max()
        error = (one.detach() - other.detach()).abs().max()
        # NaN and infinity: the guard of the Trainer ends the run, and there is nothing to compare
        tolerance = _TOLERANCE.get(one.dtype, _DEFAULT_TOLERANCE)
        if scale.isfinite() and not error <= tolerance * scale.clamp(min=1e-3):
            raise NotStackable(
                f"the {what} of the model differ under vmap by {float(error):.2g}, of {scale:.2g}"
            )
