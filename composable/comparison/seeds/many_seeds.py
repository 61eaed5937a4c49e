"""Train several seeds of a small model in one process, with one computation for all of them."""

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from composable.comparison.records import Outcome, Trial, TrialResult
from composable.comparison.seeds.pace import Pace
from composable.comparison.seeds.stacked_optimizers import refusal
from composable.comparison.seeds.stacking import NotStackable
from composable.comparison.seeds.together import Member, Together
from composable.comparison.trials.building import Build, TrialOptions, call_build, takes_duration
from composable.comparison.trials.clock import Clock, clock_kind, now
from composable.comparison.trials.groups import SeedsAtOnce, check_seeds_at_once
from composable.comparison.trials.observer import TrialObserver
from composable.comparison.trials.trial import check_metrics, run_trial, train
from composable.trainer.options import TrainerOptions, overridden_runs
from composable.trainer.session import SharedGeneratorWarning
from composable.trainer.trainer import Trainer
from composable.utils.reproducibility import (
    get_rng_state,
    load_rng_state,
    preserve_rng,
    seed_all,
)

__all__ = ["ManySeeds", "train_seeds", "why_not"]

log = logging.getLogger("composable")

_LARGEST = 100_000
"""Parameters of a model: a larger one spends its time in matrix products, which vmap only batches,
and all seeds are in memory at once."""


@attrs.frozen
class ManySeeds:
    """The results of several seeds."""

    results: tuple[TrialResult, ...]
    """In the order of the trials."""
    together: bool
    """Whether the seeds were computed together until the end."""
    reason: str | None = None
    """Why they were not."""
    ratio: float | None = None
    """The seconds of a step computed together, as a ratio to those of separate steps; None if
    they were not measured."""


def train_seeds(
    build: Build,
    arguments: Mapping[str, Any],
    trials: Sequence[Trial],
    *,
    seeds_at_once: SeedsAtOnce = "auto",
    metrics: Iterable[str] = (),
    split_evaluation: bool = False,
) -> ManySeeds:
    """Train trials that differ in the seed only, with stacked weights where that is faster.

    Each seed has its own Trainer, loader, algorithms and random numbers, and the results are those
    of `run_trial` to rounding. The outputs and gradients of all models are computed by one call
    under `torch.func.vmap`, and elementwise optimizers step once. The first two steps on batches
    of a shape, and the first two such batches of an evaluation, are computed in both ways and
    compared. Where the seeds cannot be computed together, they are trained one after another.

    Args:
        build: A function `(algorithms, seed, **hyperparameters) -> Trainer`.
        arguments: Its arguments besides the seed and the duration.
        trials: The trials.
        seeds_at_once: Whether to compute together. "auto" measures both in turns, and continues
            with what is faster.
        metrics: The results that a trial needs; see `run_trial`.
        split_evaluation: Split the data of the evaluator into "validation" and "test".

    Returns:
        The results, and whether the seeds were computed together.

    Raises:
        ValueError: The trials differ in more than the seed, or `seeds_at_once` is another value.
        BuildError: The Trainer cannot be compared, or does not log a metric.

    Example:
        >>> from functools import partial
        >>> from composable import Trainer
        >>> from composable.comparison import Trial
        >>> from composable.comparison.seeds.many_seeds import train_seeds
        >>> data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
        >>> def build(algorithms, seed):
        ...     return Trainer(
        ...         torch.nn.Linear(4, 3),
        ...         train_dataloader=data,
        ...         eval_dataloader=data,
        ...         loss_fn=torch.nn.functional.cross_entropy,
        ...         optimizers=partial(torch.optim.SGD, lr=0.1),
        ...         algorithms=algorithms,
        ...         seed=seed,
        ...     )
        >>> trials = [Trial("plain", {}, "2ep", seed, "reporting") for seed in range(3)]
        >>> many = train_seeds(build, {"algorithms": []}, trials, seeds_at_once=True)
        >>> many.together, [one.outcome for one in many.results]
        (True, ['finished', 'finished', 'finished'])
    """
    trials, metrics = tuple(trials), tuple(metrics)
    check_seeds_at_once(seeds_at_once)
    _check(trials)
    separately = partial(
        run_trial, build, arguments, metrics=metrics, split_evaluation=split_evaluation
    )

    def each(reason: str, ratio: float | None = None) -> ManySeeds:
        log.info("seeds are trained one after another: %s", reason)
        return ManySeeds(tuple(map(separately, trials)), False, reason, ratio)

    if not seeds_at_once:
        return each("seeds_at_once=False")
    if len(trials) < 2:
        return each("there is one seed")
    measured = seeds_at_once == "auto"
    try:
        seeds = [
            _stackable_seed(build, arguments, one, metrics, split_evaluation, small=measured)
            for one in trials
        ]
        pace = _train_together(seeds, measured=measured)
    except NotStackable as error:
        return each(str(error))
    # An error of a run may be due to the call under vmap; by itself, the run shows it or has none.
    results = tuple(
        separately(seed.trial) if seed.outcome == "failed" else seed.result() for seed in seeds
    )
    failures = [seed.message for seed in seeds if seed.outcome == "failed"]
    reason = failures[0] if failures else None
    if reason is None and pace.decided_alone:
        reason = "separate steps are faster"
    return ManySeeds(results, reason is None, reason, pace.ratio)


def why_not(trainer: Trainer) -> str | None:
    """Return why a Trainer cannot be computed together with those of other seeds, or None.

    What follows from the model alone is found when it is called: random numbers in the forward
    pass other than those of `torch.nn.functional.dropout` and `dropout1d` to `dropout3d` (such as
    stochastic depth, or dropout in attention), hooks, attributes that differ or change, weights
    that are not contiguous, control flow on values of tensors, and operations that vmap computes
    otherwise.

    Example:
        >>> from composable import Trainer
        >>> from composable.comparison.seeds.many_seeds import why_not
        >>> why_not(Trainer(torch.nn.Linear(2, 1), grad_accum=2, progress_bar=False))
        'batches are split into microbatches'
    """
    run, options = trainer._run, trainer._options
    precision = run.state.precision
    reasons = {
        "the device is not the CPU": run.state.device.type != "cpu",
        "several processes share a batch": run.parallel is not None,
        "batches are split into microbatches": run.microbatches.split,
        "precision is not 'fp32'": precision.autocast_dtype is not None
        or precision.weight_dtype is not None
        or run.loss_scaler.enabled,
        "the model is compiled": bool(options.compile),
        "the loss has parameters or buffers of its own": _has_tensors(run.state.loss_module),
        "nonfinite_loss='rollback' needs checkpoints": run.guard.policy == "rollback",
        "check_effects=True": options.check_effects,
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    return found or refusal(run.state.optimizers)


def _size(trainer: Trainer) -> int:
    return sum(one.numel() for one in trainer.state.model.parameters())


def _has_tensors(module: Any) -> bool:
    return module is not None and bool([*module.parameters(), *module.buffers()])


def _check(trials: Sequence[Trial]) -> None:
    if any(attrs.evolve(one, seed=0) != attrs.evolve(trials[0], seed=0) for one in trials):
        raise ValueError(
            "trials must differ in the seed only: call train_seeds once for each arm, its settings "
            "and its duration."
        )


@attrs.define(eq=False)
class _Seed:
    """A run that is trained together with others."""

    trial: Trial
    trainer: Trainer
    metrics: tuple[str, ...]
    setup: float
    """The seconds of building the Trainer."""
    generators: Any
    """The states of the global generators after it was built."""
    observer: TrialObserver | None = None
    outcome: Outcome | None = None
    message: str | None = None
    error: BaseException | None = None

    @classmethod
    def built(
        cls,
        build: Build,
        arguments: Mapping[str, Any],
        trial: Trial,
        metrics: tuple[str, ...],
        split_evaluation: bool,
    ) -> "_Seed":
        """Build the Trainer as `run_trial` does."""
        duration = None if takes_duration(build) else trial.duration

        def override(options: TrainerOptions) -> Any:
            return TrialOptions.of_trial(
                options, max_duration=duration, split_evaluation=split_evaluation
            )

        begun = Clock.readings()
        with overridden_runs(override), preserve_rng():
            seed_all(trial.seed)
            trainer = call_build(build, arguments, trial.seed, trial.duration)
            kind = clock_kind(trainer.state.device)
            return cls(trial, trainer, metrics, now(kind) - begun[kind], get_rng_state())

    def train(self, together: Together, number: int) -> None:
        """Train in a turn of its own."""
        load_rng_state(self.generators)
        trainer = self.trainer
        member = Member(together, number, trainer._run)
        member.join()
        trainer._session.compose = member.compose
        clock = TurnClock(partial(together.lockstep.seconds, number), trainer, self.setup)
        self.observer = TrialObserver(clock, trainer._run, self.metrics)
        trainer.add_callback(self.observer)
        try:
            self.outcome, self.message = train(trainer, self.observer)
        except BaseException as error:
            self.error = error

    def result(self) -> TrialResult:
        """Return the result."""
        observer = self.observer
        assert observer is not None
        assert self.outcome is not None
        check_metrics(observer, self.outcome)
        return TrialResult(
            self.trial,
            self.outcome,
            observer.batches,
            observer.seconds(),
            observer.curve(),
            self.message,
            together=True,
        )


class TurnClock(Clock):
    """The clock of a run that takes turns with others.

    Args:
        seconds: Returns the seconds of its turns so far.
        trainer: The Trainer.
        setup: The seconds that are over.
    """

    def __init__(self, seconds: Callable[[], float], trainer: Trainer, setup: float) -> None:
        super().__init__(trainer.state.device)
        self._turns, self._ended = seconds, False
        self._since = -setup

    def switch(self, part: str, *, synchronize: bool = False) -> None:
        """End the current part, and start another one."""
        if self.part == "end":  # others run now, maybe
            return
        reading = self._turns()
        self._seconds[self.part] = self._seconds.get(self.part, 0.0) + reading - self._since
        self.part, self._since = part, reading


def _stackable_seed(
    build: Build,
    arguments: Mapping[str, Any],
    trial: Trial,
    metrics: tuple[str, ...],
    split_evaluation: bool,
    *,
    small: bool,
) -> _Seed:
    """Build the run of a seed.

    Raises:
        NotStackable: It cannot be computed together with others, or should not, being large.
    """
    try:
        seed = _Seed.built(build, arguments, trial, metrics, split_evaluation)
    except ValueError as error:  # such as a BuildError, which a separate run raises too
        raise NotStackable("a Trainer cannot be built") from error
    except Exception as error:
        raise NotStackable(f"a Trainer cannot be built: {type(error).__name__}") from error
    if (reason := why_not(seed.trainer)) is not None:
        raise NotStackable(reason)
    if small and _size(seed.trainer) > _LARGEST:
        raise NotStackable(f"the model has more than {_LARGEST:,} parameters")
    return seed


def _train_together(seeds: Sequence[_Seed], *, measured: bool) -> Pace:
    """Train, and return the measured pace.

    Raises:
        NotStackable: The seeds cannot be computed together.
    """
    parameters = [id(one) for seed in seeds for one in seed.trainer.state.model.parameters()]
    if len(set(parameters)) < len(parameters):
        raise NotStackable("the Trainers of different seeds share parameters")
    kind = clock_kind(seeds[0].trainer.state.device)
    clock = partial(now, kind)
    together = Together(len(seeds), Pace(clock, measured=measured), clock)
    with preserve_rng(), warnings.catch_warnings():
        # The threads take turns, and seed the generators in each.
        warnings.simplefilter("ignore", SharedGeneratorWarning)
        together.lockstep.run(
            partial(seed.train, together, number) for number, seed in enumerate(seeds)
        )
    errors = [seed.error for seed in seeds if seed.error is not None]
    refusals = [error for error in errors if isinstance(error, NotStackable)]
    for error in (*refusals, *errors):
        raise error
    return together.pace
