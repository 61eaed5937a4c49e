"""Laws of the calibrated costs of steps, and of when they are measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable.comparison.records import StepCost
from composable.comparison.trials.blocks import Blocks, CalibrationError
from composable.comparison.trials.costs import seconds_until, step_seconds

positive = st.floats(1e-6, 1e3)
fractions = st.floats(0, 1)


@st.composite
def costs(draw):
    points = sorted(draw(st.sets(st.integers(0, 100), min_size=1, max_size=6)))
    rounds = st.lists(positive, min_size=1, max_size=5)
    seconds = draw(st.lists(rounds, min_size=len(points), max_size=len(points)))
    return StepCost(
        "plain", {}, "1ep", tuple(one / 100 for one in points), tuple(map(tuple, seconds))
    )


@given(costs(), st.integers(1, 1000), fractions, fractions)
def test_seconds_increase_with_progress_within_the_bounds_of_the_steps(cost, batches, one, other):
    low, high = sorted((one, other))
    between = seconds_until(cost, batches, high) - seconds_until(cost, batches, low)
    steps = step_seconds(cost)
    taken = batches * (high - low)

    assert between >= taken * min(steps) - 1e-6 * batches * max(steps)
    assert between <= taken * max(steps) + 1e-6 * batches * max(steps)


@given(costs(), st.integers(1, 1000), fractions)
def test_seconds_are_proportional_to_the_number_of_batches(cost, batches, progress):
    whole = seconds_until(cost, batches, progress)

    assert whole == pytest.approx(batches * seconds_until(cost, 1, progress))


@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 12), st.integers(1, 400))
def test_the_blocks_of_all_points_fit_into_the_run(points, rounds, steps, batches):
    asked = Blocks(tuple((i + 0.5) / points for i in range(points)), rounds, steps)
    if batches - 1 < 4 * points:
        with pytest.raises(CalibrationError):
            asked.fitted(batches)
        return
    schedule = asked.fitted(batches)
    starts = schedule.starts(batches)

    assert 1 <= schedule.rounds <= rounds
    assert 1 <= schedule.steps <= steps
    assert starts[0] >= 1
    ends = [start + schedule.length for start in starts]
    assert all(end <= start for end, start in zip(ends, [*starts[1:], batches], strict=True))
