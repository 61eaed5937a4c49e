"""Channels-last, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.core.algorithm import Stage
from composable.functional import channels_last


@attrs.frozen(repr=False)
class ChannelsLast(Surgery):
    """Use the channels-last memory format: see `composable.functional.channels_last`."""

    surgery = staticmethod(channels_last)
    stage = Stage.LAYOUT
    replaces = frozenset({"memory layout"})
