"""A module whose activations are computed again in the backward pass."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

_CACHES = "transformers.cache_utils"
Contexts: TypeAlias = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
Values: TypeAlias = list[tuple[Tensor, Tensor]]
_SMALL = 2**16
"""Larger buffers are tables and masks. Batch norm writes without a new version of its buffers."""


@attrs.frozen
class Checkpointing:
    """How the activations of a block are computed again.

    Args:
        policy: The names of the operators whose results are kept, or a function of PyTorch's kind.
            None to keep none.
        offload: Whether the inputs of a block are kept in the memory of the CPU.
    """

    policy: tuple[str, ...] | Callable[..., Any] | None = None
    offload: bool = False

    def contexts(self) -> Contexts | None:
        """Return what makes the contexts of the two forward passes, for selective policies."""
        policy: Any = self.policy
        if isinstance(policy, tuple):
            policy = [attrgetter(name)(torch.ops) for name in policy]
        return policy and partial(create_selective_checkpoint_contexts, policy)


class CheckpointedModule(nn.Module):
    """Adds activation checkpointing to the class of a module."""

    checkpointing: Checkpointing

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, and save its inputs only, where gradients are computed."""
        forward, compiling = super().forward, torch.compiler.is_compiling()
        if not torch.is_grad_enabled() or (compiling and torch.compiler.is_exporting()):
            return forward(*args, **kwargs)
        args = tuple(map(without_cache, args))
        kwargs = {name: without_cache(one) for name, one in kwargs.items()}
        if "use_cache" in kwargs:
            kwargs["use_cache"] = False
        contexts = self.checkpointing.contexts()
        if not compiling and (buffers := tuple(self.buffers())):
            contexts = partial(repeating_buffers, contexts, buffers)
        options: dict[str, Any] = {} if contexts is None else {"context_fn": contexts}
        values = *args, *kwargs.values()  # PyTorch keeps the random state of their devices alone
        device = next((value.device.type for value in values if isinstance(value, Tensor)), "cpu")
        offloads = self.checkpointing.offload and device != "cpu"
        count, names = len(args), tuple(kwargs)
        with save_on_cpu(pin_memory=True, device_type=device) if offloads else nullcontext():
            return checkpoint(  # the function holds no tensors, which may be offloaded
                lambda *given: forward(
                    *given[:count], **dict(zip(names, given[count:], strict=True))
                ),
                *values,
                use_reentrant=False,
                **options,
            )


def repeating_buffers(
    contexts: Contexts | None, buffers: tuple[Tensor, ...]
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return contexts in which the second pass starts from the buffers of the first.

    After it they are as before it, so running statistics are updated once.

    Args:
        contexts: Makes the contexts to extend.
        buffers: The buffers.
    """
    forward, again = (nullcontext(), nullcontext()) if contexts is None else contexts()
    written: Values = []

    @contextmanager
    def first() -> Iterator[None]:
        before = [(buffer, buffer.detach().clone(), buffer._version) for buffer in buffers]
        with forward:
            yield
        for tensor, old, version in before:
            if tensor.numel() <= _SMALL or tensor._version != version:
                written.append((tensor, old))

    return first(), Given(again, written)


@attrs.define
class Given(AbstractContextManager[None]):
    """A context in which buffers have other values, around an inner context."""

    inner: AbstractContextManager[Any]
    values: Values
    _now: Values = attrs.field(init=False, factory=list)

    def __enter__(self) -> None:
        self._now = [(tensor, tensor.detach().clone()) for tensor, _ in self.values]
        _write(self.values)
        self.inner.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        try:
            return self.inner.__exit__(*error)
        finally:
            _write(self._now)


def _write(values: Values) -> None:
    for tensor, value in values:
        tensor.data.copy_(value)  # other graphs may have saved it: its version stays


def without_cache(value: Any) -> Any:
    """Return None for an empty cache of Transformers, which a second call would extend again.

    Raises:
        ValueError: The cache is not empty.
    """
    if not any(kind.__module__ == _CACHES for kind in type(value).__mro__):
        return value
    if value.get_seq_length():
        raise ValueError(
            f"the cache has {value.get_seq_length()} tokens, and a block with activation "
            "checkpointing can't extend it; omit checkpoint_activations, or pass no cache."
        )
    return None
