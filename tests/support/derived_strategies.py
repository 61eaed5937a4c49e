"""Strategies that a user has derived, for tests."""

import attrs

from composable.distributed import FSDP2


@attrs.frozen
class Sharding(FSDP2):
    """A strategy that a user has derived."""
