"""The parameters that are tables of hashed n-grams: a parameter group of their own."""

from torch import nn

from composable.functional import NGramEmbedding

__all__ = ["TABLES", "tables_of"]

TABLES = "tables"
"""The name of their group."""


def tables_of(*modules: nn.Module) -> list[nn.Parameter]:
    """Return the tables of modules, in their order."""
    return [
        layer.weight
        for module in modules
        for layer in module.modules()
        if isinstance(layer, NGramEmbedding)
    ]
