"""The calibrated costs of a comparison, measured once and stored."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from composable.comparison.plan.design import Design
from composable.comparison.plan.stages import Trained
from composable.comparison.records import StepCost, Trial
from composable.comparison.study_file import decode, encode
from composable.comparison.trials.blocks import CalibrationError
from composable.comparison.trials.cache import Cache, DamagedCacheWarning
from composable.comparison.trials.calibration import CalibrationWarning, calibrate
from composable.comparison.trials.cores import processor_name
from composable.comparison.trials.digest import digest_of
from composable.comparison.trials.pool import Pool
from composable.comparison.trials.trial import Request
from composable.core import _json
from composable.core._paths import write_atomically
from composable.core._warnings import warn_user
from composable.core.time import Time

__all__ = ["measure_costs"]

_BATCHES = 120
"""The batches of a shorter run leave few blocks to measure: a longer schedule is measured then."""


def measure_costs(
    design: Design,
    pool: Pool,
    cache: Cache,
    trained: Trained,
    on_part: Callable[[float], None] | None = None,
) -> tuple[tuple[StepCost, ...], tuple[str, ...]]:
    """Measure the cost of the steps of each arm on its longest schedule, or read stored costs.

    A schedule of less than 120 batches is measured on a multiple of it.

    The A/A arm has the cost of the baseline, and an arm without a finished run has none.

    Args:
        design: What is compared.
        pool: Where the arms are measured.
        cache: The results of trials; the costs are stored beside them.
        trained: The results, and the chosen settings.
        on_part: As for `calibrate`.

    Returns:
        The costs, and a note for each arm whose steps cannot be measured.
    """
    longest = {arm: durations[-1] for arm, durations in design.schedules.items()}
    batches = _finished_batches(trained, longest)
    if design.baseline not in batches:
        why = f"no run of {design.baseline} on {longest[design.baseline]} finished."
        return (), (_not_calibrated(why),)
    arms = [arm for arm in design.arms if arm in batches and arm != design.repeated]
    factors = {arm: max(1, -(-_BATCHES // max(batches[arm], 1))) for arm in arms}
    seed = design.seeds.reporting[0]
    requests = [
        design.request(
            Trial(
                arm,
                trained.settings[arm],
                _multiple(longest[arm], factors[arm]),
                seed,
                "reporting",
            )
        )
        for arm in arms
    ]
    path = cache.folder.parent / "costs" / f"{_key(design, pool, cache, requests)}.json"
    stored = _stored(path, requests)
    if stored is not None:
        return stored, ()
    counts = [factors[arm] * batches[arm] for arm in arms]
    costs, notes = _measured(pool, requests, counts, on_part)
    if not notes:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps([encode(one) for one in costs]).encode())
    return costs, notes


def _multiple(duration: str, factor: int) -> str:
    length = Time.parse(duration)
    return str(Time(length.value * factor, length.unit))


def _finished_batches(trained: Trained, longest: Mapping[str, str]) -> dict[str, int]:
    """Return the batches of a finished reported run of the longest duration, by arm."""
    return {
        one.trial.arm: one.batches
        for one in trained.results
        if one.outcome == "finished"
        and one.trial.purpose == "reporting"
        and one.trial.duration == longest[one.trial.arm]
    }


def _not_calibrated(why: str) -> str:
    return f"The costs of steps are not calibrated: {why}"


def _key(design: Design, pool: Pool, cache: Cache, requests: Sequence[Request]) -> str:
    """Return the digest of what the costs depend on: the trials, and the machine."""
    context = cache.context(design.build, pool.threads, design.split_evaluation)
    names = [cache.path(context, request).name for request in requests]
    return digest_of(names, processor_name(design.built.device))[:32]


def _stored(path: Path, requests: Sequence[Request]) -> tuple[StepCost, ...] | None:
    """Return the stored costs of the arms, which may have other names since."""
    try:
        costs = decode(tuple[StepCost, ...], _json.read(path), path.name)
        pairs = zip(costs, requests, strict=True)
        return tuple(attrs.evolve(cost, arm=request.trial.arm) for cost, request in pairs)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn_user(
            f"{path} is damaged, and the costs of steps are measured again: {error!r}",
            DamagedCacheWarning,
        )
        return None


def _measured(
    pool: Pool,
    requests: Sequence[Request],
    batches: Sequence[int],
    on_part: Callable[[float], None] | None,
) -> tuple[tuple[StepCost, ...], tuple[str, ...]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        try:
            costs = calibrate(pool, requests, batches=batches, on_part=on_part)
        except CalibrationError as error:
            return (), (_not_calibrated(_line(error)),)
    notes = [_line(one.message) for one in caught if one.category is CalibrationWarning]
    for one in caught:
        if one.category is not CalibrationWarning:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return tuple(costs), tuple(notes)


def _line(error: Warning | str | Exception) -> str:
    """Return a message in one line."""
    return "; ".join(map(str.strip, str(error).splitlines()))
