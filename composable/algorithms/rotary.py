"""Rotary position embeddings, as an algorithm."""

from types import MappingProxyType

import attrs

from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import boolean, in_range
from composable.functional import rotary


@attrs.frozen(repr=False)
class Rotary(Surgery):
    """Rotate queries and keys by their positions: see `composable.functional.rotary`.

    Args:
        base: Base of the wavelengths, above 1.
        fraction: Share of the features of a head that is rotated, in [0, 1].
        interleaved: Rotate pairs of neighbours, instead of pairs of the two halves.
    """

    base: float = attrs.field(default=10000.0, validator=in_range(1, ends="(]"))
    fraction: float = attrs.field(default=1.0, validator=in_range(0, 1))
    interleaved: bool = attrs.field(default=False, validator=boolean)

    surgery = staticmethod(rotary)
    replaces = frozenset({"attention", "position embedding"})

    incompatible_with = MappingProxyType({"Alibi": "both replace the position embeddings"})
