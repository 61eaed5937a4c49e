"""Tensors that one call of a model passes from layers to later layers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

CALLED_AGAIN = (
    "was replaced, since the model was called again within this call: call it before, and pass it "
    "the outputs."
)


class Trace:
    """Tensors that layers of one model keep for later layers of the same call.

    All layers that share a trace have the same object. `follow_calls` lets a call start with an
    empty trace, and end with none, whichever layers it skipped, and if it raised. Copies start
    outside of a call.
    """

    def __init__(self) -> None:
        self.kept: dict[Any, Tensor] | None = None
        self.with_graph = True
        self.called: list[int] = []
        self.called_again = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Trace, ()

    def start(self, module: int, *_: Any) -> None:
        """Keep nothing yet, as a hook before a call of a module."""
        self.called_again = bool(self.called) and (self.called_again or module in self.called)
        self.called.append(module)
        self.kept = {}

    def stop(self, module: int, *_: Any) -> None:
        """Keep nothing any more, as a hook after a call of a module."""
        if module in self.called:  # the calls within this one have ended too
            while self.called.pop() != module:
                pass
        self.kept = None

    def keep(self, key: Any, tensor: Tensor) -> None:
        """Keep a tensor for later layers of the call, if there is one."""
        if self.kept is not None:
            self.kept[key] = tensor
            self.with_graph = torch.is_grad_enabled()

    def get(self, key: Any, like: Tensor, method: str) -> Tensor:
        """Return a kept tensor.

        Args:
            key: Its key.
            like: A tensor of the same shape.
            method: The method, for errors.

        Raises:
            RuntimeError: It was not kept in this call, or without the graph of its gradient.
            ValueError: It has another shape.
        """
        tensor = None if self.kept is None else self.kept.get(key)
        if tensor is None or (
            torch.is_grad_enabled() > self.with_graph
            and tensor.is_floating_point() > tensor.requires_grad
        ):
            raise RuntimeError(
                f"{method} needs what an earlier layer computed in the same call, which "
                + (
                    CALLED_AGAIN
                    if self.called_again
                    else "is not known: call the whole model on token ids (not model.forward, nor "
                    "a layer alone), and don't recompute its layers in the backward pass "
                    "(activation checkpointing)."
                )
            )
        if tensor.shape != like.shape:
            raise ValueError(
                f"{method} needs layers of one shape, but an earlier one has "
                f"{tuple(tensor.shape)} and a later one {tuple(like.shape)}; pass the "
                "layers of one stack as target."
            )
        return tensor


def follow_calls(model: nn.Module, traces: Mapping[str, Trace]) -> None:
    """Let a trace start and stop with each call of a module that contains all of its layers.

    Args:
        model: A new model.
        traces: The trace of each layer, by its name.
    """
    for trace in dict.fromkeys(traces.values()):
        layers = {model.get_submodule(name) for name, one in traces.items() if one is trace}
        for i, module in enumerate(model.modules()):
            if layers <= {*module.modules()} - {module}:
                module.register_forward_pre_hook(partial(trace.start, i))
                module.register_forward_hook(partial(trace.stop, i), always_call=True)
