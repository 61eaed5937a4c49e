"""The design of a comparison: everything that is checked before anything trains."""

import math
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs
import torch

from composable._support.checks import check_count, check_flags, check_range
from composable._version import __version__
from composable.comparison.arms import Arm, as_arms, check_composed
from composable.comparison.building import inspect_build
from composable.comparison.digest import stable_digest
from composable.comparison.grids import configurations, grids_of, hyperparameters
from composable.comparison.rates import count_batches
from composable.comparison.records import AMOUNT, Protocol, Purpose, Settings
from composable.comparison.trial import Compared
from composable.core.result_names import (
    check_result,
    declared_modes,
    full_name,
    known_mode,
    mode_of,
)
from composable.core.time import Time, TimeLike, TimeUnit, check_time
from composable.metrics import Evaluator
from composable.trainer.trainer import options_of
from composable.utils.reproducibility import accelerator

Durations: TypeAlias = TimeLike | Sequence[TimeLike] | Mapping[str, TimeLike | Sequence[TimeLike]]
"""The schedules of all arms, or by the name of an arm."""


@attrs.frozen(eq=False)
class Design:
    """What is compared, and how."""

    subject: Compared
    protocol: Protocol
    """What is planned; nothing is chosen yet."""
    tried: Mapping[str, Sequence[Settings]]
    """The settings to try by arm, equally many for all."""
    seed_offset: int
    """Of the seeds of the A/A arm."""
    epoch_length: int | None

    @property
    def tuned(self) -> bool:
        """Whether settings are chosen."""
        return len(self.tried[self.protocol.baseline]) > 1

    def seeds(self, arm: str, purpose: Purpose = "reporting") -> tuple[int, ...]:
        """Return the seeds of an arm."""
        tuning = self.protocol.tuning_seeds if purpose == "tuning" else ()
        offset = self.seed_offset if arm == self.protocol.repeated else 0
        return tuple(seed + offset for seed in tuning or self.protocol.seeds)


def plan_design(  # noqa: PLR0913 (the arguments of `compare`)
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
    threads: int,
    data_amount: float | None = None,
    **flags: bool,
) -> Design:
    """Check the arguments of `compare`, build the Trainer of the baseline, and plan the arms."""
    if (build is None) == (run is None):
        raise TypeError("pass either build, a function that returns a Trainer, or run, a loop.")
    name: Literal["build", "run"] = "build" if run is None else "run"
    function = build if run is None else run
    check_flags(**flags)
    if target is not None:
        check_range("target", target, -math.inf, ends="()")
    reporting, tuning, offset = choose_seeds(seeds, tuning_seeds)
    named = as_arms(arms, baseline, of_loop=build is None)
    first = named[0]
    amount = {} if data_amount is None else {AMOUNT: (data_amount,)}
    required = ("algorithms", "seed") if run is None else ("arm", "seed", "duration")
    taken = hyperparameters(name, function, (*required, *amount))
    grids = grids_of(tune, named, taken)
    grids = {arm: {**grid, **amount} for arm, grid in grids.items()}
    given = _given_schedules(durations, named)
    again = None
    if flags["repeat_baseline"]:
        again = attrs.evolve(first, name=f"{first.name} (repeated)")
        if any(arm.name == again.name for arm in named):
            raise ValueError(f"arms has the name {again.name!r}, as the A/A arm; rename it.")
        named, grids[again.name] = (*named, again), grids[first.name]
    tried, notes = configurations(grids)
    for arm in named:
        notes += check_composed(arm, tried[arm.name]) if arm is not again else ()
    own = given.get(first.name)
    evaluators: tuple[Evaluator, ...] = ()
    epoch_length, device = None, accelerator() or "cpu"
    if build is not None:
        arguments = first.arguments(tried[first.name][0])
        trainer = inspect_build(build, arguments, own)
        evaluators, epoch_length = options_of(trainer).evaluators, trainer.state.epoch_length
        device = str(trainer.state.device)
        own = own or default_durations(trainer.state.max_duration)
    elif own is None:
        raise ValueError("run=... needs durations: only a Trainer has a default duration.")
    tuned = len(tried[first.name]) > 1
    reported, tuning_result, best, tuning_mode = check_metrics(
        evaluators, metric, tuning_metric, mode, tuned=tuned or bool(amount)
    )
    if known_mode(reported, None) not in (None, best):
        notes.append(f"mode={best!r} was passed, which the name of {reported} does not suggest.")
    if not tuned:
        fixed = "the single values of tune" if tune else "the hyperparameters of build"
        notes.append(f"The comparison tuned nothing: every arm has {fixed}.")
    subject = Compared(
        function=function,
        arms={arm.name: arm for arm in named},
        name=name,
        metrics=tuple(dict.fromkeys((reported, tuning_result))),
        threads=threads,
        clock="cpu" if device == "cpu" and threads == 1 else "wall",
    )
    protocol = Protocol(
        arms=tuple(arm.name for arm in named),
        baseline=first.name,
        repeated=None if again is None else again.name,
        metric=reported,
        tuning_metric=tuning_result,
        mode="min" if best == "min" else "max",
        tuning_mode="min" if tuning_mode == "min" else "max",
        data_amounts=amount.get(AMOUNT, ()),
        target=None if target is None else float(target),
        durations=own,
        seeds=reporting,
        tuning_seeds=tuning if tuned else (),
        grids=grids,
        chosen={},
        clock=subject.clock,
        versions={
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "composable": __version__,
            "device": processor(device),
            "build": stable_digest(function)[:16],
        },
        notes=tuple(notes),
    ).with_schedules(schedules_of(given, named, own))
    return Design(subject, protocol, tried, offset, epoch_length)


def processor(device: str) -> str:
    """Return the model of the GPU, or else of the CPU, as the system names it."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line for line in lines if line.startswith("model name"))
        name = model.partition(":")[2].strip()
    return f"{name} {device}"


# --- metrics ---


def check_metrics(
    evaluators: Sequence[Evaluator],
    metric: str,
    tuning_metric: str | None,
    mode: str | None,
    *,
    tuned: bool,
) -> tuple[str, str, str, str]:
    """Return the full names of the reported result and the tuning result, and their modes.

    Tuning uses other data than the report: by default, the data of the only other evaluator.
    """
    name = tuning = full_name("metric", metric)
    label, _, own = name.partition("/")
    if tuning_metric is not None:
        tuning = full_name("tuning_metric", tuning_metric)
    elif tuned:
        others = [evaluator.label for evaluator in evaluators if evaluator.label != label]
        several = "validation" if "validation" in others or not evaluators else label
        tuning = f"{others[0] if len(others) == 1 else several}/{own}"
    if evaluators:
        check_result("metric", name, evaluators)
        check_result("tuning_metric", tuning, evaluators)
    modes = declared_modes(evaluators)
    best = mode_of(name, mode or modes.get(name), "mode", "metric")
    if tuned and tuning.partition("/")[0] == label:
        raise ValueError(
            f"tuning_metric={tuning!r} and metric={name!r} are of one evaluator: what is "
            "chosen on the test data looks better than it is. Pass two evaluators to the "
            "Trainer: eval_dataloader=[Evaluator('validation', ...), Evaluator('test', ...)]."
        )
    if tuning.partition("/")[2] == own:
        return name, tuning, best, best
    return name, tuning, best, mode_of(tuning, modes.get(tuning), "mode", "tuning_metric")


# --- seeds ---


def choose_seeds(
    seeds: int | Iterable[int], tuning_seeds: int | Iterable[int]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the reported seeds, the tuning seeds, and the offset of the A/A arm's seeds.

    All differ. More seeds include the fewer, so that finished trials are used again.
    """
    reporting = _seeds("seeds", seeds, 0)
    tuning = _seeds("tuning_seeds", tuning_seeds, 1000 * (1 + max(reporting) // 1000))
    if both := sorted({*tuning} & {*reporting}):
        raise ValueError(
            f"tuning_seeds={list(tuning)} has {both}, which are reported ({list(reporting)}); pass "
            "others."
        )
    every = (*reporting, *tuning)
    return reporting, tuning, 1000 * (1 + (max(every) - min(every)) // 1000)


def _seeds(name: str, given: Any, start: int) -> tuple[int, ...]:
    if isinstance(given, (bool, str)) or not isinstance(given, (int, Iterable)):
        raise TypeError(f"{name}={given!r} must be a number of seeds, or a list of seeds.")
    if isinstance(given, int):
        check_count(name, given, 1)
        return tuple(range(start, start + given))
    seeds = tuple(given)
    for seed in seeds:
        check_count(name, seed)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{name}={list(seeds)} must be at least one seed, none listed twice.")
    return seeds


# --- schedules ---


def default_durations(longest: TimeLike | None) -> tuple[str, ...]:
    """Return a quarter, a half and the whole of a duration."""
    if longest is None:
        raise ValueError(
            "durations=None stands for the max_duration of the Trainer that build returns, which "
            "has none; pass durations, such as ['2ep', '4ep', '8ep']."
        )
    whole = check_time("max_duration", longest)
    parts = {whole.value // 4, whole.value // 2, whole.value} - {0}
    return tuple(str(Time(part, whole.unit)) for part in sorted(parts))


def _given_schedules(durations: Any, arms: Sequence[Arm]) -> Mapping[str, tuple[str, ...]]:
    """Return the given schedules by arm; those for all arms are of the baseline."""
    if durations is None:
        return {}
    if not isinstance(durations, Mapping):
        return {arms[0].name: _ascending("durations", durations)}
    names = [arm.name for arm in arms]
    if not durations or set(durations) - set(names):
        raise ValueError(
            f"durations has schedules for {list(durations)}; it must have them for some of the "
            f"arms {names}."
        )
    return {name: _ascending(f"durations[{name!r}]", value) for name, value in durations.items()}


def _ascending(name: str, durations: TimeLike | Iterable[TimeLike]) -> tuple[str, ...]:
    given = [durations] if isinstance(durations, (str, int, Time)) else list(durations)
    times = [check_time(name, one) for one in given]
    shown = [str(duration) for duration in times]
    if not times or any(one.value == 0 or one.unit is TimeUnit.DURATION for one in times):
        raise ValueError(f"{name}={shown} must be lengths of runs, such as ['2ep', '4ep', '8ep'].")
    if len({duration.unit for duration in times}) > 1:
        raise ValueError(f"{name}={shown} must have one unit, so that they can be ordered.")
    return tuple(str(one) for one in sorted(set(times)))


def schedules_of(
    given: Mapping[str, tuple[str, ...]], arms: Sequence[Arm], baseline: tuple[str, ...]
) -> Mapping[str, tuple[str, ...]]:
    """Return the schedules of every arm: given ones, or the baseline's."""
    found: dict[str, tuple[str, ...]] = {}
    unit = Time.parse(baseline[0]).unit
    for arm in arms:
        found[arm.name] = own = given.get(arm.name, baseline)
        if Time.parse(own[0]).unit is not unit:
            raise ValueError(
                f"durations[{arm.name!r}]={list(own)} and the baseline's, "
                f"{list(baseline)}, must have one unit: costs are estimated for it."
            )
    return found


def default_folder(function: Callable[..., Any]) -> Path:
    """Return the folder of a comparison: named after the script or module of the function."""
    while isinstance(function, partial):
        function = function.func
    module = str(getattr(function, "__module__", None) or "")
    name = module.rpartition(".")[2] or "comparison"
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        name = Path(file).stem if file else getattr(function, "__name__", "comparison")
    return Path("comparisons") / name.strip("<>")


# --- amounts of training data ---


def check_amounts(amounts: Any) -> tuple[float, ...]:
    """Return at least two amounts of data, from the least on."""
    if isinstance(amounts, (str, bytes)) or not isinstance(amounts, Iterable):
        raise TypeError(f"data_amounts={amounts!r} must be a list of numbers, such as [0.1, 1.0].")
    listed = list(amounts)
    for one in listed:
        check_range("data_amounts", one, 0, ends="()")
    # NumPy's numbers are not written to files.
    given = tuple(int(one) if isinstance(one, Integral) else float(one) for one in listed)
    if len(set(given)) < 2:
        raise ValueError(f"data_amounts={list(given)} must be at least two amounts, for a curve.")
    return tuple(sorted(set(given)))


def plan_amounts(
    plan: Callable[..., Design], amounts: Sequence[float], durations: Any
) -> list[Design]:
    """Return the design of `plan` for each amount; all train for as many batches as with the most.

    Epochs are counted for the most data: with less data, an epoch is shorter, and there are more.

    Raises:
        ValueError: Durations are epochs of an unknown number of batches.
    """
    most = plan(durations=durations, data_amount=amounts[-1])

    def in_batches(duration: str) -> str:
        batches = count_batches(duration, most.epoch_length)
        if batches is None and Time.parse(duration).unit is TimeUnit.EPOCH:
            raise ValueError(
                f"durations has {duration!r}, and the batches of an epoch are not known, so that "
                "amounts of data would have different numbers; pass batches, such as ['100ba']."
            )
        return duration if batches is None else f"{int(batches)}ba"

    schedules = most.protocol.schedules
    schedules.pop(most.protocol.repeated or "", None)
    same = {arm: [*map(in_batches, own)] for arm, own in schedules.items()}
    return [plan(durations=same, data_amount=amount) for amount in amounts]
