"""The stages of a comparison: short trials, tuning, reported trials, costs of steps."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, closing
from functools import partial
from itertools import product
from operator import itemgetter
from statistics import fmean
from typing import TypeAlias

import attrs

from composable.comparison.cost import interleave, join_costs, rescale_cost, step_cost
from composable.comparison.design import Design
from composable.comparison.digest import stable_digest
from composable.comparison.execution import ProcessRun, Workers
from composable.comparison.rates import Rates, equal_seconds, shortened
from composable.comparison.records import (
    Settings,
    StepCost,
    Study,
    Trial,
    TrialResult,
    stop_at_best,
)
from composable.comparison.study_file import read_stored, write_stored
from composable.core.time import Time

_PROCESSES = 4
"""The times that each arm is measured, in a new process."""
_STEPS = 30
"""The steps of a shorter run leave few blocks to measure."""
_AT_ONCE = 8
"""The processes that are alive at once while steps are measured."""

Tried: TypeAlias = Mapping[str, Sequence[Settings]]
Runs: TypeAlias = Mapping[str, tuple[Trial, int]]
"""The runs whose steps are measured, and the numbers of their steps."""


def train_design(design: Design, workers: Workers) -> Study:
    """Train a design, and return the study, without costs."""
    chosen: Mapping[str, Settings] = {arm: tried[0] for arm, tried in design.tried.items()}
    tuning: list[TrialResult] = []
    notes: list[str] = []
    if design.tuned:
        later = reporting_trials(design, chosen)
        trials = tuning_trials(design, _measured_rates(design, workers, later))
        tuning = workers.train("tuning", trials, later)
        chosen, notes = choose_settings(design.tried, tuning, partial(_score, design))
    reported = workers.train("reported runs", reporting_trials(design, chosen))
    notes = [*design.protocol.notes, *notes]
    protocol = attrs.evolve(design.protocol, chosen=chosen, notes=tuple(notes))
    return Study(protocol, (*tuning, *reported), ())


def train_designs(designs: Sequence[Design], workers: Workers) -> Study:
    """Train the designs of all amounts as one study."""
    studies = [train_design(design, workers) for design in designs]
    protocols = [one.protocol for one in studies]
    protocol = attrs.evolve(
        protocols[-1],
        data_amounts=tuple(amount for one in protocols for amount in one.data_amounts),
        notes=tuple(dict.fromkeys(note for one in protocols for note in one.notes)),
    )
    return Study(protocol, tuple(result for study in studies for result in study.results), ())


def _measured_rates(design: Design, workers: Workers, later: Sequence[Trial]) -> Rates:
    """Measure the step costs of the arms; with amounts of data, durations don't depend on them."""
    unknown = Rates({}, design.epoch_length)
    if design.protocol.data_amounts:
        return unknown
    trials = [
        Trial(arm, tried[0], shortened(shortest[0], design.epoch_length), seeds[0], "tuning")
        for arm, tried in design.tried.items()
        for shortest, seeds in [(design.protocol.schedules[arm], design.seeds(arm, "tuning"))]
    ]
    later = [*tuning_trials(design, unknown), *later]
    return Rates.of(workers.train("short trials", trials, later, alone=True), design.epoch_length)


def reporting_trials(design: Design, settings: Mapping[str, Settings]) -> list[Trial]:
    """Return the reported trials, seed by seed."""
    return [
        Trial(arm, settings[arm], duration, design.seeds(arm)[at], "reporting")
        for at in range(len(design.protocol.seeds))
        for arm, durations in design.protocol.schedules.items()
        for duration in durations
    ]


# --- tuning ---


def tuning_trials(design: Design, rates: Rates) -> list[Trial]:
    """Return the trials that choose settings, for the seconds of the longest of the baseline."""
    protocol, trials = design.protocol, []
    for arm, tried in design.tried.items():
        measured = protocol.baseline if arm == protocol.repeated else arm
        rate = rates.relative_rate(measured, protocol.baseline)
        duration = equal_seconds(protocol.durations[-1], rate, design.epoch_length)
        pairs = product(tried, design.seeds(arm, "tuning"))
        trials += [Trial(arm, one, duration, seed, "tuning") for one, seed in pairs]
    return trials


def choose_settings(
    tried: Tried, results: Sequence[TrialResult], score: Callable[[TrialResult], float]
) -> tuple[dict[str, Settings], list[str]]:
    """Choose the settings of each arm with the best mean score; of equal ones the first.

    Args:
        tried: The settings to try by arm.
        results: The results of their trials.
        score: The value of a result, higher is better; -inf for one without a result.

    Returns:
        The settings by arm, and notes.
    """
    chosen: dict[str, Settings] = {}
    notes: list[str] = []
    for arm, settings in tried.items():
        own = [result for result in results if result.trial.arm == arm]
        scores = [[score(one) for one in own if one.trial.settings == s] for s in settings]
        chosen[arm] = max(zip(map(fmean, scores), settings, strict=True), key=itemgetter(0))[1]
        if all(value == -math.inf for each in scores for value in each):
            errors = sorted({one.error for one in own if one.error})
            notes.append(f"{arm}: no tuning trial has a result: {[*errors, 'not finite'][0]}")
    return chosen, notes


def _score(design: Design, result: TrialResult) -> float:
    protocol = design.protocol
    if result.outcome != "finished":
        return -math.inf
    if not (result := stop_at_best(protocol, [result])).curve:
        return -math.inf
    sign = 1 if (protocol.tuning_mode or protocol.mode) == "max" else -1
    score = sign * result.curve[-1].metrics.get(protocol.tuning_metric, math.nan)
    return -math.inf if math.isnan(score) else score


# --- the costs of steps ---


def measure_costs(workers: Workers, study: Study) -> tuple[tuple[StepCost, ...], list[str]]:
    """Measure the cost of the steps of each arm in several processes, or read stored costs.

    An arm is measured on its shortest schedule of at least 30 steps, or on a multiple of its
    longest one. An arm without a finished run has no cost: notes name these, and those that fail.
    """
    baseline, runs = study.protocol.baseline, _measured_runs(study)
    if baseline not in runs:
        return (), ["The costs of steps are not measured: no run of the baseline finished."]
    names = [workers.cache.path(trial).name for trial, _ in runs.values()]
    key = stable_digest("processes", names, study.protocol.versions["device"])[:32]
    path = workers.cache.folder.parent / "costs" / f"{key}.json"
    stored = read_stored(tuple[StepCost, ...], path, "the costs of steps are measured again")
    if stored is not None and len(stored) == len(runs):  # arms may have other names since
        pairs = zip(stored, runs, strict=True)
        return tuple(attrs.evolve(cost, arm=arm) for cost, arm in pairs), []
    workers.stop()
    measured: list[Mapping[str, StepCost]] = []
    errors: dict[str, str] = {}
    while len(measured) < _PROCESSES and baseline not in errors:
        costs, failed = _measure_arms(workers, baseline, runs)
        measured.append(costs)
        errors |= failed
    if baseline in errors:
        return (), [f"The costs of steps are not measured: {baseline}: {errors[baseline]}"]
    found = [join_costs([one[arm] for one in measured]) for arm in runs if arm not in errors]
    notes = [
        f"the cost of a step of arm {arm!r} cannot be measured: {errors[arm]}" for arm in errors
    ]
    if not notes:
        write_stored(tuple(found), path)
    return tuple(found), notes


def _measure_arms(
    workers: Workers, baseline: str, runs: Runs
) -> tuple[dict[str, StepCost], dict[str, str]]:
    """Return the costs of arms, in groups beside the baseline, and the errors of the others."""
    costs: dict[str, StepCost] = {}
    errors: dict[str, str] = {}
    others = [arm for arm in runs if arm != baseline]
    for at in range(0, max(1, len(others)), _AT_ONCE - 1):
        group = [baseline, *others[at : at + _AT_ONCE - 1]]
        found = _measure(workers, {arm: runs[arm] for arm in group}, errors)
        if baseline in errors:
            break
        base, first = found[baseline], costs.setdefault(baseline, found[baseline])
        costs |= {arm: rescale_cost(found[arm], base, first) for arm in group[1:] if arm in found}
    return costs, errors


def _measure(workers: Workers, runs: Runs, errors: dict[str, str]) -> dict[str, StepCost]:
    """Return the cost of each arm, and add why the others cannot be measured."""
    workers.progress.start("costs of steps", [])
    with ExitStack() as stack:
        started = [
            stack.enter_context(closing(ProcessRun(workers.folder, at, workers.subject, *run)))
            for at, run in enumerate(runs.values())
        ]
        wait([run.begun for run in started])  # one that is set up slows the others down
        blocks, failed = interleave([run.advance for run in started])
    costs: dict[str, StepCost] = {}
    for at, (arm, (trial, steps)) in enumerate(runs.items()):
        cost = None if at in failed else step_cost(trial, blocks[at], steps)
        if cost is None:
            errors[arm] = failed.get(at, "its run is too short")
        else:
            costs[arm] = cost
    return costs


def _measured_runs(study: Study) -> Runs:
    """Return the run of each arm whose steps are measured, and the number of its steps."""
    protocol = study.protocol
    finished: dict[str, dict[int, Trial]] = {}
    for one in study.reported:
        if one.outcome == "finished":
            finished.setdefault(one.trial.arm, {})[one.batches] = one.trial
    found = {}
    for arm in protocol.arms:
        if arm in finished:
            batches = finished[arm]
            factors = {batch: max(1, math.ceil(_STEPS / max(batch, 1))) for batch in batches}
            steps = min(factors, key=lambda one: (factors[one], one))
            trial, factor = batches[steps], factors[steps]
            length = Time.parse(trial.duration)
            duration = str(Time(length.value * factor, length.unit))
            trial = attrs.evolve(trial, duration=duration, seed=protocol.seeds[0])
            found[arm] = trial, steps * factor
    return found
