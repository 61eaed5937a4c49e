"""The stages of a comparison: short trials, tuning, and the reported trials."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from composable.comparison.plan.design import Design
from composable.comparison.plan.estimates import Estimates, equal_seconds, short_trials
from composable.comparison.plan.grids import Settings, sample
from composable.comparison.plan.planning import Size, fit_budget, full_size, reporting_trials
from composable.comparison.plan.progress import format_seconds
from composable.comparison.plan.tuning import Score, rung_trials, tune
from composable.comparison.records import Trial, TrialResult

__all__ = ["Trained", "train", "whole_seeds"]

_FOR_TUNING = 0.5
"""The part of a budget that tuning may take."""
_RESERVE = 0.9
"""The part of a budget that is planned: the rest is for what estimates miss."""

Train = Callable[[str, Sequence[Trial], Sequence[Trial], float], list[TrialResult | None]]
"""Trains the trials of a stage, before later ones, until a fraction of the budget is spent."""


@attrs.frozen
class Trained:
    """What a comparison has trained."""

    results: tuple[TrialResult, ...]
    """Of tuning and of the report, without the seeds that are not complete."""
    settings: Mapping[str, Settings]
    """The chosen settings of each arm."""
    seeds: tuple[int, ...]
    """The reported seeds: those for which every arm has all its trials."""
    notes: tuple[str, ...]


def train(
    design: Design, run: Train, workers: int, spent: Callable[[], float] = lambda: 0.0
) -> Trained:
    """Train a design: as much as its budget allows.

    Args:
        design: What is compared.
        run: Trains trials.
        workers: The number of trials that run in parallel.
        spent: The fraction of the budget that is spent.
    """
    estimates = _estimate(design, run)
    begun = spent()  # starting the workers takes time, too
    size, notes = _size(design, estimates, workers, 1 - begun)
    for_tuning = begun + _FOR_TUNING * (1 - begun)
    plan = _Plan(design, estimates, size)
    planned = list(plan.tuning())
    results: list[TrialResult] = []

    def tune_on(trials: Sequence[Trial]) -> list[TrialResult | None]:
        del planned[: len(trials)]
        found = run("tuning", trials, [*planned, *plan.reporting()], for_tuning)
        results.extend(one for one in found if one is not None)
        return found

    chosen = tune(
        plan.tried, size.rungs, design.tuning_seeds(), tune_on, _score(design), plan.scale
    )
    trials = plan.reporting(chosen.settings)
    found = run("reported runs", trials, [], 1.0)
    reported, complete, cut = whole_seeds(found, len(trials) // size.seeds)
    return Trained(
        (*results, *reported),
        chosen.settings,
        design.seeds.reporting[:complete],
        (*notes, *chosen.notes, *cut),
    )


def _estimate(design: Design, run: Train) -> Estimates:
    """Measure the costs of the arms, where tuning or a budget depends on them."""
    length = design.built.epoch_length
    if not design.tuned and design.budget is None:
        return Estimates.of([], length)
    shortest = {arm: durations[0] for arm, durations in design.schedules.items()}
    trials = short_trials(design.tried.by_arm, shortest, design.tuning_seeds(), length)
    size = full_size(design.tried.count, len(design.seeds.reporting), design.durations)
    plan = _Plan(design, Estimates.of([], length), size)
    found = run("short trials", trials, [*plan.tuning(), *plan.reporting()], 1.0)
    return Estimates.of([one for one in found if one is not None], length)


def _score(design: Design) -> Score:
    sign = 1 if design.metrics.tuning_mode == "max" else -1

    def score(result: TrialResult | None) -> float:
        if result is None or result.outcome != "finished" or not result.curve:
            return -math.inf
        return sign * result.curve[-1].metrics.get(design.metrics.tuning, math.nan)

    return score


@attrs.frozen(eq=False)
class _Plan:
    """The trials of a size, for the first settings that are not chosen yet."""

    design: Design
    estimates: Estimates
    size: Size

    @property
    def tried(self) -> dict[str, Sequence[Settings]]:
        """The configurations of each arm."""
        count = self.size.configurations
        return {arm: sample(every, count) for arm, every in self.design.tried.by_arm.items()}

    def scale(self, arm: str, duration: str) -> str:
        """Return the duration in which an arm is tuned for the seconds of the baseline."""
        base = self.design.baseline
        measured = base if arm == self.design.repeated else arm
        rate = self.estimates.relative_rate(measured, base)
        return equal_seconds(duration, rate, self.estimates.epoch_length)

    def tuning(self) -> Iterator[Trial]:
        """Return as many trials of tuning as there will be, of these durations."""
        for rung in self.size.rungs:
            entering = {arm: settings[: rung.count] for arm, settings in self.tried.items()}
            yield from rung_trials(entering, rung.duration, self.design.tuning_seeds(), self.scale)

    def reporting(self, settings: Mapping[str, Settings] | None = None) -> list[Trial]:
        """Return the reported trials, for chosen settings or for the first ones."""
        first = {arm: tried[0] for arm, tried in self.tried.items()}
        return reporting_trials(
            list(self.design.arms),
            settings or first,
            self.design.schedules,
            lambda arm: self.design.reporting_seeds(arm)[: self.size.seeds],
        )

    def seconds(self) -> tuple[float, float]:
        """Return the estimated seconds of tuning, and those of the rest.

        The costs of steps are measured in one more run of each arm but the A/A arm.
        """
        tuning, reporting = self.tuning(), self.reporting()
        seed, schedules = self.design.seeds.reporting[0], self.design.schedules
        calibration = [
            one for one in reporting if (one.duration, one.seed) == (schedules[one.arm][-1], seed)
        ]
        rest = sum(map(self.estimates.seconds, [*reporting, *calibration]))
        return sum(map(self.estimates.seconds, tuning)), rest


def _size(
    design: Design, estimates: Estimates, workers: int, left: float
) -> tuple[Size, list[str]]:
    """Return how much is trained, and a note if the budget makes it less."""
    full = full_size(design.tried.count, len(design.seeds.reporting), design.durations)
    budget = design.budget
    if budget is None:
        return full, []

    def cost(size: Size) -> float:
        tuning, reporting = _Plan(design, estimates, size).seconds()
        planned = max(budget * left, 1e-9) * workers * _RESERVE
        return max(tuning / _FOR_TUNING, tuning + reporting) / planned

    size = fit_budget(full, design.durations, cost)
    expected = format_seconds(sum(_Plan(design, estimates, size).seconds()) / workers)
    notes = []
    if size != full:
        tuned = f"{size.configurations} of {full.configurations} configurations of each arm in "
        rounds = f"{len(size.rungs)} round{'s' * (len(size.rungs) != 1)}"
        tuned = f"{tuned}{rounds} of tuning, and " if design.tuned else ""
        notes.append(
            f"The budget of {format_seconds(budget)} allows {tuned}{size.seeds} of {full.seeds} "
            f"seeds (estimated: {expected})."
        )
    if cost(size) > 1:
        notes.append(
            f"The budget of {format_seconds(budget)} is too short for the smallest comparison, "
            f"which takes about {expected}."
        )
    return size, notes


def whole_seeds(
    results: Sequence[TrialResult | None], each: int
) -> tuple[list[TrialResult], int, list[str]]:
    """Return the results of the seeds that are complete, their number, and a note on the others.

    Args:
        results: The results of the reported trials, seed by seed.
        each: The number of trials of a seed.
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
