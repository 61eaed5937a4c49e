"""Call the user's function that builds a Trainer, and check what it builds."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from composable.core.time import Time
from composable.plan.declarations import as_list
from composable.replay import DryRunOptions
from composable.trainer.options import TrainerOptions
from composable.trainer.session import overridden_runs
from composable.trainer.trainer import Trainer, options_of
from composable.utils.reproducibility import preserve_rng, seed_all

Build = Callable[..., Trainer]
"""`build(algorithms, seed, **hyperparameters) -> Trainer`."""

_SEED = 715_517
"""No trial has it: a build function that ignores its seed has another one."""


class BuildError(ValueError):
    """The compared function cannot be compared: each of its trials would be wrong."""


@attrs.frozen(eq=False, kw_only=True)
class TrialOptions(DryRunOptions):
    """The options of a Trainer of a trial: it writes nothing, logs nothing and shows nothing."""


def trial_options(options: TrainerOptions, duration: str | None) -> DryRunOptions:
    """Return the options for a trial; they keep their duration if none is given."""
    if options.nonfinite_loss == "rollback" or options.load_best_at_end:
        raise BuildError(
            "build passes nonfinite_loss='rollback' or load_best_at_end=True to the Trainer, which "
            "need checkpoints, and the trials of a comparison write none; drop it."
        )
    fields = attrs.fields_dict(TrainerOptions)
    changes = {name: field.default for name, field in fields.items() if name.startswith("save_")}
    if duration is not None:
        changes["max_duration"] = duration
    silent = {"autoresume": False, "loggers": (), "progress_bar": False}
    return TrialOptions.of(options, **changes, **silent)


def build_trainer(
    build: Build, arguments: Mapping[str, Any], seed: int, duration: str | None
) -> Trainer:
    """Call the user's function, and check that the Trainer has what it was given.

    The global random generators are seeded first; the caller restores them. The duration is passed
    if the function takes it, and otherwise set in the Trainer; None is for the Trainer's duration,
    without checks.
    """
    passed = {**arguments, "seed": seed}
    signature = inspect.signature(build)
    own = signature.parameters.get("max_duration")
    if own is not None and duration is not None:
        passed["max_duration"] = duration
    elif own is not None and own.default is own.empty:
        raise BuildError(
            "durations=None needs a default for the parameter max_duration of build; add one, or "
            "pass durations, such as ['2ep', '4ep', '8ep']."
        )
    try:
        signature.bind(**passed)
    except TypeError as error:
        name = getattr(build, "__name__", repr(build))
        raise BuildError(
            f"{name}{signature} cannot be called with {', '.join(f'{n}=' for n in passed)}: "
            f"{error}. Add the parameter, or change the arms."
        ) from None

    given = None if own is not None else duration
    seed_all(seed)
    with overridden_runs(lambda options: trial_options(options, given)):
        trainer: Any = build(**passed)
    if not isinstance(trainer, Trainer):
        raise BuildError(f"build must return a Trainer, and returned {trainer!r:.200}.")
    if duration is not None:
        for problem in _problems(trainer, {**passed, "max_duration": duration}):
            raise BuildError(f"build {problem}")
    return trainer


def _problems(trainer: Trainer, passed: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a Trainer does not match a trial with these arguments."""
    options, trained = options_of(trainer), trainer.state.timestamp.batch
    if not isinstance(options, TrialOptions):
        yield "returned a Trainer that was built before it was called; build one in each call."
    if trained:
        yield (
            f"returned a Trainer that has trained on {trained} batches; leave the call of fit to "
            "the comparison."
        )
    if all(evaluator.eval_interval is None for evaluator in options.evaluators):
        yield (
            "returned a Trainer that never evaluates; pass eval_dataloader=..., and an "
            "eval_interval other than None."
        )
    present, given = as_list(options.algorithms), as_list(passed.get("algorithms", ()))
    if missing := [one for one in given if not any(one is has or one == has for has in present)]:
        yield (
            f"ignores its argument algorithms: the Trainer lacks {missing!r}; pass them on: "
            "Trainer(..., algorithms=algorithms)."
        )
    wanted = {"seed": passed["seed"], "max_duration": str(Time.parse(passed["max_duration"]))}
    returned = {"seed": options.seed, "max_duration": str(trainer.state.max_duration)}
    for name in ("optimizers", "schedulers"):
        if passed.get(name) is not None:
            wanted[name], returned[name] = passed[name], getattr(options, name)
    for name, value in wanted.items():
        if returned[name] is not value and returned[name] != value:
            yield (
                f"ignores its argument {name}: it was called with {name}={value!r} and returned a "
                f"Trainer with {name}={returned[name]!r}; pass it on: Trainer(..., {name}={name})."
            )


# --- before anything trains ---


def inspect_build(
    build: Build, arguments: Mapping[str, Any], durations: Sequence[str] | None
) -> Trainer:
    """Build the Trainer of the baseline, untrained, for all schedules, or else for its duration."""

    def built(duration: str | None) -> Trainer:
        try:
            with preserve_rng():
                return build_trainer(build, arguments, _SEED, duration)
        except BuildError:
            raise
        except Exception as error:
            at = "" if duration is None else f" for max_duration={duration!r}"
            raise BuildError(
                f"build fails{at}, before anything is trained: {type(error).__name__}: {error}"
            ) from error

    first = built(durations[0] if durations else None)
    own = first.state.max_duration
    tried = list(durations or ([] if own is None else [str(own)]))
    depends = "max_duration" in inspect.signature(build).parameters
    for one in (tried if depends else tried[:1])[bool(durations) :]:
        built(one)
    if tried:
        _check_new_weights(first, lambda: built(tried[-1]))
    return first


def _check_new_weights(first: Trainer, build: Callable[[], Trainer]) -> None:
    """Check that a call does not continue the weights that an earlier one has trained.

    Trainers may share parameters whose values are set in each call: before another call, the first
    Trainer's parameters are changed, as training would.
    """
    before = [(tensor, tensor.detach().clone()) for tensor in _trained(first)]
    with torch.no_grad():
        for tensor, value in before:
            tensor.copy_(value + 1)
        own = set(map(id, _trained(build())))
        kept = [tensor for tensor, value in before if id(tensor) in own and tensor.equal(value + 1)]
        for tensor, value in before:
            tensor.copy_(value)
    if kept:
        raise BuildError(
            f"build returns a Trainer with {len(kept)} of the parameters of an earlier call, so "
            "each trial would continue from the weights of the one before; create the model inside "
            "of build, or set its weights there: model.load_state_dict(...)."
        )


def _trained(trainer: Trainer) -> list[Tensor]:
    groups = [group for optimizer in trainer.state.optimizers for group in optimizer.param_groups]
    every = [parameter for group in groups for parameter in group["params"]]
    return [parameter for parameter in every if parameter.requires_grad]
