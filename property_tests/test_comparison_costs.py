"""Laws of the measured costs of steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable.comparison.cost import Block, seconds_until, step_cost, step_seconds
from composable.comparison.records import StepCost, Trial

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


@given(st.integers(1, 60), st.integers(1, 400))
def test_the_points_of_a_cost_lie_in_the_run_and_have_as_many_rounds(count, length):
    blocks = [Block(at * length, (at + 1) * length, 1.0) for at in range(count)]
    cost = step_cost(Trial("plain", {}, "1ep", 0, "reporting"), blocks, count * length)

    assert len(cost.progress) == min(5, count)
    assert list(cost.progress) == sorted(cost.progress)
    assert all(0 <= point <= 1 for point in cost.progress)
    assert {len(rounds) for rounds in cost.seconds} == {count // len(cost.progress)}
    assert seconds_until(cost, 100, 1.0) == pytest.approx(100)
