"""The modules of a run: their loss, their gradients, and the buffers that they write."""

from collections.abc import Sequence
from typing import Any

import attrs
from torch import Tensor, nn

from composable.core.state import State
from composable.functional import NGramEmbedding
from composable.losses.loss import ModelLoss

__all__ = [
    "Buffers",
    "all_modules",
    "bind_loss",
    "buffers_of",
    "check_dense",
    "modules_of",
    "sparse_tables",
    "trained_parameters",
    "write_gradients",
]


def modules_of(state: State) -> list[nn.Module]:
    """Return the model, and the module that computes the loss if there is one."""
    return [one for one in (state.model, state.loss_module) if one is not None]


def bind_loss(state: State) -> State:
    """Bind a loss that the model computes itself to the model of `state`."""
    if isinstance(state.loss_fn, ModelLoss) and state.loss_fn.model is not state.model:
        return state.evolve(loss_fn=ModelLoss(state.model))
    return state


def all_modules(state: State) -> list[nn.Module]:
    """Return the modules of a run, in the order of `Module.modules()`, at a fourth of its cost."""
    found: dict[nn.Module, None] = {}
    todo: list[nn.Module | None] = [*modules_of(state)[::-1]]
    while todo:
        module = todo.pop()
        if module is not None and module not in found:
            found[module] = None
            todo.extend(reversed(module._modules.values()))
    return list(found)


def trained_parameters(state: State) -> list[Tensor]:
    """Return the parameters that may have a gradient: the same on every process."""
    found: list[Any] = [p for one in all_modules(state) for p in one._parameters.values()]
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            found += group["params"]
    return [p for p in _once(found) if p.requires_grad]


def buffers_of(state: State) -> list[Tensor]:
    """Return the buffers of the modules of a run."""
    return _once([one for module in all_modules(state) for one in module._buffers.values()])


def _once(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    # Not by the tensors themselves, whose hashes are computed in Python.
    return list({id(one): one for one in tensors if one is not None}.values())


def write_gradients(state: State) -> None:
    """Set `.grad` of the parameters to `state.gradients`, in their dtypes."""
    gradients = state.gradients or {}
    for name, parameter in state.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.dtype)


@attrs.frozen(eq=False)
class Buffers:
    """The values of the buffers before a forward pass that may be discarded."""

    copies: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, state: State) -> "Buffers":
        """Copy the buffers of the model, and of the module that computes the loss."""
        return cls([(buffer, buffer.clone()) for buffer in buffers_of(state)])

    def restore(self) -> None:
        """Restore the buffers, but not their versions, which tell what the model has written."""
        for buffer, copy in self.copies:
            buffer.data.copy_(copy)


_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag, NGramEmbedding)


def sparse_tables(
    state: State, kinds: tuple[type[nn.Module], ...] = _EMBEDDINGS
) -> list[nn.Parameter]:
    """Return the trained parameters with sparse gradients.

    Args:
        state: The state of a run.
        kinds: The classes of the embeddings that may have them.
    """
    embeddings: Any = [one for one in all_modules(state) if isinstance(one, kinds)]
    found = dict.fromkeys(one.weight for one in embeddings if one.sparse)
    return [one for one in found if one.requires_grad]


def check_dense(state: State, name: str) -> None:
    """Raise a ValueError if a parameter has sparse gradients.

    Args:
        state: The state of a run.
        name: The strategy that does not support them.
    """
    if sparse_tables(state):
        raise ValueError(
            f"the model has embeddings with sparse=True, and {name} does not support sparse "
            "gradients; use sparse=False, or parallel=DDP()."
        )
