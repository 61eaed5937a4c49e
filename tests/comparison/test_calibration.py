"""The calibration: its blocks, and one that is measured."""

import pytest
from torch.utils.data import DataLoader

from composable.algorithms import MixUp
from composable.comparison.records import StepCost
from composable.comparison.trials.blocks import Blocks, CalibrationError
from composable.comparison.trials.calibration import CalibrationWarning, calibrate
from composable.comparison.trials.costs import rescale
from composable.comparison.trials.pool import Pool
from tests.support.comparison import build, build_or_die, examples, request


def test_blocks_surround_their_points():
    blocks = Blocks((0.25, 0.75), rounds=2, steps=3).fitted(100)

    assert blocks == Blocks((0.25, 0.75), rounds=2, steps=3)
    assert blocks.length == 12  # three rounds, one of which is dropped, of a step and three
    assert blocks.starts(100) == [19, 69]


def test_short_runs_have_shorter_blocks_and_then_fewer_rounds():
    blocks = Blocks((0.25, 0.75), rounds=4, steps=8)

    assert blocks.fitted(44) == Blocks((0.25, 0.75), rounds=4, steps=3)
    assert blocks.fitted(15) == Blocks((0.25, 0.75), rounds=2, steps=1)


@pytest.mark.parametrize("batches", range(11, 60))
def test_blocks_never_overlap_and_end_within_the_run(batches):
    blocks = Blocks((0.25, 0.75), rounds=3, steps=4).fitted(batches)
    first, second = blocks.starts(batches)

    assert first >= 1
    assert first + blocks.length <= second
    assert second + blocks.length <= batches


def test_refuses_a_run_that_is_too_short():
    with pytest.raises(CalibrationError, match="a run of 10 batches is too short"):
        Blocks((0.25, 0.75), rounds=3, steps=4).fitted(10)


def cost(arm, *seconds):
    return StepCost(arm, {}, "1ep", (0.5,), (seconds,))


def test_a_group_isrescale_to_the_baseline_of_the_first():
    first, again = cost("plain", 1.0, 1.0, 1.0), cost("plain", 2.0, 2.0, 2.0)

    assert rescale(cost("other", 6.0, 8.0), again, first) == cost("other", 3.0, 4.0)
    assert rescale(cost("other", 6.0, 8.0), first, first) == cost("other", 6.0, 8.0)
    unknown = cost("plain", 0.0, 0.0)
    assert rescale(cost("other", 6.0, 8.0), unknown, first) == cost("other", 6.0, 8.0)


def test_measures_each_arm_at_each_point():
    requests = [
        request(duration="8ep", lr=0.2),
        request(MixUp(0.3), duration="8ep", arm="MixUp"),
        request(duration="8ep", arm="broken", how="raise"),
    ]
    parts = []
    with (
        Pool(build_or_die, workers=1) as pool,
        pytest.warns(CalibrationWarning, match="'broken' cannot be measured: OSError: no such"),
    ):
        costs = calibrate(
            pool, requests, points=2, rounds=3, steps=2, at_once=2, on_part=parts.append
        )

    assert parts == [0.25, 0.5, 0.75, 1.0]  # two groups
    assert [one.arm for one in costs] == ["plain", "MixUp"]
    assert costs[0].settings == {"lr": 0.2}
    assert costs[0].duration == "8ep"
    for one in costs:
        assert one.progress == (0.25, 0.75)
        assert [len(rounds) for rounds in one.seconds] == [3, 3]
        assert all(second > 0 for rounds in one.seconds for second in rounds)


class Stream:
    """A loader without a length."""

    def __iter__(self):
        return iter(DataLoader(examples(), batch_size=8))


def test_a_known_number_of_batches_stands_for_a_loader_without_a_length():
    def build_stream(algorithms, seed):
        return build(algorithms, seed, train_dataloader=Stream())

    with Pool(build_stream, workers=1) as pool:
        (cost,) = calibrate(
            pool, [request(duration="8ep")], batches=[48], points=2, rounds=3, steps=2
        )
        assert [len(rounds) for rounds in cost.seconds] == [3, 3]
        with pytest.raises(CalibrationError, match="the loader has no length"):
            calibrate(pool, [request(duration="8ep")])


def test_a_baseline_that_fails_is_an_error():
    with (
        Pool(build_or_die, workers=1) as pool,
        pytest.raises(CalibrationError, match=r"'plain' cannot be measured: .* exit code 7"),
    ):
        calibrate(pool, [request(how="exit")])


def test_refuses_invalid_arguments():
    pool = Pool(build_or_die, workers=1)
    with pytest.raises(ValueError, match="points=0"):
        calibrate(pool, [], points=0)
    with pytest.raises(ValueError, match="at_once=1"):
        calibrate(pool, [], at_once=1)
