"""Skip connections with learned scales, as an algorithm."""

from typing import Any

import attrs
from attrs.validators import optional

from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import boolean, in_range, integer_at_least, one_of, passes
from composable.functional import skip_connections
from composable.functional.stochastic_depth import describe_blocks

__all__ = ["SkipConnections"]


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

    sources: str = attrs.field(
        default="embedding", validator=one_of("embedding", "mirrored", "all")
    )
    dynamic: bool = attrs.field(default=False, validator=boolean)
    last: int | None = attrs.field(default=None, validator=optional(integer_at_least(1)))
    hidden: int = attrs.field(default=64, validator=integer_at_least(1))
    scale: float = attrs.field(default=0.1, validator=in_range(0, ends="()"))
    target: Any = attrs.field(
        default=None, validator=passes(lambda _, target: describe_blocks(target))
    )

    surgery = staticmethod(skip_connections)
    reads = frozenset({"model", "key"})
    replaces = frozenset({"inputs of residual blocks"})
