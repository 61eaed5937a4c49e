"""Compare methods on a model and data: `composable.compare`."""

import importlib.util
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from composable._version import __version__
from composable.comparison.equal_runs import check_seeds, equal_arms
from composable.comparison.plan.arms import ArmLike
from composable.comparison.plan.design import (
    Design,
    Durations,
    Options,
    arguments_of,
    default_folder,
)
from composable.comparison.plan.progress import Progress
from composable.comparison.plan.running import Runner
from composable.comparison.plan.stages import Trained, train
from composable.comparison.records import Protocol, Study
from composable.comparison.result import Comparison
from composable.comparison.study_file import write_study
from composable.comparison.trials.cache import Cache
from composable.comparison.trials.digest import digest_of
from composable.comparison.trials.payload import pickled
from composable.comparison.trials.pool import Pool
from composable.comparison.trials.step_costs import measure_costs
from composable.core._secrets import redact_command
from composable.functional._checks import as_path, check_count, check_flag
from composable.trainer.trainer import Trainer

__all__ = ["NothingToCompareError", "check_results", "compare"]


class NothingToCompareError(RuntimeError):
    """No trial of the baseline, or none of the other arms, has a result."""


def compare(  # noqa: PLR0913 (the arguments of the command)
    build: Callable[..., Trainer],
    arms: Mapping[str, ArmLike],
    *,
    metric: str,
    mode: str | None = None,
    target: float | None = None,
    baseline: str | ArmLike = (),
    durations: Durations | None = None,
    tune: Mapping[str, Any] | None = None,
    tuning_metric: str | None = None,
    split_evaluation: bool = False,
    seeds: int | Iterable[int] = 5,
    tuning_seeds: int | Iterable[int] = 2,
    leave_one_out: bool = False,
    add_one_in: bool = False,
    repeat_baseline: bool = True,
    budget: str | float | None = None,
    workers: int | None = None,
    threads: int = 1,
    folder: str | Path | None = None,
    data_version: str | None = None,
    command: str | None = None,
    progress_bar: bool = True,
) -> Comparison:
    """Find out which methods shorten training, on a model and data of your own.

    Each arm is trained with the same seeds on schedules of several lengths. An arm pays if it
    reaches the same results in less time than the baseline, with 95 % confidence. Times are
    numbers of steps times their cost, which is measured after training, for all arms in turn, so
    that other load on the machine has little effect.

    Finished trials are kept in the folder: the same call resumes an interrupted comparison, and
    changed or added arms, seeds and durations reuse what has not changed.

    Args:
        build: A function `build(algorithms, seed, **hyperparameters)` that returns a `Trainer`
            with these algorithms and this seed, not trained yet. If it takes `max_duration`, it
            gets that of each trial; otherwise this is set in the Trainer. If it takes `optimizers`
            and `schedulers`, it gets those of recipes.
        arms: What to compare, by name: lists of algorithms, recipes, or functions of
            hyperparameters that return either.
        metric: The reported result, by its logged name, such as "test/accuracy".
        mode: Whether the "min" or the "max" of the metric is best. Default: determined by the
            metric, or by its name.
        target: A result at which to measure the speed-up. Default: all results that the baseline
            and an arm reach, and the mean over them.
        baseline: What to compare with: the name of one of the arms, or an arm of its own. Default:
            no algorithms.
        durations: The lengths of the schedules, such as ["2ep", "4ep", "8ep"]. Default: a quarter,
            a half and the whole of the Trainer's `max_duration`. A mapping from names of arms to
            lengths, {"baseline": ["120ba", "240ba"], "large batch": ["30ba", "60ba"]}, is for
            arms of other batch sizes or step costs: an arm that is not in it has the schedules of
            the baseline, and one of `leave_one_out` those of its arm.
        tune: The values to try of hyperparameters of `build` or of arms, such as
            {"lr": [0.01, 0.1]}. A mapping in the place of the values, {"mixup": {"alpha": [0.2,
            0.4]}}, is for the arm of that name. Every arm tries the same number of configurations,
            in the same time of training.
        tuning_metric: The result by which settings are chosen, on other data than `metric`.
            Default: the result of the same name of the other evaluator.
        split_evaluation: Split the data of the only evaluator into "validation" and "test".
        seeds: The number of reported seeds, or a list of them.
        tuning_seeds: The number of seeds of each configuration in tuning, or a list of them, other
            than those that are reported.
        leave_one_out: Add each arm without each of its algorithms.
        add_one_in: Add the baseline with each algorithm of the arms, alone.
        repeat_baseline: Add the baseline once more, with other seeds: how much it differs from
            itself is the noise floor.
        budget: The time of training, such as "10min". Fewer configurations are tried, in
            successive halving, and fewer seeds are run, so that the estimated time fits. When it
            ends, what is finished is reported. Default: no limit.
        workers: The number of trials that run in parallel. Default: one for each core, divided by
            `threads`, or one for each GPU.
        threads: The number of threads of each trial.
        folder: Where results and finished trials are written. Default: "comparisons/" and the name
            of the script or module of `build`.
        data_version: A text that changes with the data that `build` reads: finished trials of
            another version are not reused.
        command: The command that repeats the comparison, for the report. Default: none.
        progress_bar: Show the number of finished trials, and the time left.

    Returns:
        The comparison, with a table, a plot and verdicts. The folder has the same in files:
        study.json, table.txt, plot.png, plot.svg, card.md and report.html.

    Raises:
        ValueError: An argument is invalid, the algorithms of an arm cannot be combined, or the
            Trainer cannot be compared: it ignores its seed, or does not log the metric.
        TypeError: An argument is of the wrong type.
        ImportError: cloudpickle, Jinja, pandas, SciPy or matplotlib is not installed.
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
    _check_process()
    _check_packages()
    check_flag("progress_bar", progress_bar)
    options = Options(
        build=build,
        arms=arms,
        baseline=baseline,
        metric=metric,
        mode=mode,
        target=target,
        durations=durations,
        tune=tune,
        seeds=seeds,
        tuning_seeds=tuning_seeds,
        tuning_metric=tuning_metric,
        split_evaluation=split_evaluation,
        leave_one_out=leave_one_out,
        add_one_in=add_one_in,
        repeat_baseline=repeat_baseline,
        budget=budget,
    )
    place = default_folder(build) if folder is None else as_path("folder", folder)
    if workers is not None:
        check_count("workers", workers, 1)
    check_count("threads", threads, 1)
    design = Design.of(options)
    pool = Pool(
        build,
        workers=workers,
        threads=threads,
        folder=place / "logs",
        metrics=dict.fromkeys((design.metrics.reporting, design.metrics.tuning)),
        split_evaluation=split_evaluation,
    )
    progress = Progress(design.built.epoch_length, show=progress_bar)
    try:
        study = _run(design, pool, Cache(place / "trials", data=data_version), progress)
    except KeyboardInterrupt:
        progress.close()
        print(
            f"Interrupted: {progress.finished} of {progress.total} planned trials are finished, "
            f"and kept in {place}. The same call resumes the comparison."
        )
        raise
    finally:
        progress.close()
    shown = None if command is None else shlex.join(redact_command(shlex.split(command)))
    protocol = attrs.evolve(study.protocol, command=shown)
    return _write(attrs.evolve(study, protocol=protocol), place)


def _check_process() -> None:
    """Refuse to start a comparison in a worker of another one."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == "composable.comparison.trials.worker":
        raise RuntimeError(
            "compare was called while a worker process of a comparison imported the script; put "
            "the call under if __name__ == '__main__'."
        )


def _check_packages() -> None:
    """Check before training that the analysis afterwards can run."""
    needed = ("cloudpickle", "jinja2", "pandas", "scipy")
    missing = [one for one in needed if importlib.util.find_spec(one) is None]
    if missing:
        raise ImportError(
            f"a comparison needs {' and '.join(missing)}: pip install composable[compare]. It is "
            "an extra, which the library does not install by default."
        )


def _run(design: Design, pool: Pool, cache: Cache, progress: Progress) -> Study:
    _check_arguments(design)
    with pool:
        runner = Runner(design, lambda requests: pool.run(requests, cache), progress)
        trained = train(design, runner.train, pool.workers, runner.spent)
        check_results(design, trained)
        progress.start("costs of steps", ())
        costs, notes = measure_costs(design, pool, cache, trained, progress.advance)
    equal = equal_arms(design, trained.results)
    protocol = _protocol(design, pool.threads, trained, [*equal, *notes])
    return Study(protocol, trained.results, costs)


def _check_arguments(design: Design) -> None:
    """Check before training that the algorithms of all arms can be sent to other processes."""
    for name, arm in design.arms.items():
        for settings in design.tried.by_arm[name]:
            pickled(f"the arguments of arm {name!r}", arguments_of(arm, settings), design.build)


def check_results(design: Design, trained: Trained) -> None:
    """Check that the baseline and another arm have a result, and that seeds have different ones.

    Raises:
        NothingToCompareError: They have none.
        BuildError: The runs of an arm do not depend on the seed.
    """
    reported = [one for one in trained.results if one.trial.purpose == "reporting"]
    if not reported:
        raise NothingToCompareError(
            "the budget ended before all arms had one seed. Finished trials are kept: the same "
            "call continues with the others. " + " ".join(trained.notes)
        )
    having = {one.trial.arm for one in reported if one.outcome == "finished"}
    others = set(design.arms) - {design.baseline, design.repeated}
    if design.baseline in having and having & others:
        check_seeds(design, reported)
        return
    lacking = [design.baseline] if design.baseline not in having else sorted(others)
    errors = {
        f"{one.trial.arm}, {one.trial.duration}, seed {one.trial.seed}: {one.error or one.outcome}"
        for one in reported
        if one.trial.arm in lacking
    }
    raise NothingToCompareError(
        f"there is nothing to compare: no run of {', '.join(lacking)} finished. {min(errors)}"
    )


def _protocol(design: Design, threads: int, trained: Trained, notes: Sequence[str]) -> Protocol:
    device = design.built.device
    return Protocol(
        arms=tuple(design.arms),
        baseline=design.baseline,
        repeated=design.repeated,
        metric=design.metrics.reporting,
        tuning_metric=design.metrics.tuning,
        mode="min" if design.metrics.mode == "min" else "max",
        target=design.target,
        durations=design.durations,
        own_durations={
            arm: own for arm, own in design.schedules.items() if own != design.durations
        },
        seeds=trained.seeds,
        tuning_seeds=design.seeds.tuning if design.tuned else (),
        grids=design.grids,
        chosen=trained.settings,
        clock="cpu" if device == "cpu" and threads == 1 else "wall",
        versions={
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "composable": __version__,
            "device": _device_name(device),
            "build": digest_of(design.build)[:16],
        },
        notes=(*design.notes, *trained.notes, *notes),
    )


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {device}"


def _write(study: Study, folder: Path) -> Comparison:
    """Write the files, and print the table and where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    write_study(study, folder / "study.json")  # first: an error of the analysis loses no results
    comparison = Comparison(study)
    print(comparison.table())
    try:
        comparison.save(folder)
    except ImportError as error:  # without plots, everything else is there
        print(f"\n{folder} has study.json, table.txt and card.md, and no report. {error}")
    else:
        print(f"\n{folder / 'report.html'} shows it with plots; {folder} has the other files.")
    return comparison
