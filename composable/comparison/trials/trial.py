"""Run one trial in this process."""

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from composable.comparison.records import Outcome, Seconds, Trial, TrialResult
from composable.comparison.trials.building import (
    Build,
    BuildError,
    TrialOptions,
    call_build,
    takes_duration,
)
from composable.comparison.trials.clock import Clock
from composable.comparison.trials.observer import TrialObserver
from composable.core.callback import Callback
from composable.core.time import elapsed
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.options import TrainerOptions, overridden_runs
from composable.trainer.trainer import Trainer
from composable.utils.reproducibility import preserve_rng, seed_all

__all__ = ["Request", "check_metrics", "failed", "run_trial", "train"]

log = logging.getLogger("composable")

_MOST = 2000


@attrs.frozen(eq=False)
class Request:
    """A trial to run."""

    trial: Trial
    arguments: Mapping[str, Any]
    """The arguments of `build` besides `seed` and `max_duration`: `algorithms`, and others."""


def run_trial(
    build: Build,
    arguments: Mapping[str, Any],
    trial: Trial,
    *,
    metrics: Iterable[str] = (),
    split_evaluation: bool = False,
    callbacks: Iterable[Callback] = (),
) -> TrialResult:
    """Train one Trainer from beginning to end, and record its evaluations and its seconds.

    The Trainer writes no files, logs nothing and shows no progress bar. The global random
    generators are seeded with the seed of the trial before `build` is called, and restored
    afterwards.

    Args:
        build: A function `(algorithms, seed, **hyperparameters) -> Trainer`. If it takes
            `max_duration`, that of the trial is passed, and otherwise set in the Trainer.
        arguments: Its arguments besides the seed and the duration.
        trial: The trial.
        metrics: The results that the trial needs, such as "test/accuracy". A trial diverges when
            one is not finite. Default: all.
        split_evaluation: Split the data of the evaluator into "validation" and "test".
        callbacks: More callbacks for the Trainer.

    Returns:
        The result; an exception of `build` or of training gives a failed one.

    Raises:
        BuildError: The Trainer cannot be compared, or does not log a metric.

    Example:
        >>> from functools import partial
        >>> from composable import Trainer
        >>> from composable.comparison import Trial
        >>> from composable.comparison.trials.trial import run_trial
        >>> data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
        >>> def build(algorithms, seed, lr):
        ...     return Trainer(
        ...         torch.nn.Linear(4, 3),
        ...         train_dataloader=data,
        ...         eval_dataloader=data,
        ...         loss_fn=torch.nn.functional.cross_entropy,
        ...         optimizers=partial(torch.optim.SGD, lr=lr),
        ...         algorithms=algorithms,
        ...         seed=seed,
        ...     )
        >>> trial = Trial("plain", {"lr": 0.1}, "4ep", seed=0, purpose="reporting")
        >>> result = run_trial(build, {"algorithms": [], "lr": 0.1}, trial)
        >>> result.outcome, [one.batch for one in result.curve]
        ('finished', [5, 10, 15, 20])
    """
    duration = None if takes_duration(build) else trial.duration

    def override(options: TrainerOptions) -> TrainerOptions:
        return TrialOptions.of_trial(
            options, max_duration=duration, split_evaluation=split_evaluation
        )

    begun = Clock.readings()
    with overridden_runs(override), preserve_rng():
        seed_all(trial.seed)
        try:
            trainer = call_build(build, arguments, trial.seed, trial.duration)
        except BuildError:
            raise
        except Exception as error:
            log.warning("seed %d of arm %r failed", trial.seed, trial.arm, exc_info=error)
            return failed(trial, error)
        clock = Clock(trainer.state.device, begun)
        observer = TrialObserver(clock, trainer._run, metrics)
        for callback in (observer, *callbacks):
            trainer.add_callback(callback)
        outcome, message = train(trainer, observer)
    check_metrics(observer, outcome)
    return TrialResult(
        trial, outcome, observer.batches, observer.seconds(), observer.curve(), message
    )


def train(trainer: Trainer, observer: TrialObserver) -> tuple[Outcome, str | None]:
    """Train, and return the outcome and the error."""
    try:
        state = trainer.fit()
    except NonFiniteLossError as error:
        return "diverged", describe(error)
    except Exception as error:
        log.warning("training failed", exc_info=error)
        return "failed", describe(error)
    if observer.diverged is not None:
        return "diverged", observer.diverged
    return ("finished" if elapsed(state) >= 1 else "stopped"), None


def check_metrics(observer: TrialObserver, outcome: Outcome) -> None:
    """Check that a trial that ended has all results."""
    curve = observer.curve()
    missing = [
        name for name in observer.metrics if name not in (curve[-1].metrics if curve else ())
    ]
    if outcome in ("finished", "stopped") and missing:
        logged = sorted({name for one in curve for name in one.metrics})
        raise BuildError(
            f"metric={missing[0]!r} must be a result of the last evaluation of the run, and its "
            f"evaluations log {', '.join(map(repr, logged)) or 'nothing'}."
        )


def failed(trial: Trial, error: BaseException | str) -> TrialResult:
    """Return the result of a trial that did not train."""
    text = error if isinstance(error, str) else describe(error)
    return TrialResult(trial, "failed", 0, Seconds(0.0, 0.0, 0.0, 0.0), (), text)


def describe(error: BaseException) -> str:
    """Return the type and the message of an exception, and its notes."""
    lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    return os.linesep.join(lines)[:_MOST]
