"""Call the user's function that builds a Trainer, and check what it builds."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from composable.comparison.trials.splitting import split_evaluators
from composable.core.time import Time
from composable.plan.declarations import as_list
from composable.replay import DryRunOptions
from composable.trainer.options import TrainerOptions
from composable.trainer.ownership import sharing_models
from composable.trainer.trainer import Trainer

__all__ = ["Build", "BuildError", "TrialOptions", "call_build", "takes_duration"]

Build = Callable[..., Trainer]
"""`build(algorithms, seed, **hyperparameters) -> Trainer`."""


class BuildError(ValueError):
    """The function that builds a Trainer cannot be compared: each of its trials would be wrong."""


@attrs.frozen(eq=False, kw_only=True)
class TrialOptions(DryRunOptions):
    """The options of a Trainer of a trial: it writes nothing, logs nothing and shows nothing."""

    @classmethod
    def of_trial(
        cls, options: TrainerOptions, *, max_duration: str | None, split_evaluation: bool
    ) -> DryRunOptions:
        """Change the options of a Trainer.

        Args:
            options: The options.
            max_duration: The duration of the trial, or None to leave it as it is.
            split_evaluation: Split the evaluator into a validation and a test half.

        Raises:
            BuildError: The run needs checkpoints.
        """
        _refuse_checkpoints(options)
        changes: dict[str, Any] = {
            field.name: field.default
            for field in attrs.fields(TrainerOptions)
            if field.name.startswith("save_")
        }
        changes.update(autoresume=False, loggers=(), progress_bar=False)
        if max_duration is not None:
            changes["max_duration"] = max_duration
        if split_evaluation:
            try:
                changes["eval_dataloader"] = split_evaluators(options.evaluators())
            except ValueError as error:
                raise BuildError(str(error)) from None
        return cls.of(options, **changes)


def _refuse_checkpoints(options: TrainerOptions) -> None:
    needs = {
        "nonfinite_loss='rollback'": options.nonfinite_loss == "rollback",
        "load_best_at_end=True": options.load_best_at_end,
    }
    for argument, needed in needs.items():
        if needed:
            raise BuildError(
                f"build passes {argument} to the Trainer, which needs checkpoints, and the trials "
                "of a comparison write none; drop it."
            )


def call_build(build: Build, arguments: Mapping[str, Any], seed: int, duration: str) -> Trainer:
    """Call the user's function, and check that the Trainer has what it was given.

    Args:
        build: The function.
        arguments: Its arguments besides the seed and the duration: `algorithms`, and others.
        seed: The seed.
        duration: The `max_duration`; passed if the function takes it.

    Raises:
        BuildError: The function does not take an argument, or ignores it, or returns no Trainer.
    """
    passed = {**arguments, "seed": seed}
    if takes_duration(build):
        passed["max_duration"] = duration
    _check_signature(build, passed)
    with sharing_models():  # a check says what is wrong with a global model
        trainer = build(**passed)
    _check_trainer(trainer)
    options: TrainerOptions = trainer._options
    _check_seed(options, seed)
    _check_duration(trainer, duration)
    _check_algorithms(options, passed.get("algorithms", ()))
    for name in ("optimizers", "schedulers"):
        if passed.get(name) is not None and getattr(options, name) is not passed[name]:
            raise BuildError(
                f"build ignores its argument {name}, which a recipe gives; pass it on: "
                f"Trainer(..., {name}={name})."
            )
    return trainer


def takes_duration(build: Build) -> bool:
    """Return whether the function has a parameter `max_duration`."""
    return "max_duration" in _signature(build).parameters


def _signature(build: Build) -> inspect.Signature:
    try:
        return inspect.signature(build)
    except (TypeError, ValueError):
        raise BuildError(
            f"build={build!r} must be a function (algorithms, seed, **hyperparameters) that "
            "returns a Trainer."
        ) from None


def _check_signature(build: Build, arguments: Mapping[str, Any]) -> None:
    signature = _signature(build)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        name = getattr(build, "__name__", repr(build))
        raise BuildError(
            f"{name}{signature} cannot be called with {', '.join(f'{n}=' for n in arguments)}: "
            f"{error}. Add the parameter, or change the arms."
        ) from None


def _check_trainer(trainer: Any) -> None:
    if not isinstance(trainer, Trainer):
        raise BuildError(f"build must return a Trainer, and returned {trainer!r:.200}.")
    if not isinstance(trainer._options, TrialOptions):
        raise BuildError(
            "build returned a Trainer that was built before it was called; build a new one in "
            "each call."
        )
    batches = trainer.state.timestamp.batch
    if batches:
        raise BuildError(
            f"build returned a Trainer that has trained on {batches} batches; leave the call of "
            "fit to the comparison."
        )
    evaluators = trainer._options.evaluators()
    if not any(one.eval_interval is not None for one in evaluators):
        raise BuildError(
            "build returned a Trainer that never evaluates; pass eval_dataloader=..., and an "
            "eval_interval other than None."
        )


def _check_seed(options: TrainerOptions, seed: int) -> None:
    if options.seed != seed:
        raise BuildError(
            f"build was called with seed={seed} and returned a Trainer with seed={options.seed}; "
            "pass the seed on: Trainer(..., seed=seed)."
        )


def _check_duration(trainer: Trainer, duration: str) -> None:
    found, wanted = trainer.state.max_duration, Time.parse(duration)
    if str(found) != str(wanted):
        raise BuildError(
            f"build was called with max_duration={duration!r} and returned a Trainer with "
            f"max_duration={str(found)!r}; pass it on: Trainer(..., max_duration=max_duration)."
        )


def _check_algorithms(options: TrainerOptions, given: Iterable[Any]) -> None:
    present = as_list(options.algorithms)
    missing = [
        one for one in as_list(given) if not any(one is other or one == other for other in present)
    ]
    if missing:
        raise BuildError(
            f"build ignores its argument algorithms: the Trainer lacks {missing!r}; pass them on: "
            "Trainer(..., algorithms=algorithms)."
        )
