"""The costs of steps: what runs cost by them, and how they are measured in turn."""

import time

import attrs
import pytest

from composable.comparison.building import BuildError
from composable.comparison.cost import (
    TimedBlock,
    interleave,
    join_costs,
    paused_run,
    rescale_cost,
    step_cost,
)
from composable.comparison.records import StepCost
from tests.comparison.small import descend
from tests.support.comparison import BATCHES, build, compared, loop_of, trial


def cost(points, seconds):
    return StepCost("plain", "100ba", tuple(points), tuple(map(tuple, seconds)))


def test_a_constant_cost_is_proportional_to_the_steps():
    assert cost((0.1, 0.5, 0.9), [[2.0]] * 3).run_seconds(100) == pytest.approx(200)
    assert cost((0.5,), [[2.0]]).run_seconds(0) == 0


def test_a_cost_is_interpolated_between_the_points_and_constant_outside():
    rising = cost((0.25, 0.5), [[1.0], [3.0]])

    assert rising.run_seconds(100) == pytest.approx(25 * 1 + 25 * 2 + 50 * 3)


def test_of_midpoints_the_whole_run_has_the_mean_cost():
    several = cost((0.1, 0.3, 0.5, 0.7, 0.9), [[1.0], [5.0], [2.0], [7.0], [3.0]])

    assert several.run_seconds(10) == pytest.approx(10 * 18 / 5)


def test_the_cost_of_a_step_is_the_25th_percentile_of_the_rounds():
    assert cost((0.5,), [[5.0, 1.0, 2.0, 3.0, 90.0]]).step_seconds == (2.0,)
    assert cost((0.5,), [[4.0]]).step_seconds == (4.0,)


def test_the_cost_of_a_step_is_the_geometric_mean_over_the_processes():
    two = [5.0, 1.0, 2.0, 3.0, 90.0, 20.0, 4.0, 8.0, 12.0, 360.0]
    measured = attrs.evolve(cost((0.5,), [two]), processes=2)
    assert measured.process_seconds == [[2.0, 8.0]]
    assert measured.step_seconds == (4.0,)


def test_costs_of_several_processes_are_joined_by_the_rounds_that_all_have():
    first = cost((0.25, 0.75), [[1.0, 2.0], [3.0, 4.0]])
    joined = join_costs([first, cost((0.25, 0.75), [[9.0, 5.0, 6.0], [9.0, 7.0, 8.0]])])
    assert joined.seconds == ((1.0, 2.0, 5.0, 6.0), (3.0, 4.0, 7.0, 8.0))
    assert (joined.progress, joined.processes) == (first.progress, 2)
    assert join_costs([first]) == first
    assert join_costs([first, cost((0.5,), [[5.0, 6.0]])]).progress == (0.25,)


def test_a_later_measurement_is_scaled_to_the_speed_of_the_first():
    def of(*seconds):
        return cost((0.5,), [seconds])

    assert rescale_cost(of(6.0, 8.0), of(2.0, 2.0), of(1.0, 1.0)) == of(3.0, 4.0)
    assert rescale_cost(of(6.0, 8.0), of(0.0, 0.0), of(1.0, 1.0)) == of(6.0, 8.0)


def test_a_point_has_the_blocks_around_it_as_rounds():
    blocks = [TimedBlock(at, at + 10, at / 10) for at in range(0, 120, 10)]
    found = step_cost(trial(), blocks, 120)
    assert found.seconds == ((2.0, 3.0), (4.0, 5.0), (6.0, 7.0), (8.0, 9.0), (10.0, 11.0))
    assert found.progress[0] == pytest.approx(30 / 120)
    assert step_cost(trial(), blocks[:2], 120).seconds == ((0.0,), (1.0,))
    assert step_cost(trial(), [], 120) is None


# --- the measurement ---


class Here:
    """A run in this process, set up."""

    def __init__(self, *arguments):
        self.run = paused_run(*arguments)
        assert next(self.run) is None

    def advance(self):
        return next(self.run, None)


def all_blocks(*arguments):
    return list(iter(Here(*arguments).advance, None))


def test_a_run_is_measured_from_its_first_step_to_its_last_in_blocks():
    steps = 10 * BATCHES
    blocks = all_blocks(compared(build), trial(duration="10ep"), steps)
    assert len(blocks) == 15
    assert [one.end for one in blocks] == [4 * (at + 1) for at in range(15)]
    # The step after a pause is not measured.
    assert [one.begin for one in blocks] == [2] + [4 * at + 1 for at in range(1, 15)]
    assert all(one.seconds > 0 for one in blocks)


def test_the_time_of_other_arms_is_not_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])

    def loop(arm, seed, duration):
        for step in range(1, duration.value + 1):
            now[0] += arm
            yield step, 0.5

    runs = [Here(loop_of(loop, seconds), trial(duration="30ba"), 30) for seconds in (1.0, 3.0)]
    blocks, errors = interleave([run.advance for run in runs])
    assert errors == {}
    assert [{block.seconds for block in each} for each in blocks] == [{1.0}, {3.0}]


def test_a_loop_that_yields_less_often_has_blocks_from_yield_to_yield():
    blocks = all_blocks(loop_of(descend, {"factor": 1}), trial(duration="30ba"), 30)
    assert [(one.begin, one.end) for one in blocks] == [(at, at + 5) for at in range(5, 30, 5)]


class Fake:
    def __init__(self, name, log, blocks, error=None):
        self.name, self.log, self.left, self.error = name, log, blocks, error

    def advance(self):
        self.log.append(self.name)
        self.left -= 1
        if self.left < 0 and self.error is not None:
            raise self.error
        return TimedBlock(0, 1, 1.0) if self.left >= 0 else None


def test_arms_train_in_turn_and_one_that_fails_is_left_out():
    log = []
    runs = [Fake(0, log, 20), Fake(1, log, 20), Fake(2, log, 2, RuntimeError("no data"))]
    blocks, errors = interleave([run.advance for run in runs])
    assert [len(one) for one in blocks] == [20, 20, 2]
    assert errors == {2: "no data"}
    rounds = [log[:3], log[3:6], *(log[at : at + 2] for at in range(9, len(log), 2))]
    assert all(len(set(one)) == len(one) for one in rounds)
    assert len(set(map(tuple, rounds[3:]))) == 2  # in random order


def test_a_function_that_cannot_be_compared_ends_the_measurement():
    with pytest.raises(BuildError, match="no"):
        interleave([Fake(0, [], 0, BuildError("no")).advance])


@pytest.mark.parametrize("how", ["raise", "too short"])
def test_a_run_that_ends_before_its_second_step_has_no_block(how):
    def loop(arm, seed, duration):
        if how == "raise":
            raise OSError("no such data")
        yield 0, 1.0

    with pytest.raises((RuntimeError, BuildError), match=r"no such data|at least 1"):
        next(paused_run(loop_of(loop, None), trial(), 30))
