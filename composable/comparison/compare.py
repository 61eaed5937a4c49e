"""Compare methods on a model and data: `composable.compare`."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from composable._support.checks import as_path, check_count, check_flag, check_range
from composable._support.extras import needs
from composable._support.secrets import redact_command
from composable.comparison.arms import ArmLike
from composable.comparison.building import BuildError
from composable.comparison.design import (
    Design,
    Durations,
    check_amounts,
    default_folder,
    plan_amounts,
    plan_design,
)
from composable.comparison.execution import (
    TrialProgress,
    Workers,
    check_not_in_worker,
    default_workers,
    pickled,
)
from composable.comparison.rates import run_length
from composable.comparison.records import StepCost, Study
from composable.comparison.result import Comparison
from composable.comparison.stages import measure_costs, train_designs
from composable.comparison.study_file import Cache, write_study
from composable.trainer.trainer import Trainer


class NothingToCompareError(RuntimeError):
    """No trial of the baseline, or none of the other arms, has a result."""


def compare(  # noqa: PLR0913 (the arguments of the command)
    build: Callable[..., Trainer] | None = None,
    arms: Mapping[str, Any] | None = None,
    *,
    metric: str,
    run: Callable[..., Iterator[tuple[int, Any]]] | None = None,
    mode: str | None = None,
    target: float | None = None,
    baseline: str | ArmLike = (),
    durations: Durations | None = None,
    data_amounts: Iterable[float] | None = None,
    tune: Mapping[str, Any] | None = None,
    tuning_metric: str | None = None,
    seeds: int | Iterable[int] = 5,
    tuning_seeds: int | Iterable[int] = 2,
    repeat_baseline: bool = True,
    cost: Mapping[str, float] | None = None,
    workers: int | None = None,
    threads: int = 1,
    folder: str | Path | None = None,
    data_version: str | None = None,
    command: str | None = None,
    progress_bar: bool = True,
) -> Comparison:
    """Find out which methods shorten training, on your model and data.

    Each arm is trained with the same seeds on schedules of several lengths. An arm pays if it
    reaches the same results in less time than the baseline, with 95 % confidence. Times are
    numbers of steps times their cost, which is measured after training, for all arms in turn, so
    that other load on the machine has little effect.

    With `data_amounts`, an arm pays if it reaches the same results with less data.

    Finished trials are kept in the folder: the same call resumes an interrupted comparison, and
    changed or added arms, seeds and durations reuse what has not changed.

    Args:
        build: A function `build(algorithms, seed, **hyperparameters)` that returns a `Trainer`
            with these algorithms and this seed, not trained yet. If it takes `max_duration`, it
            gets each trial's; otherwise this is set in the Trainer. If it takes `optimizers` and
            `schedulers`, it gets the recipes'.
        arms: What to compare, by name: lists of algorithms, recipes, or functions of
            hyperparameters that return either. With `run`, values of any type.
        metric: The reported result, by its logged name, such as "test/accuracy". Without an
            evaluator, "f1" is "eval/f1".
        run: In the place of `build`, a generator function `run(arm, seed, duration,
            **hyperparameters)` that trains for a `Time` and yields `(step, result)`: the number of
            finished steps, and the metric, several by name, or None. The time until a yield with a
            further step counts as training, and the time between two yields at the same step as
            evaluation.
        mode: Whether the "min" or the "max" of the metric is best. Default: determined by the
            metric, or by its name.
        target: A result at which to measure the speed-up. Default: all results that the baseline
            and an arm reach, and the mean over them.
        baseline: What to compare with: the name of one of the arms, or a further arm. Default: no
            algorithms.
        durations: The lengths of the schedules, such as ["2ep", "4ep", "8ep"]. Default: a quarter,
            a half and the whole of the Trainer's `max_duration`. A mapping from names of arms to
            lengths, {"baseline": ["120ba", "240ba"], "large batch": ["30ba", "60ba"]}, is for
            arms of other batch sizes or step costs: an arm that is not in it has the schedules of
            the baseline.
        data_amounts: Amounts of training data to compare, in the place of time, in any unit, such
            as shares [0.1, 0.3, 1.0]. The function loads them: it must take `data_amount`, which
            each trial passes. Settings are chosen for each amount. Every amount is trained for as
            many batches: epochs are epochs of the largest amount. The result of a seed is `metric`
            at the evaluation with the best `tuning_metric`, over all its schedules.
        tune: The values to try of hyperparameters of `build` or of arms, such as
            {"lr": [0.01, 0.1]}. A mapping in the place of the values, {"mixup": {"alpha": [0.2,
            0.4]}}, is for the arm of that name. Every arm tries the same number of configurations,
            in the same time of training.
        tuning_metric: The result by which settings are chosen, on other data than `metric`.
            Default: the result of the same name of the other evaluator.
        seeds: The number of reported seeds, or a list of them.
        tuning_seeds: The number of seeds of each configuration in tuning, or a list of them, other
            than those that are reported.
        repeat_baseline: Add the baseline once more, with other seeds: how much it differs from
            itself is the noise floor.
        cost: The seconds of a step by arm. Default: they are measured on this machine.
        workers: The number of trials that run at the same time. Default: one for each core,
            divided by `threads`, or one for each GPU of this machine.
        threads: The number of threads of each trial.
        folder: Where results and finished trials are written. Default: "comparisons/" and the name
            of the script or module of `build`.
        data_version: A text that changes with the data that `build` reads: finished trials of
            another version are not reused.
        command: The command that repeats the comparison, for the report. Default: none.
        progress_bar: Show the number of finished trials, and the time left.

    Returns:
        The comparison, with a table, a plot and verdicts. The folder has the same in files:
        study.json, table.txt, plot.png, plot.svg and report.html.

    Raises:
        ValueError: An argument is invalid, the algorithms of an arm cannot be combined, or the
            Trainer cannot be compared: it ignores its seed, or does not log the metric.
        TypeError: An argument is of the wrong type.
        ImportError: A package of the extra "compare" is not installed.
        NothingToCompareError: No trial of the baseline or of the other arms has a result.

    Example:
        >>> import composable
        >>> from composable.algorithms import LabelSmoothing
        >>> comparison = composable.compare(  # doctest: +SKIP
        ...     build,
        ...     {"smoothing": [LabelSmoothing(0.1)]},
        ...     metric="test/accuracy",
        ...     durations=["5ep", "10ep", "20ep"],
        ... )
        >>> comparison.verdict("smoothing")  # doctest: +SKIP
        <Verdict.NO_EVIDENCE: 'no evidence'>
    """
    check_not_in_worker()
    with needs("a comparison", "compare"):  # before training
        for package in ("cloudpickle", "jinja2", "loky", "scipy"):
            import_module(package)
    check_flag("progress_bar", progress_bar)
    amounts = None if data_amounts is None else check_amounts(data_amounts)
    if amounts and cost is not None:
        raise ValueError("cost=... is for comparisons by time; drop it, or data_amounts.")
    check_count("threads", threads, 1)
    workers = default_workers(threads) if workers is None else workers
    check_count("workers", workers, 1)
    given_folder = None if folder is None else as_path("folder", folder)
    plan = partial(
        plan_design,
        build=build,
        run=run,
        arms=arms or {},
        baseline=baseline,
        metric=metric,
        mode=mode,
        target=target,
        tune=tune,
        seeds=seeds,
        tuning_seeds=tuning_seeds,
        tuning_metric=tuning_metric,
        repeat_baseline=repeat_baseline,
        threads=threads,
    )
    designs = plan_amounts(plan, amounts, durations) if amounts else [plan(durations=durations)]
    design = designs[-1]
    pickled(design.subject.name, design.subject.function)  # before training
    for name, arm in design.subject.arms.items():
        pickled(f"arm {name!r}", arm)
    given = () if amounts else _given_costs(design, cost)
    place = given_folder or default_folder(design.subject.function)
    progress = TrialProgress(
        lambda trial: run_length(trial.duration, design.epoch_length), show=progress_bar
    )
    pool = Workers(
        design.subject,
        Cache(place / "trials", design.subject, data=data_version),
        workers,
        place / "logs",
        progress,
    )
    try:
        study = _run(designs, pool, given)
    except KeyboardInterrupt:
        progress.close()
        print(
            f"Interrupted: {progress.finished} of {progress.total} planned trials are finished, "
            f"and kept in {place}. The same call resumes the comparison."
        )
        raise
    finally:
        progress.close()
        pool.stop()
    shown = None if command is None else shlex.join(redact_command(shlex.split(command)))
    protocol = attrs.evolve(study.protocol, command=shown)
    return _write(attrs.evolve(study, protocol=protocol), place)


def _given_costs(design: Design, cost: Mapping[str, float] | None) -> tuple[StepCost, ...] | None:
    """Return the given seconds of a step of every arm but the A/A arm."""
    if cost is None:
        return None
    arms = [arm for arm in design.tried if arm != design.protocol.repeated]
    if not isinstance(cost, Mapping) or set(cost) != set(arms):
        raise ValueError(f"cost={cost!r} must be a mapping with the seconds of a step of {arms}.")
    for arm, seconds in cost.items():
        check_range(f"cost[{arm!r}]", seconds, 0, ends="()")
    schedules = design.protocol.schedules
    return tuple(StepCost(arm, schedules[arm][-1], (0.5,), ((float(cost[arm]),),)) for arm in arms)


def _run(designs: Sequence[Design], pool: Workers, costs: tuple[StepCost, ...] | None) -> Study:
    """Train, and measure the costs of steps."""
    design, study = designs[-1], train_designs(designs, pool)
    check_results(study, design.subject.name)
    notes = ["The costs of steps were given, not measured."] if costs else []
    if costs is None:
        costs, notes = measure_costs(pool, study)
    notes = [*study.protocol.notes, *equal_arms(study), *notes]
    protocol = attrs.evolve(study.protocol, notes=tuple(notes))
    return attrs.evolve(study, protocol=protocol, costs=costs)


# --- runs without a result, or with equal ones ---


def check_results(study: Study, function: str) -> None:
    """Check that the baseline and another arm have a result, and that seeds have different ones."""
    protocol, reported = study.protocol, study.reported
    having = {result.trial.arm for result in reported if result.outcome == "finished"}
    others = set(protocol.arms) - {protocol.baseline, protocol.repeated}
    if protocol.baseline in having and having & others:
        _check_seeds(study, function)
        return
    lacking = sorted(others) if protocol.baseline in having else [protocol.baseline]
    errors = [
        f"{one.trial.arm}, {one.trial.duration}, seed {one.trial.seed}: {one.error or one.outcome}"
        for one in reported
        if one.trial.arm in lacking
    ]
    raise NothingToCompareError(
        f"there is nothing to compare: no run of {', '.join(lacking)} finished. {min(errors)}"
    )


def _check_seeds(study: Study, function: str) -> None:
    """Check that the runs of an arm differ: equal ones would be taken for certain results."""
    for arm, runs in _curves(study).items():
        seeds = sorted({seed for _, seed in runs})
        different = {(place, curve) for (place, _), curve in runs.items()}
        if len(seeds) > 1 and len(different) == len({place for place, _ in runs}):
            raise BuildError(
                f"the runs of arm {arm!r} have the same results for the seeds "
                f"{', '.join(map(str, seeds))}: {function} does not depend on the seed, apart from "
                "passing it on. Do not set another seed in it, and shuffle the training data; or "
                "pass seeds=1."
            )


def equal_arms(study: Study) -> list[str]:
    """Return a note for each arm whose results equal an earlier arm's."""
    notes, different = [], dict[str, str]()
    for arm, runs in _curves(study).items():
        first = different.setdefault(str(sorted(runs.items())), arm)
        if runs and first != arm and arm != study.protocol.repeated:
            notes.append(
                f"Arm {arm!r} has the same results as {first!r}: what it adds or changes has no "
                "effect on this model and data."
            )
    return notes


def _curves(study: Study) -> Mapping[str, dict[tuple[str, int], str]]:
    """Return the results of reported runs that finished, by arm, duration and data, and seed."""
    curves: dict[str, dict[tuple[str, int], str]] = {arm: {} for arm in study.protocol.arms}
    for result in study.reported:
        if result.outcome == "finished":
            place = f"{result.trial.duration} {result.trial.data_amount}"
            curves[result.trial.arm][place, result.trial.seed] = str(result.curve)
    return curves


# --- the files ---


def _write(study: Study, folder: Path) -> Comparison:
    """Write the files, and print the table and where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    write_study(study, folder / "study.json")  # first: an error of the analysis loses no results
    comparison = Comparison(study)
    print(comparison.table())
    try:
        comparison.save(folder)
    except ImportError as error:  # without plots, everything else is there
        print(f"\n{folder} has study.json and table.txt, and no report. {error}")
    else:
        print(f"\n{folder / 'report.html'} shows it with plots; {folder} has the other files.")
    return comparison
