"""Skip connections with learned scales, as an algorithm."""

from typing import Any

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import skip_connections


@attrs.frozen(repr=False)
class SkipConnections(Surgery):
    """Add skip connections to the inputs of blocks: see `composable.functional.skip_connections`.

    Args:
        sources: "embedding", "mirrored" or "all".
        dynamic: Whether the scales depend on the token.
        last: Number of blocks, from the end, that get skip connections. None for all.
        hidden: Number of hidden features of the dynamic scales, at least 1.
        scale: Factor of the dynamic scales, above 0.
        target: The blocks: a class, or several. None for all known blocks.
    """

    sources: str = "embedding"
    dynamic: bool = False
    last: int | None = None
    hidden: int = 64
    scale: float = 0.1
    target: Any = None

    surgery = staticmethod(skip_connections)
    reads = frozenset({"model", "key"})
    replaces = frozenset({"inputs of residual blocks"})
