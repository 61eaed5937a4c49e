"""The calibrated costs of a comparison, measured once, and kept."""

import json
import warnings
from collections.abc import Sequence

from composable.comparison.encoding import InvalidRecordError, decode, encode
from composable.comparison.plan.design import Design
from composable.comparison.plan.stages import Trained
from composable.comparison.records import StepCost, Trial
from composable.comparison.study_file import write_atomically
from composable.comparison.trials.cache import Cache
from composable.comparison.trials.calibration import CalibrationError, CalibrationWarning, calibrate
from composable.comparison.trials.digest import digest_of
from composable.comparison.trials.pool import Pool
from composable.comparison.trials.trial import Request

__all__ = ["measure_costs"]

_POINTS = 5
_BATCHES = 5
"""The fewest batches of a point."""


def measure_costs(
    design: Design, pool: Pool, cache: Cache, trained: Trained
) -> tuple[tuple[StepCost, ...], tuple[str, ...]]:
    """Measure the cost of the steps of each arm on the longest schedule, or read those on disk.

    The A/A arm has the cost of the baseline, and an arm without a finished run has none.

    Returns:
        The costs, and a note for each arm whose steps cannot be measured.
    """
    longest = design.durations[-1]
    finished = {
        one.trial.arm: one.batches
        for one in trained.results
        if one.outcome == "finished"
        and one.trial.purpose == "reporting"
        and one.trial.duration == longest
    }
    requests = [
        design.request(
            Trial(
                arm,
                trained.settings[arm],
                longest,
                design.seeds.reporting[0],
                "reporting",
            )
        )
        for arm in design.arms
        if arm in finished and arm != design.repeated
    ]
    path = cache.folder.parent / "costs" / f"{_key(design, pool, cache, requests)}.json"
    try:
        stored = decode(tuple[StepCost, ...], json.loads(path.read_bytes()), str(path))
        return stored, ()
    except (OSError, ValueError, InvalidRecordError):
        pass
    points = min(_POINTS, (min(finished.values()) - 1) // _BATCHES)
    if not points:
        return (), (f"The costs of steps are not calibrated: runs of {longest} are too short.",)
    costs, notes = _measured(pool, requests, points)
    if not notes:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps([encode(one) for one in costs])
        write_atomically(path, content.encode())
    return costs, notes


def _key(design: Design, pool: Pool, cache: Cache, requests: Sequence[Request]) -> str:
    context = cache.context(design.build, pool.threads, design.split_evaluation)
    return digest_of([cache.path(context, request).name for request in requests])[:32]


def _measured(
    pool: Pool, requests: Sequence[Request], points: int
) -> tuple[tuple[StepCost, ...], tuple[str, ...]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        try:
            costs = calibrate(pool, requests, points=points)
        except CalibrationError as error:
            return (), (f"The costs of steps are not calibrated: {error}",)
    notes = [str(one.message) for one in caught if one.category is CalibrationWarning]
    for one in caught:
        if one.category is not CalibrationWarning:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return tuple(costs), tuple(notes)
