"""Seconds of training from the costs of steps: known answers."""

import pytest

from composable.comparison.records import StepCost
from composable.comparison.trials.costs import seconds_until, step_seconds


def cost(points, seconds):
    return StepCost("plain", {}, "100ba", tuple(points), tuple(map(tuple, seconds)))


def test_a_constant_cost_is_proportional_to_progress():
    constant = cost((0.1, 0.5, 0.9), [[2.0]] * 3)

    assert seconds_until(constant, 100, 0.25) == pytest.approx(50)
    assert seconds_until(constant, 100, 0) == 0


def test_interpolates_between_the_points():
    rising = cost((0.25, 0.75), [[1.0], [3.0]])

    assert seconds_until(rising, 100, 0.25) == pytest.approx(25)
    assert seconds_until(rising, 100, 0.5) == pytest.approx(25 + 25 * 1.5)
    assert seconds_until(rising, 100, 1) == pytest.approx(200)


def test_of_midpoints_the_whole_run_has_the_mean_cost():
    several = cost((0.1, 0.3, 0.5, 0.7, 0.9), [[1.0], [5.0], [2.0], [7.0], [3.0]])

    assert seconds_until(several, 10, 1) == pytest.approx(10 * 18 / 5)


def test_the_cost_of_a_step_is_the_25th_percentile_of_the_rounds():
    assert step_seconds(cost((0.5,), [[5.0, 1.0, 2.0, 3.0, 90.0]])) == (2.0,)
    assert step_seconds(cost((0.5,), [[4.0]])) == (4.0,)


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan")])
def test_refuses_a_progress_outside_of_the_run(progress):
    with pytest.raises(ValueError, match="must be a fraction of the run"):
        seconds_until(cost((0.5,), [[1.0]]), 10, progress)


@pytest.mark.parametrize("bad", [cost((), ()), cost((0.5,), [[]]), cost((0.2, 0.5), [[1.0]])])
def test_refuses_a_cost_without_measurements(bad):
    with pytest.raises(ValueError, match="must have seconds for each of its points"):
        seconds_until(bad, 10, 0.5)


def test_refuses_a_negative_number_of_steps():
    with pytest.raises(ValueError, match="batches=-1"):
        seconds_until(cost((0.5,), [[1.0]]), -1, 0.5)
