"""What a build function builds: found before anything trains."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from composable.callbacks._results import check_result, declared_modes, full_name, mode_of
from composable.comparison.plan.planning import default_durations
from composable.comparison.trials.building import (
    BuildError,
    TrialOptions,
    call_build,
    takes_duration,
)
from composable.comparison.trials.new_weights import check_new_weights
from composable.metrics import Evaluator
from composable.trainer.options import TrainerOptions, overridden_runs
from composable.trainer.ownership import sharing_models
from composable.trainer.trainer import Trainer
from composable.utils.reproducibility import preserve_rng, seed_all

__all__ = ["Built", "Metrics", "check_metrics", "inspect_build"]

_SEED = 715_517
"""No trial has it: a build function that ignores its seed has another one."""


@attrs.frozen(eq=False)
class Built:
    """The Trainer that a build function returns for the baseline."""

    durations: tuple[str, ...]
    """The schedules, ascending."""
    epoch_length: int | None
    evaluators: tuple[Evaluator, ...]
    device: str

    @classmethod
    def of(cls, trainer: Trainer, durations: Sequence[str]) -> "Built":
        """Return what a Trainer has."""
        evaluators, state = trainer._options.evaluators(), trainer.state
        return cls(tuple(durations), state.epoch_length, evaluators, str(state.device))


@attrs.frozen
class Metrics:
    """The metrics of a comparison, by their full names."""

    reporting: str
    tuning: str
    mode: str
    """Whether the "min" or the "max" of the reported metric is best."""
    tuning_mode: str


def inspect_build(
    build: Callable[..., Trainer],
    arguments: Mapping[str, Any],
    durations: Sequence[str] | None,
    *,
    split_evaluation: bool,
) -> Built:
    """Build the Trainer of the baseline, without training it.

    Args:
        build: The build function.
        arguments: Its arguments besides the seed and the duration.
        durations: The schedules; None for those that follow from its own duration. If the build
            function takes a duration, all are tried.
        split_evaluation: Split the evaluator.

    Raises:
        BuildError: The build function ignores an argument, refuses a duration, or returns no
            Trainer.
        ValueError: There is no duration.
    """
    trainers = [] if durations else [_build(build, arguments, None, split_evaluation)]
    given = durations or _own_durations(trainers[0])
    tried = given if takes_duration(build) else given[:1]
    trainers += [_build(build, arguments, one, split_evaluation) for one in tried]

    def again() -> Trainer:
        return _build(build, arguments, tried[-1], split_evaluation)

    first = trainers[0] if len(trainers) > 1 else again()
    check_new_weights(first, trainers[-1], again)
    return Built.of(trainers[-1], given)


def _own_durations(trainer: Any) -> tuple[str, ...]:
    """Return the schedules that follow from the duration of a Trainer."""
    if not isinstance(trainer, Trainer):
        raise BuildError(f"build must return a Trainer, and returned {trainer!r:.200}.")
    found = trainer.state.max_duration
    if found is None:
        raise ValueError(
            "durations=None stands for the max_duration of the Trainer that build returns, which "
            "has none; pass durations, such as ['2ep', '4ep', '8ep']."
        )
    return default_durations(found)


def _build(
    build: Callable[..., Trainer],
    arguments: Mapping[str, Any],
    duration: str | None,
    split_evaluation: bool,
) -> Trainer:
    """Call the build function; without a duration, for its own."""
    given = None if takes_duration(build) else duration

    def override(options: TrainerOptions) -> TrainerOptions:
        return TrialOptions.of_trial(options, max_duration=given, split_evaluation=split_evaluation)

    with overridden_runs(override), preserve_rng(), sharing_models():
        seed_all(_SEED)
        try:
            if duration is not None:
                return call_build(build, arguments, _SEED, duration)
            _check_own_duration(build)
            return build(**arguments, seed=_SEED)
        except BuildError:
            raise
        except Exception as error:
            at = "" if duration is None else f" for max_duration={duration!r}"
            raise BuildError(
                f"build fails{at}, before anything is trained: {type(error).__name__}: {error}"
            ) from error


def _check_own_duration(build: Callable[..., Any]) -> None:
    own = inspect.signature(build).parameters.get("max_duration")
    if own is not None and own.default is own.empty:
        raise BuildError(
            "durations=None stands for the max_duration that build passes to the Trainer, and it "
            "takes it as an argument without a default; pass durations, such as ['2ep', '4ep', "
            "'8ep']."
        )


def check_metrics(
    built: Built,
    metric: str,
    tuning_metric: str | None,
    mode: str | None,
    *,
    tuned: bool,
) -> Metrics:
    """Check that the evaluators have the metrics, and that tuning uses other data than the report.

    Args:
        built: What was built.
        metric: The reported metric.
        tuning_metric: The metric of tuning; by default that of the same name of the only other
            evaluator.
        mode: Whether the "min" or the "max" of the metric is best; None if the name says it.
        tuned: Whether anything is tuned.

    Raises:
        ValueError: An evaluator has no such metric, or tuning uses the data of the report.
    """
    name = full_name("metric", metric)
    check_result("metric", name, built.evaluators)
    modes = declared_modes(built.evaluators)
    best = mode_of(name, mode or modes.get(name), "mode", "metric")
    label, _, own = name.partition("/")
    tuning = name
    if tuning_metric is not None:
        tuning = full_name("tuning_metric", tuning_metric)
    elif tuned:
        tuning = f"{_tuning_label(built, label)}/{own}"
    check_result("tuning_metric", tuning, built.evaluators)
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


def _tuning_label(built: Built, label: str) -> str:
    """Return the evaluator for tuning: the only other one, or "validation"."""
    others = [one.label for one in built.evaluators if one.label != label]
    if len(others) == 1:
        return others[0]
    return "validation" if "validation" in others else label
