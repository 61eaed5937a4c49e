"""The modules of a run: their loss, their gradients, and the buffers that they write."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable._support.dtensors import is_sharded
from composable.core.state import State
from composable.distributed.processes import Processes
from composable.functional import NGramEmbedding
from composable.losses.loss import ModelLoss
from composable.optim.stepping import zero_grad


def bind_loss(state: State) -> State:
    """Bind a loss that the model computes itself to the model of `state`."""
    if isinstance(state.loss_fn, ModelLoss) and state.loss_fn.model is not state.model:
        return state.evolve(loss_fn=ModelLoss(state.model))
    return state


def all_modules(state: State) -> list[nn.Module]:
    """Return the modules of a run, in the order of `Module.modules()`, at a fourth of its cost."""
    found: dict[nn.Module, None] = {}
    todo: list[nn.Module | None] = [*reversed(state.modules.values())]
    while todo:
        module = todo.pop()
        if module is not None and module not in found:
            found[module] = None
            todo.extend(reversed(module._modules.values()))
    return list(found)


def largest_modules(model: nn.Module, parameters: Iterable[Tensor]) -> list[nn.Module]:
    """Return the largest modules all of whose parameters are among some."""
    held, found, inside = set(map(id, parameters)), [], set[nn.Module]()
    for module in model.modules():
        parts = set(map(id, module.parameters()))
        if parts and parts <= held and module not in inside:
            found.append(module)
            inside.update(module.modules())
    return found


def trained_parameters(state: State) -> list[Tensor]:
    """Return the parameters that may have a gradient: the same on every process."""
    found: list[Any] = [p for module in all_modules(state) for p in module._parameters.values()]
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            found += group["params"]
    return [p for p in _once(found) if p.requires_grad]


def buffers_of(state: State) -> list[Tensor]:
    """Return the buffers of the modules of a run."""
    return _once([buffer for module in all_modules(state) for buffer in module._buffers.values()])


def _once(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    # Not by the tensors themselves, whose hashes are computed in Python.
    return list({id(tensor): tensor for tensor in tensors if tensor is not None}.values())


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


@contextmanager
def computing_again(state: State, before: Buffers, metrics: Any) -> Iterator[None]:
    """Compute gradients again in the block, from the same buffers.

    The gradients are cleared. What the block writes into buffers and metrics is undone.

    Args:
        state: The state after the first pass.
        before: The buffers before it.
        metrics: Measures the outputs, if anything does.
    """
    after = Buffers.of(state)
    zero_grad(state)
    before.restore()
    try:
        if metrics is not None:
            metrics.active = False
        yield
    finally:
        after.restore()
        if metrics is not None:
            metrics.active = True


_LARGE = 4096
"""Larger buffers are exchanged only if training writes them: tables and masks stay as they are."""


class WrittenBuffers:
    """All small buffers, and those large ones that training writes: the same on every process.

    In a first step, all are exchanged, and the large ones compared with what they were. The others
    are compared by their versions from then on. After a write, all are exchanged again.

    Args:
        processes: The processes of the run.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._all: list[Tensor] = []
        self._large: list[Tensor] = []
        self._sent: list[Tensor] | None = None
        self._copies: list[Tensor] = []
        self._written: list[int] = []
        self._constants: list[tuple[Tensor, int]] = []

    @property
    def changes(self) -> bool:
        """Whether this process has written a buffer that is not exchanged."""
        return any(tensor._version != version for tensor, version in self._constants)

    def forget(self) -> None:
        """Exchange all buffers in the next step."""
        self._sent, self._constants = None, []

    def begin(self, buffers: list[Tensor]) -> list[Tensor]:
        """Return the buffers of a run that are exchanged in a step."""
        if not (len(buffers) == len(self._all) and all(map(is_, buffers, self._all))):
            self._all, self._large = buffers, [one for one in buffers if one.numel() > _LARGE]
            self.forget()
        if self._sent is not None:
            return self._sent
        self._copies, self._written = [one.clone() for one in self._large], [0] * len(self._large)
        return buffers

    def compare(self) -> None:
        """Find which buffers a shard has written, in a first step."""
        if self._sent is not None:
            return
        for i, (tensor, copy) in enumerate(zip(self._large, self._copies, strict=True)):
            self._written[i] |= not torch.equal(tensor, copy)

    def end(self) -> None:
        """Agree on what is exchanged from the next step on."""
        if self._sent is not None:
            return
        written = self.processes.maximum(self._written) if self._large else []
        constants = [tensor for tensor, any_ in zip(self._large, written, strict=True) if not any_]
        self._constants, self._copies = [(tensor, tensor._version) for tensor in constants], []
        apart = set(map(id, constants))
        self._sent = [tensor for tensor in self._all if id(tensor) not in apart]


_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag, NGramEmbedding)


def sparse_tables(
    state: State, kinds: tuple[type[nn.Module], ...] = _EMBEDDINGS
) -> list[nn.Parameter]:
    """Return the trained parameters with sparse gradients.

    Args:
        state: The state of a run.
        kinds: The classes of the embeddings that may have them.
    """
    embeddings: Any = [module for module in all_modules(state) if isinstance(module, kinds)]
    found = dict.fromkeys(embedding.weight for embedding in embeddings if embedding.sparse)
    return [one for one in found if one.requires_grad]


def check_undivided(model: nn.Module) -> None:
    """Check that the parameters of a model are not divided among processes already.

    Raises:
        ValueError: They are.
    """
    if is_sharded(model):
        raise ValueError(
            "model has parameters that are a DTensor already, as after fully_shard or "
            "parallelize_module; pass the whole model and parallel=FSDP2(), which shards it, or "
            "train it in an external loop, by composable.adapt_loop."
        )


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
