"""The records of a comparison: its protocol, its trials and their results, as JSON stores them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite, nan, prod
from statistics import quantiles
from typing import Literal, TypeAlias

import attrs

AMOUNT = "data_amount"
"""The hyperparameter that is the amount of training data."""
Purpose = Literal["tuning", "reporting"]
Outcome = Literal["finished", "diverged", "failed", "stopped"]
Scalar: TypeAlias = bool | int | float | str | None
"""The value of a hyperparameter."""
Settings: TypeAlias = Mapping[str, Scalar]
"""Hyperparameters by name."""


@attrs.frozen
class Trial:
    """One run to train."""

    arm: str
    settings: Settings
    """The tuned hyperparameters."""
    duration: str
    """The `max_duration` of the run, such as "300ba"."""
    seed: int
    purpose: Purpose

    @property
    def data_amount(self) -> float | None:
        """The amount of training data, if it is compared."""
        amount = self.settings.get(AMOUNT)
        return amount if isinstance(amount, (int, float)) else None


@attrs.frozen
class Evaluation:
    """The results of one evaluation during a trial."""

    batch: int
    """The number of batches before it."""
    metrics: Mapping[str, float]
    """Results by logged name, such as "test/accuracy"."""


@attrs.frozen
class Seconds:
    """The seconds of a trial by part."""

    setup: float
    """Building the Trainer and starting `fit`."""
    warmup: float
    """The first steps, which compile and allocate, beyond the cost of other steps."""
    training: float
    evaluation: float


@attrs.frozen
class TrialResult:
    """The result of a trial."""

    trial: Trial
    outcome: Outcome
    batches: int
    seconds: Seconds
    curve: tuple[Evaluation, ...]
    """In order of batches; the last one of a finished trial is its final result."""
    error: str | None = None
    """The type and the message of the exception of a failed trial."""


@attrs.frozen
class StepCost:
    """The calibrated cost of the steps of an arm, at some points of its run."""

    arm: str
    duration: str
    progress: tuple[float, ...]
    """The points, ascending, within 0 and 1."""
    seconds: tuple[tuple[float, ...], ...]
    """For each point, the seconds of one step in each interleaved round, process by process."""
    processes: int = 1
    """The processes that have measured the arm one after the other, with as many rounds each."""

    @property
    def process_seconds(self) -> list[list[float]]:
        """The seconds of one step by point and process: the 25th percentile over the rounds.

        Other load on the machine makes steps slower, never faster, so a low percentile is closer to
        the cost itself than the mean is.
        """
        parts = [
            zip(*[iter(rounds)] * (len(rounds) // self.processes), strict=True)
            for rounds in self.seconds
        ]
        return [[_first_quartile(one) for one in part] for part in parts]

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """The seconds of one step at each point: the geometric mean over the processes."""
        return tuple(prod(second) ** (1 / len(second)) for second in self.process_seconds)

    def run_seconds(self, steps: int) -> float:
        """Return the seconds of training of a run.

        The cost of a step is interpolated linearly between the points, and constant before the
        first and after the last one.
        """
        each = self.step_seconds
        ends = [(0.0, each[0]), *zip(self.progress, each, strict=True), (1.0, each[-1])]
        return steps * sum((y - x) * (a + b) / 2 for (x, a), (y, b) in pairwise(ends))


def _first_quartile(values: Sequence[float]) -> float:
    return quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


@attrs.frozen
class Protocol:
    """How a comparison was made."""

    arms: tuple[str, ...]
    """The names, the baseline first."""
    baseline: str
    repeated: str | None
    """The name of the A/A arm: the baseline once more, with other seeds."""
    metric: str
    """The reported metric, by its logged name."""
    tuning_metric: str
    """The metric on which settings are chosen, and with amounts of data the evaluation."""
    mode: Literal["min", "max"]
    target: float | None
    """The result at which the speed-up is measured; None: all results that both curves reach."""
    durations: tuple[str, ...]
    """The schedules of the baseline's reported trials, from the shortest to the longest."""
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    grids: Mapping[str, Mapping[str, tuple[Scalar, ...]]]
    """The tried values of each hyperparameter, by arm."""
    chosen: Mapping[str, Settings]
    """The settings of each arm after tuning, with the most data; trials have them for less."""
    clock: Literal["cpu", "wall"]
    """Whether `seconds` are CPU seconds of one thread, or seconds of a wall clock."""
    versions: Mapping[str, str]
    """Of Python, torch, composable; the device, and the digest of the build function."""
    notes: tuple[str, ...] = ()
    """Warnings of the protocol, such as that nothing was tuned."""
    command: str | None = None
    """The command line that repeats the comparison; None for a call from Python."""
    own_durations: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    """The schedules of arms that do not have the baseline's."""
    tuning_mode: Literal["min", "max"] | None = None
    """The mode of `tuning_metric`; None if it is the mode of `metric`."""
    data_amounts: tuple[float, ...] = ()
    """The amounts of training data that are compared; empty: time is."""

    @property
    def schedules(self) -> dict[str, tuple[str, ...]]:
        """The schedules of each arm, from the shortest to the longest."""
        return {arm: self.own_durations.get(arm, self.durations) for arm in self.arms}

    def with_schedules(self, schedules: Mapping[str, tuple[str, ...]]) -> "Protocol":
        """Return the protocol with other schedules of all arms."""
        durations = schedules[self.baseline]
        own = {arm: schedule for arm, schedule in schedules.items() if schedule != durations}
        return attrs.evolve(self, durations=durations, own_durations=own)


@attrs.frozen
class Study:
    """Everything that a comparison has measured: its analysis follows from this alone."""

    protocol: Protocol
    results: tuple[TrialResult, ...]
    """Tuning and reporting trials, also failed ones."""
    costs: tuple[StepCost, ...]

    @property
    def reported(self) -> tuple[TrialResult, ...]:
        """The results of reporting trials."""
        return tuple(result for result in self.results if result.trial.purpose == "reporting")


def stop_at_best(protocol: Protocol, runs: Sequence[TrialResult]) -> TrialResult:
    """Return the best of the runs of a seed, up to its best evaluation by the metric of tuning.

    If time is compared, the only run is returned. Of equal evaluations the earliest is kept.
    Without one that has both metrics, the first run is returned without its evaluations.
    """
    if not protocol.data_amounts:
        return runs[0]
    sign = 1 if (protocol.tuning_mode or protocol.mode) == "max" else -1
    best, stopped = -float("inf"), attrs.evolve(runs[0], curve=())
    for run in sorted(runs, key=lambda one: one.batches):
        for at, one in enumerate(run.curve if run.outcome == "finished" else ()):
            score = sign * one.metrics.get(protocol.tuning_metric, nan)
            if score > best and isfinite(one.metrics.get(protocol.metric, nan)):
                training = run.seconds.training * one.batch / max(run.batches, 1)
                seconds = attrs.evolve(run.seconds, training=training)
                best, curve = score, run.curve[: at + 1]
                stopped = attrs.evolve(run, batches=one.batch, seconds=seconds, curve=curve)
    return stopped
