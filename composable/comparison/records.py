"""The records of a comparison: its protocol, its trials and their results, as JSON stores them."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

__all__ = [
    "Evaluation",
    "Outcome",
    "Protocol",
    "Purpose",
    "Seconds",
    "StepCost",
    "Study",
    "Trial",
    "TrialResult",
]

Purpose = Literal["tuning", "reporting"]
Outcome = Literal["finished", "diverged", "failed", "stopped"]


@attrs.frozen
class Trial:
    """One run to train."""

    arm: str
    settings: Mapping[str, Any]
    """The tuned hyperparameters: plain values by name."""
    duration: str
    """The `max_duration` of the run, such as "300ba"."""
    seed: int
    purpose: Purpose


@attrs.frozen
class Evaluation:
    """The results of one evaluation during a trial."""

    batch: int
    progress: float
    """The fraction of the duration, from 0 to 1."""
    seconds: float
    """The seconds of training before it, without set-up, compilation and evaluation."""
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
    FORMER_FIELDS: ClassVar[tuple[str, ...]] = ("together",)
    """Fields of earlier releases, which are ignored in files."""


@attrs.frozen
class StepCost:
    """The calibrated cost of the steps of an arm, at some points of its run."""

    arm: str
    settings: Mapping[str, Any]
    duration: str
    progress: tuple[float, ...]
    """The points, ascending, within 0 and 1."""
    seconds: tuple[tuple[float, ...], ...]
    """For each point, the seconds of one step in each interleaved round."""


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
    """The metric on which settings are chosen."""
    mode: Literal["min", "max"]
    target: float | None
    """None: the baseline's mean final result on its longest schedule."""
    durations: tuple[str, ...]
    """The schedules of the baseline's reported trials, from the shortest to the longest."""
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]]
    """The tried values of each hyperparameter, by arm."""
    chosen: Mapping[str, Mapping[str, Any]]
    """The settings of each arm after tuning."""
    clock: Literal["cpu", "wall"]
    """Whether `seconds` are CPU seconds of one thread, or seconds of a wall clock."""
    versions: Mapping[str, str]
    """Of Python, torch, composable; the device, and the digest of the build function."""
    notes: tuple[str, ...] = ()
    """Warnings of the protocol, such as a budget that ended."""
    command: str | None = None
    """The command line that repeats the comparison; None for a call from Python."""
    own_durations: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    """The schedules of arms that do not have those of the baseline."""

    def durations_of(self, arm: str) -> tuple[str, ...]:
        """Return the schedules of an arm, from the shortest to the longest."""
        return self.own_durations.get(arm, self.durations)


@attrs.frozen
class Study:
    """Everything that a comparison has measured: its analysis follows from this alone."""

    protocol: Protocol
    results: tuple[TrialResult, ...]
    """Tuning and reporting trials, also failed ones."""
    costs: tuple[StepCost, ...]
