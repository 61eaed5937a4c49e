"""A backend of `torch.compile` that counts graphs."""

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.debugging import aot_eager


class CountingBackend:
    """Keeps the graphs that it is given, and runs them eagerly.

    Args:
        inner: The backend that runs the graphs: none by default, or `aot_eager`.
    """

    def __init__(self, inner: Callable[..., Any] | None = None) -> None:
        self.inner = inner
        self.graphs: list[torch.fx.GraphModule] = []
        self.dynamic = 0
        """The number of graphs with a size as an input."""

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        self.dynamic += any(not isinstance(one, torch.Tensor) for one in inputs)
        return graph.forward if self.inner is None else self.inner(graph, inputs)

    def __len__(self) -> int:
        return len(self.graphs)


def counting_aot() -> CountingBackend:
    """Return a backend that counts graphs and differentiates them ahead of time."""
    return CountingBackend(aot_eager)
