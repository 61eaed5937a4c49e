"""Draw the timeline on the page about combinators: python docs/pictures/timeline.py."""

from pathlib import Path

from composable import Plan, State, during, when
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)

PICTURE = Path(__file__).with_suffix(".svg")


def large(state: State) -> bool:
    return len(state.targets) >= 32


PLAN = Plan.compile(
    [
        BlurPool(),
        SelectiveBackprop(start=0.5, end=0.9),
        during("0dur", "0.8dur", MixUp()),
        LabelSmoothing(0.1),
        when(large, GradientClipping("norm", 1.0)),
        EMA("100ba", ema_start="6ep"),
    ]
)
TIMELINE = PLAN.timeline("10ep", epoch_length=100)

if __name__ == "__main__":
    TIMELINE.save(PICTURE)
