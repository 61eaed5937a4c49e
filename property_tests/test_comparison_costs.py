"""Laws of the measured costs of steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable.comparison.cost import TimedBlock, step_cost
from composable.comparison.records import StepCost, Trial

positive = st.floats(1e-6, 1e3)


@st.composite
def costs(draw):
    points = sorted(draw(st.sets(st.integers(0, 100), min_size=1, max_size=6)))
    rounds = st.lists(positive, min_size=1, max_size=5)
    seconds = draw(st.lists(rounds, min_size=len(points), max_size=len(points)))
    return StepCost("plain", "1ep", tuple(one / 100 for one in points), tuple(map(tuple, seconds)))


@given(costs(), st.integers(1, 1000))
def test_the_seconds_of_a_run_are_within_the_bounds_of_its_steps(cost, batches):
    seconds, steps = cost.run_seconds(batches), cost.step_seconds

    assert batches * min(steps) <= seconds * (1 + 1e-6)
    assert seconds <= batches * max(steps) * (1 + 1e-6)
    assert seconds == pytest.approx(batches * cost.run_seconds(1))


@given(st.integers(1, 60), st.integers(1, 400))
def test_the_points_of_a_cost_lie_in_the_run_and_have_as_many_rounds(count, length):
    blocks = [TimedBlock(at * length, (at + 1) * length, 1.0) for at in range(count)]
    cost = step_cost(Trial("plain", {}, "1ep", 0, "reporting"), blocks, count * length)

    assert len(cost.progress) == min(5, count)
    assert list(cost.progress) == sorted(cost.progress)
    assert all(0 <= point <= 1 for point in cost.progress)
    assert {len(rounds) for rounds in cost.seconds} == {count // len(cost.progress)}
    assert cost.run_seconds(100) == pytest.approx(100)
