"""The stages of a comparison: short trials, tuning, reported trials, costs of steps."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, closing
from functools import cached_property, partial
from itertools import chain, product, zip_longest
from statistics import fmean
from typing import TypeAlias

import attrs

from composable._support.printable import format_duration
from composable.comparison.budget import (
    BudgetError,
    Estimates,
    Extent,
    Rung,
    count_batches,
    elapsed_seconds,
    equal_seconds,
    fit_budget,
    full_size,
    run_length,
    short_trials,
)
from composable.comparison.cost import interleave, join_costs, rescale_cost, step_cost
from composable.comparison.design import Design
from composable.comparison.digest import stable_digest
from composable.comparison.execution import ProcessRun, Workers
from composable.comparison.grids import sample
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

_RESERVE = 0.9
"""The part of the time left that is planned: the rest is for what estimates miss."""
_PROCESSES, _PLANNED = 4, 2
"""The times that each arm is measured, in a new process; and those that a budget provides for."""
_STEPS = 30
"""The steps of a shorter run leave few blocks to measure."""
_AT_ONCE = 8
"""The processes that are alive at once while steps are measured."""

Tried: TypeAlias = Mapping[str, Sequence[Settings]]
Seeds: TypeAlias = Mapping[str, Sequence[int]]
Runs: TypeAlias = Mapping[str, tuple[Trial, int]]
"""The runs whose steps are measured, and the numbers of their steps."""


@attrs.frozen
class _Plan:
    """The trials of a size, for the first settings that are not chosen yet."""

    design: Design
    workers: Workers
    estimates: Estimates
    size: Extent

    @cached_property
    def tried(self) -> Tried:
        every = self.design.tried.items()
        return {arm: sample(settings, self.size.configurations) for arm, settings in every}

    @property
    def schedules(self) -> dict[str, tuple[str, ...]]:
        every = self.design.protocol.schedules.items()
        return {arm: own[: self.size.schedules] for arm, own in every}

    @property
    def tuning_seeds(self) -> Seeds:
        return {arm: self.design.seeds(arm, "tuning") for arm in self.design.tried}

    def scale(self, arm: str, duration: str) -> str:
        """Return the duration in which an arm is tuned for the seconds of the baseline."""
        base = self.design.protocol.baseline
        if self.design.protocol.data_amounts:
            return duration
        measured = base if arm == self.design.protocol.repeated else arm
        rate = self.estimates.relative_rate(measured, base)
        return equal_seconds(duration, rate, self.estimates.epoch_length)

    def later(self, rungs: Iterable[Rung]) -> list[Trial]:
        return [*chain.from_iterable(map(self.tuning, rungs)), *self.reporting()]

    def tuning(self, rung: Rung) -> list[Trial]:
        """Return as many trials of a round as there will be, of these durations."""
        entering = {arm: settings[: rung.count] for arm, settings in self.tried.items()}
        return rung_trials(entering, rung.duration, self.tuning_seeds, self.scale)

    def reporting(self, settings: Mapping[str, Settings] | None = None) -> list[Trial]:
        """Return the reported trials, seed by seed, for chosen settings or for the first ones."""
        chosen = settings or {arm: tried[0] for arm, tried in self.tried.items()}
        return [
            Trial(arm, chosen[arm], duration, self.design.seeds(arm)[at], "reporting")
            for at in range(self.size.seeds)
            for arm, durations in self.schedules.items()
            for duration in durations
        ]

    @property
    def seconds(self) -> float:
        tuning = (self.elapsed(self.tuning(rung)) for rung in self.size.rungs)
        return sum(tuning) + self.elapsed(self.reporting()) + self.costs()

    def elapsed(self, trials: Sequence[Trial]) -> float:
        each = map(self.estimates.seconds, trials)
        return elapsed_seconds(each, self.workers.count) * self.workers.slowdown

    def costs(self) -> float:
        """Return the estimated seconds of measuring the costs of steps, one arm after the other."""
        epoch, found = self.design.epoch_length, 0.0
        for arm, durations in self.schedules.items():
            lengths = {run_length(one, epoch): one for one in durations}
            countable = count_batches(durations[0], epoch) is not None
            length, factor = _measured_length(lengths) if countable else (max(lengths), 1)
            trial = Trial(arm, {}, lengths[length], 0, "reporting")
            found += factor * self.estimates.seconds(trial) * self.workers.slowdown
            # Processes start at the same time, as many as workers did.
            found += self.workers.start_seconds / self.workers.count
        return _PLANNED * found

    def fitted(self, full: Extent, until: float) -> "_Plan":
        """Return the plan of the largest size that the time allows."""
        if until == math.inf:
            return attrs.evolve(self, size=full)
        left = max(0.0, until - time.monotonic()) * _RESERVE
        durations = self.design.protocol.durations
        size = fit_budget(full, durations, lambda one: attrs.evolve(self, size=one).seconds, left)
        return attrs.evolve(self, size=size)


def train_design(design: Design, workers: Workers, until: float = math.inf) -> Study:
    """Train a design: as much as fits until a reading of `time.monotonic`.

    Returns:
        The study, with the seeds for which every arm has all its trials, and without costs.

    Raises:
        BudgetError: Not even the smallest comparison with a verdict fits.
    """
    protocol = design.protocol
    most = max(map(len, protocol.schedules.values()))
    configurations = len(design.tried[protocol.baseline])
    full = full_size(configurations, len(protocol.seeds), protocol.durations, most)
    plan = _Plan(design, workers, Estimates.of([], design.epoch_length), full)
    plan = _estimated(plan, until).fitted(full, until)
    size = plan.size
    if (took := plan.seconds) > (left := until - time.monotonic()):
        raise BudgetError(
            f"{format_duration(max(left, 0.0))} of the budget are left after the costs of the arms "
            "were measured, and the smallest comparison that gives a verdict takes about "
            f"{format_duration(took)}: {size.configurations} configurations, {size.seeds} seeds "
            f"and {size.schedules} schedules of each arm. Nothing else was trained; pass a larger "
            "budget, fewer arms, or shorter durations."
        )
    waiting = list(size.rungs)
    results: list[TrialResult] = []

    def run(trials: Sequence[Trial]) -> list[TrialResult | None]:
        del waiting[0]
        kept = plan.elapsed(plan.reporting()) + plan.costs()
        found = workers.train("tuning", trials, plan.later(waiting), until - kept)
        results.extend(one for one in found if one is not None)
        return found

    chosen, notes = tune(
        plan.tried, size.rungs, plan.tuning_seeds, run, partial(_score, design), plan.scale
    )
    plan = plan.fitted(size._replace(configurations=1, rungs=()), until)
    trials = plan.reporting(chosen)
    found = workers.train("reported runs", trials, until=until - plan.costs())
    reported, complete, cut = whole_seeds(found, len(trials) // plan.size.seeds)
    reduced = size._replace(seeds=plan.size.seeds, schedules=plan.size.schedules)
    notes = [*protocol.notes, *_reduced(design, full, reduced), *notes, *cut]
    protocol = protocol.with_schedules(plan.schedules)
    return Study(
        attrs.evolve(protocol, chosen=chosen, seeds=protocol.seeds[:complete], notes=tuple(notes)),
        (*results, *reported),
        (),
    )


def train_designs(designs: Sequence[Design], workers: Workers, until: float = math.inf) -> Study:
    """Train the designs of all amounts, each in an equal part of the time left, as one study."""
    studies: list[Study] = []
    for at, design in enumerate(designs):
        now = time.monotonic()
        studies.append(train_design(design, workers, now + (until - now) / (len(designs) - at)))
    protocols = [one.protocol for one in studies]
    notes = dict.fromkeys(note for one in protocols for note in one.notes)
    protocol = attrs.evolve(
        protocols[-1],
        data_amounts=tuple(amount for one in protocols for amount in one.data_amounts),
        seeds=min((one.seeds for one in protocols), key=len),
        notes=tuple(notes),
    )
    return Study(protocol, tuple(one for study in studies for one in study.results), ())


def _estimated(plan: _Plan, until: float) -> _Plan:
    """Measure the costs of the arms, where tuning or a budget depends on them."""
    design, workers, limited = plan.design, plan.workers, until < math.inf
    if not limited and (not design.tuned or design.protocol.data_amounts):
        return plan
    shortest = {arm: durations[0] for arm, durations in plan.schedules.items()}
    trials = short_trials(design.tried, shortest, plan.tuning_seeds, design.epoch_length)
    later = plan.later(plan.size.rungs)
    warm: list[TrialResult | None] = []
    if limited:  # how fast is the machine now? The first trial of a process imports, too
        warm = workers.train("warm-up", trials[:1] * workers.count, later, until, stored=False)
    found = workers.train("short trials", trials, later, until, alone=True)
    if limited and None in (*warm, *found):
        raise BudgetError(
            "the budget ended before a short trial of each arm had measured the costs; pass a "
            "larger one."
        )
    ran = [one for one in found if one is not None]
    return attrs.evolve(plan, estimates=Estimates.of(ran, design.epoch_length))


def _reduced(design: Design, full: Extent, size: Extent) -> list[str]:
    """Return a note if the budget has reduced the comparison."""
    if size == full:
        return []
    rounds = f"{len(size.rungs)} round{'s' * (len(size.rungs) != 1)}"
    tuned = f"{size.configurations} of {full.configurations} configurations of each arm in "
    return [
        f"The budget allows {f'{tuned}{rounds} of tuning, ' if design.tuned else ''}{size.seeds} "
        f"of {full.seeds} seeds and {size.schedules} of {full.schedules} schedules."
    ]


def whole_seeds(
    results: Sequence[TrialResult | None], each: int
) -> tuple[list[TrialResult], int, list[str]]:
    """Return the results of the seeds that are complete, their number, and a note on the others.

    The results are those of the reported trials, seed by seed, with as many for each.
    """
    missing, every = results.count(None), len(results) // each
    complete = results.index(None) // each if missing else every
    kept = [one for one in results[: complete * each] if one is not None]
    note = (
        f"The budget ended with {missing} of {len(results)} reported runs not run: {complete} of "
        f"{every} seeds are complete, and reported."
    )
    return kept, complete, [note] if missing else []


# --- tuning ---


def rung_trials(
    tried: Tried, duration: str, seeds: Seeds, scale: Callable[[str, str], str]
) -> list[Trial]:
    """Return the trials of a round, in turn for all arms: if it is cut short, all had as many."""
    by_arm = [
        [
            Trial(arm, one, scale(arm, duration), seed, "tuning")
            for one, seed in product(settings, seeds[arm])
        ]
        for arm, settings in tried.items()
    ]
    return [trial for turn in zip_longest(*by_arm) for trial in turn if trial is not None]


def tune(
    tried: Tried,
    rungs: Sequence[Rung],
    seeds: Seeds,
    run: Callable[[Sequence[Trial]], Sequence[TrialResult | None]],
    score: Callable[[TrialResult | None], float],
    scale: Callable[[str, str], str] = lambda arm, duration: duration,
) -> tuple[dict[str, Settings], list[str]]:
    """Choose the settings of each arm: every round keeps those with the best mean score.

    Of equal ones the earlier is kept. If a round is cut short, the settings are chosen by what it
    has finished, and then by the round before.

    Args:
        tried: The settings to try by arm.
        rungs: The rounds.
        seeds: The seeds by arm.
        run: Trains trials, and returns a result for each; None for one that was not run.
        score: The value of a result, higher is better; -inf for one without a result.
        scale: The duration in which an arm trains for the seconds of the baseline.

    Returns:
        The settings by arm, and notes.
    """
    left = {arm: list(settings) for arm, settings in tried.items()}
    notes: list[str] = []
    for rung in rungs:
        left = {arm: settings[: rung.count] for arm, settings in left.items()}
        trials = rung_trials(left, rung.duration, seeds, scale)
        results = run(trials)
        every = [(trial.arm, trial.settings) for trial in trials]
        for arm, settings in left.items():
            own = [(s, one) for (a, s), one in zip(every, results, strict=True) if a == arm]
            means = [fmean(score(one) for tried, one in own if tried == s) for s in settings]
            order = sorted(range(len(settings)), key=means.__getitem__, reverse=True)
            left[arm] = [settings[i] for i in order]
            ran = [one for _, one in own if one is not None]
            if ran and all(score(one) == -math.inf for one in ran):
                errors = sorted({one.error for one in ran if one.error})
                why = f": {errors[0]}" if errors else "."
                notes.append(f"{arm}: no tuning trial of {rung.duration} has a result{why}")
        if missing := [*results].count(None):
            notes.append(
                f"Tuning was cut short: {missing} of {len(trials)} trials of a round of "
                f"{rung.duration} were not run."
            )
            break
    return {arm: settings[0] for arm, settings in left.items()}, notes


def _score(design: Design, result: TrialResult | None) -> float:
    protocol = design.protocol
    if result is None or result.outcome != "finished":
        return -math.inf
    if not (result := stop_at_best(protocol, [result])).curve:
        return -math.inf
    sign = 1 if (protocol.tuning_mode or protocol.mode) == "max" else -1
    score = sign * result.curve[-1].metrics.get(protocol.tuning_metric, math.nan)
    return -math.inf if math.isnan(score) else score


# --- the costs of steps ---


def measure_costs(
    workers: Workers, study: Study, until: float = math.inf
) -> tuple[tuple[StepCost, ...], list[str]]:
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
    begun = time.monotonic()
    while len(measured) < _PROCESSES and baseline not in errors:
        costs, failed = _measure_arms(workers, baseline, runs, until)
        now = time.monotonic()
        if measured and now > until:  # the last blocks are missing
            break
        measured.append(costs)
        errors |= failed
        if now + (now - begun) / len(measured) > until:
            break
    if baseline in errors:
        return (), [f"The costs of steps are not measured: {baseline}: {errors[baseline]}"]
    found = [join_costs([one[arm] for one in measured]) for arm in runs if arm not in errors]
    notes = [
        f"the cost of a step of arm {arm!r} cannot be measured: {errors[arm]}" for arm in errors
    ]
    if len(measured) < _PROCESSES:
        notes.append(f"The budget left time for {len(measured)} of {_PROCESSES} processes an arm.")
    if not notes:
        write_stored(tuple(found), path)
    return tuple(found), notes


def _measure_arms(
    workers: Workers, baseline: str, runs: Runs, until: float
) -> tuple[dict[str, StepCost], dict[str, str]]:
    """Return the costs of arms, in groups beside the baseline, and the errors of the others."""
    costs: dict[str, StepCost] = {}
    errors: dict[str, str] = {}
    others = [arm for arm in runs if arm != baseline]
    for at in range(0, max(1, len(others)), _AT_ONCE - 1):
        group = [baseline, *others[at : at + _AT_ONCE - 1]]
        found = _measure(workers, {arm: runs[arm] for arm in group}, until, errors)
        if baseline in errors:
            break
        base, first = found[baseline], costs.setdefault(baseline, found[baseline])
        costs |= {arm: rescale_cost(found[arm], base, first) for arm in group[1:] if arm in found}
    return costs, errors


def _measure(
    workers: Workers, runs: Runs, until: float, errors: dict[str, str]
) -> dict[str, StepCost]:
    """Return the cost of each arm, and add why the others cannot be measured."""
    workers.progress.start("costs of steps", [])
    with ExitStack() as stack:
        started = [
            stack.enter_context(closing(ProcessRun(workers.folder, at, workers.subject, *run)))
            for at, run in enumerate(runs.values())
        ]
        left = None if until == math.inf else max(0.0, until - time.monotonic())
        wait([run.begun for run in started], left)  # one that is set up slows the others down
        blocks, failed = interleave([run.advance for run in started], until)
    costs: dict[str, StepCost] = {}
    for at, (arm, (trial, steps)) in enumerate(runs.items()):
        cost = None if at in failed else step_cost(trial, blocks[at], steps)
        if cost is None:
            errors[arm] = failed.get(at, "its run is too short, or the budget ended")
        else:
            costs[arm] = cost
    return costs


def _measured_runs(study: Study) -> Runs:
    """Return the run of each arm whose steps are measured, and the number of its steps."""
    protocol = study.protocol
    finished: dict[str, dict[float, Trial]] = {}
    for one in study.reported:
        if one.outcome == "finished":
            finished.setdefault(one.trial.arm, {})[one.batches] = one.trial
    found = {}
    for arm in protocol.arms:
        if arm in finished:
            longest, factor = _measured_length(finished[arm])
            trial = finished[arm][longest]
            length = Time.parse(trial.duration)
            duration = str(Time(length.value * factor, length.unit))
            trial = attrs.evolve(trial, duration=duration, seed=protocol.seeds[0])
            found[arm] = trial, int(longest) * factor
    return found


def _measured_length(batches: Iterable[float]) -> tuple[float, int]:
    """Return the shortest of some lengths with enough steps, or the longest and a factor."""
    factors = {one: max(1, math.ceil(_STEPS / max(one, 1))) for one in batches}
    best = min(factors, key=lambda one: (factors[one], one))
    return best, factors[best]
