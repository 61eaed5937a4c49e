"""The embedding and the head that a model says it has, as models of Transformers do."""

from typing import Any

from torch import nn


def input_embeddings(module: nn.Module) -> Any:
    """Return the token embedding that a model declares, or None."""
    return _called(module, "get_input_embeddings")


def output_embeddings(module: nn.Module) -> Any:
    """Return the output layer that a model declares, or None."""
    return _called(module, "get_output_embeddings")


def _called(module: nn.Module, method: str) -> Any:
    get = getattr(module, method, None)
    try:
        return get() if callable(get) else None
    except NotImplementedError:  # a model of Transformers that has none
        return None
