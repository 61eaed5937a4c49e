"""The stages of a comparison: short trials, tuning, reported trials, costs of steps, extensions."""

import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import attrs
import torch

from composable.comparison.budget import (
    BudgetError,
    Estimates,
    Size,
    elapsed_seconds,
    equal_seconds,
    fit_budget,
    format_seconds,
    full_size,
    is_countable,
    length_of,
    short_trials,
)
from composable.comparison.building import BuildError
from composable.comparison.cache import read_stored, write_stored
from composable.comparison.cost import interleave, rescale, step_cost
from composable.comparison.design import Design
from composable.comparison.digest import digest_of
from composable.comparison.execution import ProcessRun, Workers
from composable.comparison.records import StepCost, Trial, TrialResult
from composable.comparison.trial import Request
from composable.comparison.tuning import Rung, Settings, rung_trials, sample, tune
from composable.core.time import Time

__all__ = ["Trained", "extend", "measure_costs", "train"]

_RESERVE = 0.9
"""The part of the time left that is planned: the rest is for what estimates miss."""
_STEPS = 120
"""The steps of a shorter run leave few blocks to measure."""
_AT_ONCE = 8
"""The processes that are alive at once while steps are measured."""


@attrs.frozen
class Trained:
    """What a comparison has trained."""

    results: tuple[TrialResult, ...]
    """Of tuning and of the report, without the seeds that are not complete."""
    settings: Mapping[str, Settings]
    """The chosen settings of each arm."""
    schedules: Mapping[str, tuple[str, ...]]
    """The reported schedules of each arm."""
    seeds: tuple[int, ...]
    """The reported seeds: those for which every arm has all its trials."""
    notes: tuple[str, ...]


class _Plan:
    """The trials of a size, for the first settings that are not chosen yet."""

    def __init__(self, design: Design, estimates: Estimates, size: Size) -> None:
        self.design, self.estimates, self.size = design, estimates, size
        every, count = design.tried.by_arm, size.configurations
        self.tried = {arm: sample(settings, count) for arm, settings in every.items()}
        self.schedules = {arm: own[: size.schedules] for arm, own in design.schedules.items()}

    def scale(self, arm: str, duration: str) -> str:
        """Return the duration in which an arm is tuned for the seconds of the baseline."""
        base = self.design.baseline
        measured = base if arm == self.design.repeated else arm
        rate = self.estimates.relative_rate(measured, base)
        return equal_seconds(duration, rate, self.estimates.epoch_length)

    def later(self, rungs: Iterable[Rung]) -> list[Trial]:
        """Return the trials of rounds, and the reported ones."""
        return [*chain.from_iterable(map(self.tuning, rungs)), *self.reporting()]

    def tuning(self, rung: Rung) -> list[Trial]:
        """Return as many trials of a round as there will be, of these durations."""
        entering = {arm: settings[: rung.count] for arm, settings in self.tried.items()}
        return rung_trials(entering, rung.duration, self.design.tuning_seeds(), self.scale)

    def reporting(self, settings: Mapping[str, Settings] | None = None) -> list[Trial]:
        """Return the reported trials, seed by seed, for chosen settings or for the first ones."""
        first = {arm: tried[0] for arm, tried in self.tried.items()}
        return [
            Trial(arm, (settings or first)[arm], duration, seeds[at], "reporting")
            for at in range(self.size.seeds)
            for arm, durations in self.schedules.items()
            for seeds in [self.design.reporting_seeds(arm)]
            for duration in durations
        ]

    def seconds(self, workers: Workers) -> float:
        """Return the estimated seconds of everything."""
        tuning = (self.elapsed(self.tuning(rung), workers) for rung in self.size.rungs)
        return sum(tuning) + self.elapsed(self.reporting(), workers) + self.costs(workers)

    def elapsed(self, trials: Sequence[Trial], workers: Workers) -> float:
        """Return the estimated seconds of a stage."""
        each = map(self.estimates.seconds, trials)
        return elapsed_seconds(each, workers.count) * workers.slowdown

    def costs(self, workers: Workers) -> float:
        """Return the estimated seconds of measuring the costs of steps, one arm after the other."""
        epoch, found = self.design.epoch_length, 0.0
        for arm, durations in self.schedules.items():
            if arm != self.design.repeated:
                lengths = {length_of(one, epoch): one for one in durations}
                countable = is_countable(durations[0], epoch)
                length, factor = _measured_length(lengths) if countable else (max(lengths), 1)
                trial = Trial(arm, {}, lengths[length], 0, "reporting")
                found += factor * self.estimates.seconds(trial) * workers.slowdown
                # Processes start at the same time, as many as workers did.
                found += workers.start_seconds / workers.count
        return found


def train(design: Design, workers: Workers, until: float = math.inf) -> Trained:
    """Train a design: as much as fits until a reading of `time.monotonic`.

    Raises:
        BudgetError: Not even the smallest comparison with a verdict fits.
    """
    estimates = _estimate(design, workers, until)
    size = _fitted(design, estimates, workers, _full(design), until)
    plan = _Plan(design, estimates, size)
    if (took := plan.seconds(workers)) > (left := until - time.monotonic()):
        raise BudgetError(
            f"{format_seconds(max(left, 0.0))} of the budget are left after the costs of the arms "
            "were measured, and the smallest comparison that gives a verdict takes about "
            f"{format_seconds(took)}: {size.configurations} configurations, {size.seeds} seeds and "
            f"{size.schedules} schedules of each arm. Nothing else was trained; pass a larger "
            "budget, fewer arms, or shorter durations."
        )
    waiting = list(size.rungs)
    results: list[TrialResult] = []

    def tune_on(trials: Sequence[Trial]) -> list[TrialResult | None]:
        del waiting[0]
        kept = plan.elapsed(plan.reporting(), workers) + plan.costs(workers)
        requests = [*map(design.request, trials)]
        found = workers.train("tuning", requests, plan.later(waiting), until - kept)
        results.extend(one for one in found if one is not None)
        return found

    chosen = tune(
        plan.tried, size.rungs, design.tuning_seeds(), tune_on, _score(design), plan.scale
    )
    tuned, rest = size, attrs.evolve(size, configurations=1, rungs=())
    size = _fitted(design, estimates, workers, rest, until)
    plan = _Plan(design, estimates, size)
    trials = plan.reporting(chosen.settings)
    requests = [*map(design.request, trials)]
    found = workers.train("reported runs", requests, until=until - plan.costs(workers))
    reported, complete, cut = whole_seeds(found, len(trials) // size.seeds)
    reduced = attrs.evolve(tuned, seeds=size.seeds, schedules=size.schedules)
    return Trained(
        (*results, *reported),
        chosen.settings,
        plan.schedules,
        design.seeds.reporting[:complete],
        (*_reduced(design, reduced), *chosen.notes, *cut),
    )


def _estimate(design: Design, workers: Workers, until: float) -> Estimates:
    """Measure the costs of the arms, where tuning or a budget depends on them."""
    length, limited = design.epoch_length, until < math.inf
    if not design.tuned and not limited:
        return Estimates.of([], length)
    shortest = {arm: durations[0] for arm, durations in design.schedules.items()}
    trials = short_trials(design.tried.by_arm, shortest, design.tuning_seeds(), length)
    requests = [*map(design.request, trials)]
    plan = _Plan(design, Estimates.of([], length), _full(design))
    later = plan.later(plan.size.rungs)
    warm: list[TrialResult | None] = []
    if limited:  # how fast is the machine now? The first trial of a process imports, too
        warm = workers.train("warm-up", requests[:1] * workers.count, later, until, stored=False)
    found = workers.train("short trials", requests, later, until)
    if limited and None in (*warm, *found):
        raise BudgetError(
            "the budget ended before a short trial of each arm had measured the costs; pass a "
            "larger one."
        )
    return Estimates.of([one for one in found if one is not None], length)


def _full(design: Design) -> Size:
    most = max(map(len, design.schedules.values()))
    return full_size(design.tried.count, len(design.seeds.reporting), design.durations, most)


def _fitted(
    design: Design, estimates: Estimates, workers: Workers, full: Size, until: float
) -> Size:
    """Return the largest size that the time allows."""
    if until == math.inf:
        return full
    left = max(0.0, until - time.monotonic()) * _RESERVE
    return fit_budget(
        full, design.durations, lambda size: _Plan(design, estimates, size).seconds(workers), left
    )


def _reduced(design: Design, size: Size) -> list[str]:
    """Return a note if the budget has reduced the comparison."""
    full = _full(design)
    if size == full:
        return []
    rounds = f"{len(size.rungs)} round{'s' * (len(size.rungs) != 1)}"
    tuned = f"{size.configurations} of {full.configurations} configurations of each arm in "
    return [
        f"The budget allows {f'{tuned}{rounds} of tuning, ' if design.tuned else ''}{size.seeds} "
        f"of {full.seeds} seeds and {size.schedules} of {full.schedules} schedules."
    ]


def _score(design: Design) -> Callable[[TrialResult | None], float]:
    sign = 1 if design.metrics.tuning_mode == "max" else -1

    def score(result: TrialResult | None) -> float:
        if result is None or result.outcome != "finished" or not result.curve:
            return -math.inf
        return sign * result.curve[-1].metrics.get(design.metrics.tuning, math.nan)

    return score


def whole_seeds(
    results: Sequence[TrialResult | None], each: int
) -> tuple[list[TrialResult], int, list[str]]:
    """Return the results of the seeds that are complete, their number, and a note on the others.

    The results are those of the reported trials, seed by seed, with as many for each.
    """
    blocks = [results[at : at + each] for at in range(0, len(results), each)]
    complete = 0
    while complete < len(blocks) and None not in blocks[complete]:
        complete += 1
    kept = [one for block in blocks[:complete] for one in block if one is not None]
    notes = []
    if complete < len(blocks):
        missing = sum(one is None for one in results)
        notes.append(
            f"The budget ended with {missing} of {len(results)} reported runs not run: "
            f"{complete} of {len(blocks)} seeds are complete, and reported."
        )
    return kept, complete, notes


# --- the schedules that the analysis names ---


def extend(
    design: Design,
    workers: Workers,
    trained: Trained,
    needed: Mapping[str, str],
    until: float = math.inf,
) -> Trained:
    """Train arms on one more schedule each, with the settings and seeds that they have."""
    added = {arm: one for arm, one in needed.items() if one not in trained.schedules[arm]}
    count = len(trained.seeds)
    trials = [
        Trial(arm, trained.settings[arm], duration, seed, "reporting")
        for arm, duration in added.items()
        for seed in design.reporting_seeds(arm)[:count]
    ]
    try:
        found = workers.train("added schedules", [*map(design.request, trials)], until=until)
    except BuildError as error:  # what has been trained is reported
        note = f"The schedules that the analysis names cannot be added: {error}"
        return attrs.evolve(trained, notes=(*trained.notes, note))
    schedules, results, notes = dict(trained.schedules), list(trained.results), [*trained.notes]
    for at, (arm, duration) in enumerate(added.items()):
        runs = [one for one in found[at * count : (at + 1) * count] if one is not None]
        if len(runs) < count:
            notes.append(f"The budget leaves no time for the schedule {duration} of {arm!r}.")
            continue
        results += runs
        schedules[arm] = tuple(sorted((*schedules[arm], duration), key=Time.parse))
        notes.append(f"{arm}: the schedule {duration} was added, which the analysis names.")
    return attrs.evolve(trained, results=tuple(results), schedules=schedules, notes=tuple(notes))


# --- the costs of steps ---


def measure_costs(
    design: Design, workers: Workers, trained: Trained, until: float = math.inf
) -> tuple[tuple[StepCost, ...], tuple[str, ...]]:
    """Measure the cost of the steps of each arm, or read stored costs.

    An arm is measured on its shortest schedule of at least 120 steps, or on a multiple of its
    longest one. The A/A arm has the cost of the baseline, and an arm without a finished run none:
    notes name these.
    """
    runs = _measured_runs(design, trained)
    if design.baseline not in runs:
        return (), ("The costs of steps are not measured: no run of the baseline finished.",)
    requests = [design.request(trial) for trial, _ in runs.values()]
    names = [workers.cache.path(workers.context, one).name for one in requests]
    key = digest_of("interleaved", names, _processor(design.device))[:32]
    path = workers.cache.folder.parent / "costs" / f"{key}.json"
    stored = read_stored(tuple[StepCost, ...], path, "the costs of steps are measured again")
    if stored is not None and len(stored) == len(requests):  # arms may have other names since
        pairs = zip(stored, runs, strict=True)
        return tuple(attrs.evolve(cost, arm=arm) for cost, arm in pairs), ()
    workers.stop()
    steps = [count for _, count in runs.values()]
    costs: list[StepCost] = []
    notes: list[str] = []
    for at in range(1, max(2, len(requests)), _AT_ONCE - 1):
        group = [0, *range(at, min(at + _AT_ONCE - 1, len(requests)))]
        measured = _measure(workers, [requests[i] for i in group], [steps[i] for i in group], until)
        base = measured[0]
        if isinstance(base, str):
            return (), (f"The costs of steps are not measured: {design.baseline}: {base}",)
        costs += [] if costs else [base]
        for index, cost in zip(group[1:], measured[1:], strict=True):
            if isinstance(cost, str):
                arm = requests[index].trial.arm
                notes.append(f"the cost of a step of arm {arm!r} cannot be measured: {cost}")
            else:
                costs.append(rescale(cost, base, costs[0]))
    if not notes:
        write_stored(tuple(costs), path)
    return tuple(costs), tuple(notes)


def _measure(
    workers: Workers, requests: Sequence[Request], steps: Sequence[int], until: float
) -> list[StepCost | str]:
    """Return the cost of each arm, or why it cannot be measured."""
    workers.progress.start("costs of steps", [])
    runs: list[ProcessRun] = []
    try:
        for number, (one, count) in enumerate(zip(requests, steps, strict=True)):
            runs.append(ProcessRun(workers.machine, number, workers.subject, one, count))
        blocks, errors = interleave(runs, until)
    finally:
        for run in runs:
            run.close()
    costs: list[StepCost | str] = []
    for index, (one, count) in enumerate(zip(requests, steps, strict=True)):
        cost = None if index in errors else step_cost(one.trial, blocks[index], count)
        costs.append(cost or errors.get(index, "its run is too short, or the budget ended"))
    return costs


def _measured_runs(design: Design, trained: Trained) -> dict[str, tuple[Trial, int]]:
    """Return the run of each arm whose steps are measured, and the number of its steps."""
    found: dict[str, tuple[Trial, int]] = {}
    for arm in design.arms:
        runs = {
            one.batches: one.trial.duration
            for one in trained.results
            if (one.trial.arm, one.trial.purpose, one.outcome) == (arm, "reporting", "finished")
        }
        if runs and arm != design.repeated:
            longest, factor = _measured_length(runs)
            batches = int(longest)
            length = Time.parse(runs[batches])
            duration = str(Time(length.value * factor, length.unit))
            seed, settings = design.seeds.reporting[0], trained.settings[arm]
            trial = Trial(arm, settings, duration, seed, "reporting")
            found[arm] = trial, batches * factor
    return found


def _measured_length(batches: Iterable[float]) -> tuple[float, int]:
    """Return the shortest of some lengths with enough steps, or the longest and a factor."""
    factors = {one: max(1, math.ceil(_STEPS / max(one, 1))) for one in batches}
    best = min(factors, key=lambda one: (factors[one], one))
    return best, factors[best]


def _processor(device: str) -> str:
    """Return the model of the GPU, or else of the CPU, as the system names it."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line for line in lines if line.startswith("model name"))
        return f"{model.partition(':')[2].strip()} {device}"
    return f"{platform.processor() or platform.machine()} {device}"
