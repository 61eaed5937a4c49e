"""Undo what a trial or a failed load has changed of a run."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from torch.nn.parameter import is_lazy

from composable.core.state import State
from composable.engines.modules import all_modules
from composable.optim.learning_rates import with_parts
from composable.optim.multi import base_optimizers
from composable.trainer.evaluated_weights import copy_into, copy_of
from composable.trainer.run import Run

Undo: TypeAlias = Callable[[], object]


@contextmanager
def undone_on_error(undo: Iterable[Undo]) -> Iterator[None]:
    """Call functions that restore something if the block raises."""
    try:
        yield
    except BaseException:
        for function in undo:
            function()
        raise


def restore_run(run: Run) -> list[Undo]:
    """Return functions that restore a run after a load that failed.

    Parameters and buffers are copied, since they are written in place. A load replaces all else,
    such as the state of an optimizer, by other objects, so the old ones are kept.
    """
    state = run.state
    parts = (
        *all_modules(state),
        *state.optimizers,
        *base_optimizers(state.optimizers),
        *chain.from_iterable(map(with_parts, run.rates.steppers)),
        *run.parts.values(),
    )
    return [
        *(partial(setattr, run, name, getattr(run, name)) for name in ("state", "unlogged")),
        restore_tensors(state),
        *map(restore_attributes, parts),
    ]


def restore_tensors(state: State) -> Undo:
    """Return a function that restores the parameters and buffers of a run, and their gradients."""
    modules = [(module, dict(module._buffers)) for module in all_modules(state)]
    own = {
        tensor: None
        for module, _ in modules
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None and not is_lazy(tensor)  # without values
    }
    saved = [(one, copy_of(one), one.grad, one.requires_grad) for one in own]

    def restore() -> None:
        for module, buffers in modules:
            module._buffers.update(buffers)
        for tensor, value, grad, trained in saved:
            copy_into(tensor, value)
            tensor.grad = grad
            tensor.requires_grad_(trained)

    return restore


def restore_attributes(one: Any) -> Undo:
    """Return a function that gives an object its attributes of now, which are not copied."""
    if hasattr(one, "__dict__"):
        own, kept = vars(one), dict(vars(one))

        def restore() -> None:
            own.clear()
            own.update(kept)

        return restore
    held = {
        name: getattr(one, name)
        for kind in type(one).__mro__
        for name in getattr(kind, "__slots__", ())
        if name != "__weakref__"
    }

    def restore_slots() -> None:
        for name, value in held.items():
            object.__setattr__(one, name, value)

    return restore_slots
