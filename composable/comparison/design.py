"""The design of a comparison: everything that is checked before anything trains."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import torch

from composable.callbacks._results import (
    check_result,
    declared_modes,
    full_name,
    known_mode,
    mode_of,
)
from composable.comparison.arms import Arm, RunArm, as_arms, check_composed, derive, repeat
from composable.comparison.building import inspect_build
from composable.comparison.records import Trial
from composable.comparison.trial import Request, Subject
from composable.comparison.tuning import Configurations, configurations, grids_of, hyperparameters
from composable.core.time import Time, TimeLike, TimeUnit, check_time
from composable.functional._checks import check_flag
from composable.metrics import Evaluator

__all__ = ["Design", "Durations", "Metrics", "Seeds", "default_folder", "plan"]

Durations: TypeAlias = TimeLike | Sequence[TimeLike] | Mapping[str, TimeLike | Sequence[TimeLike]]
"""The schedules of all arms, or by the name of an arm."""


@attrs.frozen
class Metrics:
    """The metrics of a comparison, by their full names."""

    reporting: str
    tuning: str
    mode: str
    """Whether the "min" or the "max" of the reported metric is best."""
    tuning_mode: str


@attrs.frozen(eq=False)
class Design:
    """What is compared, and how."""

    subject: Subject
    arms: Mapping[str, Arm]
    """By name, the baseline first, and the A/A arm last."""
    repeated: str | None
    metrics: Metrics
    target: float | None
    schedules: Mapping[str, tuple[str, ...]]
    """The durations of each arm, ascending."""
    seeds: "Seeds"
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]]
    tried: Configurations
    epoch_length: int | None
    device: str
    notes: tuple[str, ...]

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
        """Return the trial with the arguments of the compared function."""
        return Request(trial, self.arms[trial.arm].arguments(trial.settings))


def plan(  # noqa: PLR0913 (the arguments of `compare`)
    *,
    build: Any,
    run: Any,
    arms: Mapping[str, Any],
    baseline: Any,
    metric: str,
    mode: str | None,
    target: float | None,
    durations: Any,
    tune: Mapping[str, Any] | None,
    seeds: int | Iterable[int],
    tuning_seeds: int | Iterable[int],
    tuning_metric: str | None,
    split_evaluation: bool,
    leave_one_out: bool,
    add_one_in: bool,
    repeat_baseline: bool,
    threads: int,
) -> Design:
    """Check the arguments of `compare`, build the Trainer of the baseline, and plan the arms.

    Raises:
        ValueError: An argument is invalid, arms cannot be composed, or the function cannot be
            compared.
        TypeError: An argument is of the wrong type.
    """
    if (build is None) == (run is None):
        raise TypeError("pass either build, a function that returns a Trainer, or run, a loop.")
    _check(
        target,
        split_evaluation=split_evaluation,
        leave_one_out=leave_one_out,
        add_one_in=add_one_in,
        repeat_baseline=repeat_baseline,
    )
    given_seeds = Seeds.of(seeds, tuning_seeds)
    first, *others = as_arms(arms, baseline, Arm if run is None else RunArm)
    named = derive(first, others, leave_one_out=leave_one_out, add_one_in=add_one_in)
    required = ("algorithms", "seed") if run is None else ("arm", "seed", "duration")
    taken = hyperparameters("build" if run is None else "run", build or run, required)
    grids = grids_of(tune, named, taken)
    given = given_schedules(durations, named)
    if repeat_baseline:
        again = repeat(first)
        if any(arm.name == again.name for arm in named):
            raise ValueError(f"arms has the name {again.name!r}, which the A/A arm has; rename it.")
        named, grids[again.name] = (*named, again), grids[first.name]
    tried = configurations(grids)
    notes = [*tried.notes]
    for arm in named[: len(named) - repeat_baseline]:
        notes += check_composed(arm, tried.by_arm[arm.name])
    own = given.get(first.name)
    evaluators: tuple[Evaluator, ...] = ()
    epoch_length, device = None, "cuda" if torch.cuda.is_available() else "cpu"
    if build is not None:
        settings = tried.by_arm[first.name][0]
        trainer = inspect_build(
            build, first.arguments(settings), own, split_evaluation=split_evaluation
        )
        evaluators, epoch_length = trainer._options.evaluators, trainer.state.epoch_length
        device = str(trainer.state.device)
        own = own or default_durations(trainer.state.max_duration)
    elif split_evaluation or own is None:
        raise ValueError(
            "run=... needs durations, and no split_evaluation: a comparison knows the schedules "
            "and evaluators of a Trainer only."
        )
    tuned = tried.count > 1
    metrics = check_metrics(evaluators, metric, tuning_metric, mode, tuned=tuned)
    notes += _remarks(metrics, tuned=tuned, tune=tune)
    return Design(
        subject=Subject(
            build=build,
            run=run,
            metrics=tuple(dict.fromkeys((metrics.reporting, metrics.tuning))),
            split_evaluation=split_evaluation,
            threads=threads,
            clock="cpu" if device == "cpu" and threads == 1 else "wall",
        ),
        arms={arm.name: arm for arm in named},
        repeated=named[-1].name if repeat_baseline else None,
        metrics=metrics,
        target=None if target is None else float(target),
        schedules=schedules_of(given, named, own),
        seeds=given_seeds,
        grids=grids,
        tried=tried,
        epoch_length=epoch_length,
        device=device,
        notes=tuple(notes),
    )


def _check(target: Any, **flags: Any) -> None:
    for name, flag in flags.items():
        check_flag(name, flag)
    number = isinstance(target, (int, float)) and not isinstance(target, bool)
    if target is not None and not (number and math.isfinite(target)):
        raise ValueError(f"target={target!r} must be a finite number, or None.")


def _remarks(metrics: Metrics, *, tuned: bool, tune: Any) -> list[str]:
    notes = []
    usual = known_mode(metrics.reporting, None)
    if usual not in (None, metrics.mode):
        notes.append(
            f"mode={metrics.mode!r} was passed, although the name of {metrics.reporting} "
            f"suggests {usual!r}."
        )
    if not tuned:
        fixed = "the single values of tune" if tune else "the hyperparameters of build"
        notes.append(f"The comparison tuned nothing: every arm has {fixed}.")
    return notes


# --- metrics ---


def check_metrics(
    evaluators: Sequence[Evaluator],
    metric: str,
    tuning_metric: str | None,
    mode: str | None,
    *,
    tuned: bool,
) -> Metrics:
    """Check that the evaluators have the metrics, and that tuning uses other data than the report.

    Tuning uses the metric of the same name of the only other evaluator by default.
    """
    name = full_name("metric", metric)
    label, _, own = name.partition("/")
    tuning = name
    if tuning_metric is not None:
        tuning = full_name("tuning_metric", tuning_metric)
    elif tuned:
        others = [one.label for one in evaluators if one.label != label]
        several = "validation" if "validation" in others or not evaluators else label
        tuning = f"{others[0] if len(others) == 1 else several}/{own}"
    if evaluators:
        check_result("metric", name, evaluators)
        check_result("tuning_metric", tuning, evaluators)
    modes = declared_modes(evaluators)
    best = mode_of(name, mode or modes.get(name), "mode", "metric")
    if tuned and tuning.partition("/")[0] == label:
        raise ValueError(
            f"tuning_metric={tuning!r} and metric={name!r} are of one evaluator: settings that are "
            "chosen on the test data look better than they are. Pass two evaluators to the "
            "Trainer, eval_dataloader=[Evaluator('validation', ...), Evaluator('test', ...)], or "
            "split_evaluation=True, which splits the data of the evaluator."
        )
    same = tuning.partition("/")[2] == own
    tuning_mode = best if same else mode_of(tuning, modes.get(tuning), "mode", "tuning_metric")
    return Metrics(name, tuning, best, tuning_mode)


# --- seeds ---


@attrs.frozen
class Seeds:
    """The seeds of a comparison: those of tuning and those of the A/A arm are others."""

    reporting: tuple[int, ...]
    """The same ones for each arm."""
    repeated: tuple[int, ...]
    """Of the A/A arm."""
    tuning: tuple[int, ...]
    repeated_tuning: tuple[int, ...]

    @classmethod
    def of(cls, seeds: int | Iterable[int], tuning_seeds: int | Iterable[int]) -> "Seeds":
        """Return the seeds for numbers of them, or for given ones.

        More seeds keep those of fewer, so that finished trials are used again.

        Example:
            >>> from composable.comparison.design import Seeds
            >>> Seeds.of(3, 1)
            Seeds(reporting=(0, 1, 2), repeated=(1000, 1001, 1002), tuning=(2000,),
                  repeated_tuning=(3000,))
        """
        reporting = _seeds("seeds", seeds, 0)
        step = 1000 * (1 + (max(reporting) - min(reporting)) // 1000)
        repeated = tuple(seed + step for seed in reporting)
        tuning = _seeds("tuning_seeds", tuning_seeds, max(repeated) // 1000 * 1000 + 1000)
        if both := sorted(set(tuning) & {*reporting, *repeated}):
            raise ValueError(
                f"tuning_seeds={list(tuning)} has {both}, which are reported ({list(reporting)}, "
                f"and {list(repeated)} for the repeated baseline); pass others."
            )
        far = 1000 * (1 + (max((*tuning, *repeated)) - min(tuning)) // 1000)
        return cls(reporting, repeated, tuning, tuple(seed + far for seed in tuning))


def _seeds(name: str, given: Any, start: int) -> tuple[int, ...]:
    if isinstance(given, bool) or not isinstance(given, (int, Iterable)) or isinstance(given, str):
        raise TypeError(f"{name}={given!r} must be a number of seeds, or a list of seeds.")
    if isinstance(given, int):
        if given < 1:
            raise ValueError(f"{name}={given} must be at least 1.")
        return tuple(range(start, start + given))
    seeds = tuple(given)
    if any(isinstance(seed, bool) or not isinstance(seed, int) for seed in seeds):
        raise TypeError(f"{name}={list(seeds)} must be integers.")
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"{name}={list(seeds)} must be at least one seed, none negative or listed twice."
        )
    return seeds


# --- schedules ---


def default_durations(longest: TimeLike | None) -> tuple[str, ...]:
    """Return a quarter, a half and the whole of a duration.

    Example:
        >>> from composable.comparison.design import default_durations
        >>> default_durations("10ep"), default_durations("1ep")
        (('2ep', '5ep', '10ep'), ('1ep',))
    """
    if longest is None:
        raise ValueError(
            "durations=None stands for the max_duration of the Trainer that build returns, which "
            "has none; pass durations, such as ['2ep', '4ep', '8ep']."
        )
    whole = check_time("max_duration", longest)
    parts = {whole.value // 4, whole.value // 2, whole.value} - {0}
    return tuple(str(Time(part, whole.unit)) for part in sorted(parts))


def given_schedules(durations: Any, arms: Sequence[Arm]) -> Mapping[str, tuple[str, ...]]:
    """Return the given schedules by arm; those for all arms are of the baseline."""
    if durations is None:
        return {}
    if not isinstance(durations, Mapping):
        return {arms[0].name: _ascending("durations", durations)}
    names = [arm.name for arm in arms]
    if not durations:
        raise ValueError(f"durations={{}} must have schedules for an arm; the arms are {names}.")
    for name in durations:
        if name not in names:
            raise ValueError(f"durations has schedules for {name!r}; the arms are {names}.")
    return {name: _ascending(f"durations[{name!r}]", one) for name, one in durations.items()}


def _ascending(name: str, durations: TimeLike | Iterable[TimeLike]) -> tuple[str, ...]:
    given = [durations] if isinstance(durations, (str, int, Time)) else list(durations)
    times = [check_time(name, one) for one in given]
    shown = [str(one) for one in times]
    if not times or any(one.value == 0 or one.unit is TimeUnit.DURATION for one in times):
        raise ValueError(f"{name}={shown} must be lengths of runs, such as ['2ep', '4ep', '8ep'].")
    if len({one.unit for one in times}) > 1:
        raise ValueError(f"{name}={shown} must have one unit, so that they can be ordered.")
    return tuple(str(one) for one in sorted(set(times)))


def schedules_of(
    given: Mapping[str, tuple[str, ...]], arms: Sequence[Arm], baseline: tuple[str, ...]
) -> Mapping[str, tuple[str, ...]]:
    """Return the schedules of every arm.

    An arm without given ones has those of the arm that it is derived from, or of the baseline.

    Example:
        >>> from composable.comparison.arms import Arm
        >>> from composable.comparison.design import schedules_of
        >>> arms = [Arm("plain", []), Arm("muon", []), Arm("muon without EMA", [], origin="muon")]
        >>> schedules_of({"muon": ("9ba", "18ba")}, arms, ("30ba",))
        {'plain': ('30ba',), 'muon': ('9ba', '18ba'), 'muon without EMA': ('9ba', '18ba')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for arm in arms:
        inherited = baseline if arm.origin is None else found[arm.origin]
        found[arm.name] = given.get(arm.name, inherited)
    unit = Time.parse(baseline[0]).unit
    for name, durations in found.items():
        if Time.parse(durations[0]).unit is not unit:
            raise ValueError(
                f"durations[{name!r}]={list(durations)} and those of the baseline, "
                f"{list(baseline)}, must have one unit: costs are estimated for it."
            )
    return found


def default_folder(function: Callable[..., Any]) -> Path:
    """Return the folder of a comparison: named after the script or module of the function."""
    while isinstance(function, partial):
        function = function.func
    module = str(getattr(function, "__module__", None) or "")
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        name = Path(file).stem if file else getattr(function, "__name__", "comparison")
    else:
        name = module.rpartition(".")[2] or "comparison"
    return Path("comparisons") / name.strip("<>")
