"""Activation checkpointing, as an algorithm."""

from collections.abc import Callable, Iterable
from typing import Any

import attrs
from torch._ops import OpOverload

from composable.algorithms._surgery import Surgery
from composable.core.algorithm import Stage
from composable.functional import checkpoint_activations


def _names(policy: Any) -> Any:
    """Return operators by their names, which a record can hold."""
    several = isinstance(policy, Iterable) and not isinstance(policy, str)
    return [str(o) if isinstance(o, OpOverload) else o for o in policy] if several else policy


@attrs.frozen(repr=False)
class ActivationCheckpointing(Surgery):
    """Compute activations again in the backward pass: see `functional.checkpoint_activations`.

    It changes the model after all other surgeries.

    Args:
        blocks: Classes of modules, or patterns of their names. None for the items of each
            `nn.ModuleList` and `nn.Sequential`.
        every: 1 for all blocks, 2 for every second one, and so on.
        policy: The operators whose results are saved, too, or a function of PyTorch's selective
            checkpointing.
        offload: Whether the inputs of the blocks are kept in the memory of the CPU.
    """

    blocks: Any = None
    every: int = 1
    policy: list[str] | Callable[..., Any] | None = attrs.field(default=None, converter=_names)
    offload: bool = False

    surgery = staticmethod(checkpoint_activations)
    stage = Stage.OTHER
    replaces = frozenset({"block"})
