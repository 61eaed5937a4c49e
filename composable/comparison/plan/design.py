"""The design of a comparison: everything that is checked before anything trains."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from composable.callbacks._results import known_mode
from composable.comparison.plan.arms import (
    Arm,
    ArmLike,
    add_one_in,
    as_arms,
    check_composed,
    distinct,
    leave_one_out,
    repeat,
)
from composable.comparison.plan.grids import Configurations, build_takes, configurations, grids_of
from composable.comparison.plan.inspection import Built, Metrics, check_metrics, inspect_build
from composable.comparison.plan.planning import Seeds, parse_budget
from composable.comparison.plan.schedules import Schedules, given_schedules, schedules_of
from composable.comparison.records import Trial
from composable.comparison.trials.trial import Request
from composable.core.time import TimeLike
from composable.functional._checks import as_path, check_flag
from composable.trainer.trainer import Trainer

__all__ = ["Design", "Durations", "Options", "arguments_of", "default_folder"]

Durations: TypeAlias = TimeLike | Sequence[TimeLike] | Mapping[str, TimeLike | Sequence[TimeLike]]
"""The schedules of all arms, or by the name of an arm."""


@attrs.frozen(eq=False, kw_only=True)
class Options:
    """The arguments of `compare`."""

    build: Callable[..., Trainer]
    arms: Mapping[str, ArmLike]
    baseline: str | ArmLike
    metric: str
    mode: str | None
    target: float | None
    durations: Durations | None
    tune: Mapping[str, Any] | None
    seeds: int | Iterable[int]
    tuning_seeds: int | Iterable[int]
    tuning_metric: str | None
    split_evaluation: bool
    leave_one_out: bool
    add_one_in: bool
    repeat_baseline: bool
    budget: str | float | None

    def __attrs_post_init__(self) -> None:
        for name in ("split_evaluation", "leave_one_out", "add_one_in", "repeat_baseline"):
            check_flag(name, getattr(self, name))
        if self.target is None:
            return
        number = isinstance(self.target, (int, float)) and not isinstance(self.target, bool)
        if not number or not math.isfinite(self.target):
            raise ValueError(f"target={self.target!r} must be a finite number, or None.")


@attrs.frozen(eq=False)
class Design:
    """What is compared, and how."""

    build: Callable[..., Trainer]
    arms: Mapping[str, Arm]
    """By name, the baseline first, and the A/A arm last."""
    repeated: str | None
    metrics: Metrics
    target: float | None
    schedules: Schedules
    """The durations of each arm, ascending."""
    seeds: Seeds
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]]
    tried: Configurations
    budget: float | None
    split_evaluation: bool
    built: Built
    notes: tuple[str, ...]

    @classmethod
    def of(cls, options: Options) -> "Design":
        """Check the arguments, build the Trainer of the baseline, and plan the arms.

        Raises:
            ValueError: An argument is invalid, arms cannot be composed, or the build function
                cannot be compared.
            TypeError: An argument is of the wrong type.
        """
        budget, seeds = parse_budget(options.budget), Seeds.of(options.seeds, options.tuning_seeds)
        arms = _arms(options)
        repeated = arms[-1].name if options.repeat_baseline else None
        taken = build_takes(options.build)
        grids = grids_of(options.tune, arms[:-1] if repeated else arms, taken)
        if repeated is not None:
            grids[repeated] = grids[arms[0].name]
        tried = configurations(grids)
        notes = [*tried.notes]
        for arm in arms[:-1] if repeated else arms:
            notes += check_composed(arm, tried.by_arm[arm.name])
        first = arguments_of(arms[0], tried.by_arm[arms[0].name][0])
        given = given_schedules(options.durations, arms[:-1] if repeated else arms)
        built = inspect_build(
            options.build,
            first,
            given.get(arms[0].name),
            split_evaluation=options.split_evaluation,
        )
        tuned = tried.count > 1
        metrics = check_metrics(
            built, options.metric, options.tuning_metric, options.mode, tuned=tuned
        )
        usual = known_mode(metrics.reporting, None)
        if usual not in (None, metrics.mode):
            notes.append(
                f"mode={metrics.mode!r} was passed, although the name of {metrics.reporting} "
                f"suggests {usual!r}."
            )
        if not tuned:
            fixed = "the single values of tune" if options.tune else "the hyperparameters of build"
            notes.append(f"Nothing was tuned: every arm has {fixed}.")
        return cls(
            build=options.build,
            arms={arm.name: arm for arm in arms},
            repeated=repeated,
            metrics=metrics,
            target=None if options.target is None else float(options.target),
            schedules=schedules_of(given, arms, built.durations),
            seeds=seeds,
            grids=grids,
            tried=tried,
            budget=budget,
            split_evaluation=options.split_evaluation,
            built=built,
            notes=tuple(notes),
        )

    @property
    def baseline(self) -> str:
        """The name of the baseline."""
        return next(iter(self.arms))

    @property
    def durations(self) -> tuple[str, ...]:
        """The schedules of the baseline, which those of tuning follow for every arm."""
        return self.schedules[self.baseline]

    @property
    def tuned(self) -> bool:
        """Whether settings are chosen."""
        return self.tried.count > 1

    def reporting_seeds(self, arm: str) -> tuple[int, ...]:
        """Return the seeds of the reported trials of an arm."""
        return self.seeds.repeated if arm == self.repeated else self.seeds.reporting

    def tuning_seeds(self) -> dict[str, tuple[int, ...]]:
        """Return the tuning seeds by arm."""
        return {
            arm: self.seeds.repeated_tuning if arm == self.repeated else self.seeds.tuning
            for arm in self.arms
        }

    def request(self, trial: Trial) -> Request:
        """Return the trial with the arguments of the build function."""
        return Request(trial, arguments_of(self.arms[trial.arm], trial.settings))


def _arms(options: Options) -> tuple[Arm, ...]:
    """Return all arms: the baseline first, the A/A arm last."""
    baseline, *given = as_arms(options.arms, options.baseline)
    derived: list[Arm] = []
    if options.leave_one_out:
        derived += leave_one_out(given)
    if options.add_one_in:
        derived += add_one_in(baseline, given)
    arms = distinct([baseline, *given], derived)
    if not options.repeat_baseline:
        return arms
    again = repeat(baseline)
    if any(arm.name == again.name for arm in arms):
        raise ValueError(f"arms has the name {again.name!r}, which the A/A arm has; rename it.")
    return *arms, again


def arguments_of(arm: Arm, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the build function, without the seed and the duration."""
    others = {name: value for name, value in settings.items() if name not in arm.takes}
    return {**arm.recipe(settings).arguments(), **others}


def default_folder(build: Callable[..., Any]) -> Path:
    """Return the folder of a comparison: named after the script or module of the function."""
    while isinstance(build, partial):
        build = build.func
    module = str(getattr(build, "__module__", None) or "")
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        name = Path(file).stem if file else getattr(build, "__name__", "comparison")
    else:
        name = module.rpartition(".")[2] or "comparison"
    return as_path("folder", Path("comparisons") / name.strip("<>"))
