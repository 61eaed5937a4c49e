"""Attention windows that grow, as an algorithm."""

from math import floor

import attrs

from composable._support.checks import check_order, with_fields
from composable.algorithms._validators import in_range, integer_at_least
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import HasTime, elapsed
from composable.functional import sliding_window, warmed_up_window


@attrs.frozen(repr=False)
class WindowWarmup(Algorithm):
    """Attend to the last tokens alone, and to more of them later: see `sliding_window`.

    `composable.functional.warmed_up_window` is the schedule. Each step makes a new model, which
    shares its parameters with the previous one, and evaluation uses the window of its time.
    External loops and `FSDP2` can't replace their model, so `duration` must be 0 there.

    Args:
        duration: Share of training after which the window has grown, in [0, 1].
        min_window: Window at the start, at least 1.
        max_window: Window after the warm-up, at least `min_window`.
        steps: Number of times that the window grows, at least 1.
        short_share: The window of the other blocks, as a share of it, in (0, 1]. 1 for no
            difference.
        every: Which blocks have the whole window: the last of every so many.
    """

    duration: float = attrs.field(default=0.5, validator=in_range(0, 1))
    min_window: int = attrs.field(default=128, validator=integer_at_least(1))
    max_window: int = attrs.field(default=1024, validator=integer_at_least(1))
    steps: int = attrs.field(default=4, validator=integer_at_least(1))
    short_share: float = attrs.field(default=0.5, validator=in_range(0, 1, ends="(]"))
    every: int = attrs.field(default=2, validator=integer_at_least(1))

    stage = Stage.SURGERY
    reads = frozenset({"model", "timestamp", "max_duration", "epoch_length"})
    writes = frozenset({"model"})
    replaces = frozenset({"window of attention"})

    def __attrs_post_init__(self) -> None:
        check_order("min_window", self.min_window, "max_window", self.max_window)

    @property
    def events(self) -> frozenset[Event]:
        """`INIT`, and `BATCH_START` if there is a warm-up."""
        grows = {Event.BATCH_START} if self.duration else set()
        return frozenset({Event.INIT, *grows})

    def window_at(self, clock: HasTime) -> int:
        """Return the window at the time of a clock."""
        now = elapsed(clock) if self.duration else 1.0
        return with_fields(self, warmed_up_window)(now)

    def apply(self, event: Event, state: State) -> State:
        """Set the windows before training, and let them grow during the warm-up."""
        window = self.window_at(state)
        # 1e-9: a rounding error of the product must not cost a token.
        short = max(1, floor(self.short_share * window + 1e-9))
        model = sliding_window.unchecked(
            state.model, window=window, short_window=short, every=self.every
        )
        return state if model is state.model else state.evolve(model=model)
