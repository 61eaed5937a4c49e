"""Call the user's function that builds a Trainer, and check what it builds."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from composable.core.key import Key
from composable.core.time import Time
from composable.data.permutation import permute
from composable.metrics import Evaluator
from composable.plan.declarations import as_list
from composable.replay import DryRunOptions
from composable.trainer.options import TrainerOptions
from composable.trainer.ownership import sharing_models
from composable.trainer.session import overridden_runs
from composable.trainer.trainer import Trainer
from composable.utils.reproducibility import preserve_rng, seed_all

__all__ = ["Build", "BuildError", "build_trainer", "inspect_build", "split_evaluators"]

Build = Callable[..., Trainer]
"""`build(algorithms, seed, **hyperparameters) -> Trainer`."""

_SEED = 715_517
"""No trial has it: a build function that ignores its seed has another one."""


class BuildError(ValueError):
    """The compared function cannot be compared: each of its trials would be wrong."""


@attrs.frozen(eq=False, kw_only=True)
class TrialOptions(DryRunOptions):
    """The options of a Trainer of a trial: it writes nothing, logs nothing and shows nothing."""

    @classmethod
    def of_trial(
        cls, options: TrainerOptions, *, max_duration: str | None, split_evaluation: bool
    ) -> DryRunOptions:
        """Change the options of a Trainer; the duration only if one is given."""
        for argument, needed in (
            ("nonfinite_loss='rollback'", options.nonfinite_loss == "rollback"),
            ("load_best_at_end=True", options.load_best_at_end),
        ):
            if needed:
                raise BuildError(
                    f"build passes {argument} to the Trainer, which needs checkpoints, and the "
                    "trials of a comparison write none; drop it."
                )
        changes: dict[str, Any] = {
            field.name: field.default
            for field in attrs.fields(TrainerOptions)
            if field.name.startswith("save_")
        }
        changes.update(autoresume=False, loggers=(), progress_bar=False)
        if max_duration is not None:
            changes["max_duration"] = max_duration
        if split_evaluation:
            changes["eval_dataloader"] = split_evaluators(options.evaluators)
        return cls.of(options, **changes)


def build_trainer(
    build: Build,
    arguments: Mapping[str, Any],
    seed: int,
    duration: str | None,
    *,
    split_evaluation: bool = False,
) -> Trainer:
    """Call the user's function, and check that the Trainer has what it was given.

    The global random generators are seeded first; the caller restores them.

    Args:
        build: The function.
        arguments: Its arguments besides the seed and the duration: `algorithms`, and others.
        seed: The seed.
        duration: The `max_duration`: passed if the function takes it, and otherwise set in the
            Trainer. None for the Trainer's own, without checks.
        split_evaluation: Split the evaluator into "validation" and "test".

    Raises:
        BuildError: The function does not take an argument, or ignores it, or returns no Trainer.
    """
    passed = {**arguments, "seed": seed}
    own = _duration_of(build)
    if own is not None and duration is not None:
        passed["max_duration"] = duration
    elif own is not None and own.default is own.empty:
        raise BuildError(
            "durations=None stands for the max_duration that build passes to the Trainer, and it "
            "takes it as an argument without a default; pass durations, such as ['2ep', '4ep', "
            "'8ep']."
        )
    signature = inspect.signature(build)
    try:
        signature.bind(**passed)
    except TypeError as error:
        name = getattr(build, "__name__", repr(build))
        raise BuildError(
            f"{name}{signature} cannot be called with {', '.join(f'{n}=' for n in passed)}: "
            f"{error}. Add the parameter, or change the arms."
        ) from None

    def override(options: TrainerOptions) -> TrainerOptions:
        given = None if own is not None else duration
        return TrialOptions.of_trial(options, max_duration=given, split_evaluation=split_evaluation)

    seed_all(seed)
    with overridden_runs(override), sharing_models():  # a check names a global model
        trainer: Any = build(**passed)
    if not isinstance(trainer, Trainer):
        raise BuildError(f"build must return a Trainer, and returned {trainer!r:.200}.")
    if duration is not None:
        _check_built(trainer, passed, duration)
    return trainer


def _duration_of(build: Build) -> inspect.Parameter | None:
    """Return the parameter `max_duration` of the function, if it has one."""
    try:
        return inspect.signature(build).parameters.get("max_duration")
    except (TypeError, ValueError):
        raise BuildError(
            f"build={build!r} must be a function (algorithms, seed, **hyperparameters) that "
            "returns a Trainer."
        ) from None


def _check_built(trainer: Trainer, passed: Mapping[str, Any], duration: str) -> None:
    """Check a Trainer for a trial."""
    options, trained = trainer._options, trainer.state.timestamp.batch
    present, given = as_list(options.algorithms), as_list(passed.get("algorithms", ()))
    missing = [one for one in given if not any(one is has or one == has for has in present)]
    returned = {"seed": options.seed, "max_duration": str(trainer.state.max_duration)}
    wanted = {"seed": passed["seed"], "max_duration": str(Time.parse(duration))}
    problems = [
        (
            not isinstance(options, TrialOptions),
            "returned a Trainer that was built before it was called; build a new one in each call.",
        ),
        (
            trained,
            f"returned a Trainer that has trained on {trained} batches; leave the call of fit to "
            "the comparison.",
        ),
        (
            all(one.eval_interval is None for one in options.evaluators),
            "returned a Trainer that never evaluates; pass eval_dataloader=..., and an "
            "eval_interval other than None.",
        ),
        *(
            (
                returned[name] != one,
                f"was called with {name}={one!r} and returned a Trainer with "
                f"{name}={returned[name]!r}; pass {'the seed' if name == 'seed' else 'it'} on: "
                f"Trainer(..., {name}={name}).",
            )
            for name, one in wanted.items()
        ),
        (
            missing,
            f"ignores its argument algorithms: the Trainer lacks {missing!r}; pass them on: "
            "Trainer(..., algorithms=algorithms).",
        ),
        *(
            (
                passed.get(name) is not None and getattr(options, name) is not passed[name],
                f"ignores its argument {name}, which a recipe gives; pass it on: "
                f"Trainer(..., {name}={name}).",
            )
            for name in ("optimizers", "schedulers")
        ),
    ]
    for found, problem in problems:
        if found:
            raise BuildError(f"build {problem}")


# --- before anything trains ---


def inspect_build(
    build: Build,
    arguments: Mapping[str, Any],
    durations: Sequence[str] | None,
    *,
    split_evaluation: bool,
) -> Trainer:
    """Build the Trainer of the baseline for all schedules, or for its own, without training it.

    Raises:
        BuildError: The build function ignores an argument, refuses a duration, returns no Trainer,
            or continues the weights of an earlier call.
    """

    def built(duration: str | None) -> Trainer:
        try:
            with preserve_rng():
                return build_trainer(
                    build, arguments, _SEED, duration, split_evaluation=split_evaluation
                )
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
    for one in (tried if _duration_of(build) else tried[:1])[bool(durations) :]:
        built(one)
    if tried:
        _check_new_weights(first, lambda: built(tried[-1]))
    return first


def _check_new_weights(first: Trainer, build: Callable[[], Trainer]) -> None:
    """Check that a call does not continue the weights that an earlier one has trained.

    Trainers may share parameters whose values are set in each call: those of the first one are
    changed, as training would, for another call.
    """
    before = [(one, one.detach().clone()) for one in _trained(first)]
    with torch.no_grad():
        for one, value in before:
            one.copy_(value + 1)
        own = set(map(id, _trained(build())))
        kept = [one for one, value in before if id(one) in own and one.equal(value + 1)]
        for one, value in before:
            one.copy_(value)
    if kept:
        raise BuildError(
            f"build returns a Trainer with {len(kept)} of the parameters of an earlier call, so "
            "each trial would continue from the weights of the one before; create the model inside "
            "of build, or set its weights there: model.load_state_dict(...)."
        )


def _trained(trainer: Trainer) -> list[Tensor]:
    groups = [group for one in trainer.state.optimizers for group in one.param_groups]
    every = [parameter for group in groups for parameter in group["params"]]
    return [parameter for parameter in every if parameter.requires_grad]


# --- validation apart from test ---


def split_evaluators(evaluators: Sequence[Evaluator]) -> tuple[Evaluator, ...]:
    """Split the only evaluator of a Trainer into two, with half of the examples each.

    The halves are drawn by a permutation that is the same in every trial, and keep the order of
    the data. A list of batches is split into two lists.

    Example:
        >>> from composable import Evaluator
        >>> from composable.comparison.building import split_evaluators
        >>> data = torch.utils.data.TensorDataset(torch.arange(10.0))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=5)
        >>> [len(one.dataloader.dataset) for one in split_evaluators([Evaluator("eval", loader)])]
        [5, 5]
    """
    if len(evaluators) != 1:
        raise BuildError(
            f"split_evaluation=True splits one evaluator, and the Trainer has "
            f"{[one.label for one in evaluators]}; pass split_evaluation=False, and name the "
            "metrics for tuning and for reporting."
        )
    loader: Any = evaluators[0].dataloader
    listed = isinstance(loader, (list, tuple))
    if not listed and (problem := _problem(loader)):
        raise BuildError(
            "split_evaluation=True needs an eval_dataloader that is a DataLoader with a batch_size "
            f"and takes each example of a data set with indices once; {problem}. Pass two "
            "evaluators to the Trainer instead: eval_dataloader=[Evaluator('validation', ...), "
            "Evaluator('test', ...)]."
        )
    length = len(loader if listed else loader.dataset)
    if length < 2:
        raise BuildError(
            f"split_evaluation=True needs at least 2 {'batches' if listed else 'examples'}, and "
            f"the eval_dataloader has {length}."
        )
    order = permute(torch.arange(length), length, Key(0).fold("split_evaluation")).tolist()
    halves = sorted(order[: length // 2]), sorted(order[length // 2 :])
    return tuple(
        attrs.evolve(
            evaluators[0],
            label=label,
            dataloader=[loader[i] for i in half] if listed else _part(loader, half),
        )
        for label, half in zip(("validation", "test"), halves, strict=True)
    )


def _problem(loader: Any) -> str:
    """Return why a loader does not read each example of an indexed data set once, or ""."""
    if not isinstance(loader, DataLoader):
        return f"it is a {type(loader).__name__}"
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return f"its data set is a {type(dataset).__name__}"
    if loader.batch_size is None:
        return "it has a batch sampler of its own, or none"
    sampler: Any = loader.sampler
    shuffled = isinstance(sampler, RandomSampler) and not sampler.replacement
    if (shuffled and sampler.num_samples == len(dataset)) or isinstance(sampler, SequentialSampler):
        return ""
    return f"it has a {type(sampler).__name__}"


def _part(loader: "DataLoader[Any]", indices: list[int]) -> "DataLoader[Any]":
    names = ["batch_size", "collate_fn", "num_workers", "pin_memory"]
    if loader.num_workers:
        names += ["prefetch_factor", "persistent_workers"]
        names += ["multiprocessing_context", "worker_init_fn"]
    options = {name: getattr(loader, name) for name in names}
    return DataLoader(Subset(loader.dataset, indices), **options)
