"""Strategies that a user has derived, for tests."""

from typing import Any, ClassVar

import attrs

from composable.distributed import DDP, FSDP2


@attrs.frozen
class Sharding(FSDP2):
    """A strategy that a user has derived."""


class Unfinished:
    """An engine without methods."""

    processes = None


@attrs.frozen
class Undone(DDP):
    """A strategy whose engine lacks methods."""

    engine: ClassVar[Any] = Unfinished
