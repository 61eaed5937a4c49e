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


USUAL_GRAPHS = 4
"""The graphs of a run with two sizes of batches and an evaluation."""

GRAPHS = {
    "blurpool": (
        4,
        "pads by concatenation in compiled graphs on the CPU, where Inductor fails in the backward"
        " pass of replicate padding",
    ),
    "cached_gradients": (4, "where a batch is not split"),
    "ema": (4, "averaged weights go through the graphs of the model"),
    "fixres": (3, ""),
    "frozen_layers": (7, "one graph for each set of frozen layers and sizes"),
    "resize_batch": (
        5,
        "graphs with dynamic sizes; images of 8 × 8 have special cases (a view at offset 0, a"
        " feature map of 1 × 1), large images share one graph",
    ),
    "sam_perturbation": (4, "both passes go through one graph"),
    "select_using_loss": (
        5,
        "selected batches have a size of their own; the forward pass that selects is eager",
    ),
    "set_sequence_length": (3, "graphs with dynamic sizes"),
    "sliding_window": (8, "each window of the warm-up has graphs of its own"),
    "stochastic_depth": (
        4,
        'a warm-up compiles twice: the rate becomes an input of the graph. `method="block"` draws'
        " other masks than eager mode and computes dropped blocks",
    ),
    "swa": (
        4,
        "averaged weights go through the graphs of the model; batch norm statistics are computed"
        " eagerly",
    ),
}
"""The methods whose number of graphs differs, or needs a remark."""
