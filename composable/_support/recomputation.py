"""A refusal of layers that can't be recomputed in the backward pass."""

import torch
from torch import Tensor


def in_backward() -> bool:
    """Return whether the call is in a backward pass, where `torch.utils.checkpoint` repeats calls.

    A traced call is not.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def cannot_recompute(what: str, cure: str) -> RuntimeError:
    """Return the error of what `torch.utils.checkpoint` can't repeat."""
    return RuntimeError(
        f"{what} can't be recomputed in the backward pass (activation checkpointing): {cure}."
    )


@torch.library.custom_op("composable::refuse_recomputation", mutates_args=())
def refuse_recomputation(count: Tensor, what: str) -> Tensor:
    """Copy the count of a layer's calls, on which its outputs depend, before it changes.

    It is an operator, so that compiled graphs check it too, when they run.

    Args:
        count: The count.
        what: What can't be recomputed, for the error.

    Raises:
        RuntimeError: The call is in a backward pass, where `torch.utils.checkpoint` repeats calls.
    """
    if in_backward():
        raise cannot_recompute(what, "it counts calls; keep it outside of checkpointed functions")
    return count.clone()


@refuse_recomputation.register_fake
def _(count: Tensor, what: str) -> Tensor:
    return torch.empty_like(count)
