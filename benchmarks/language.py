"""The comparison of small language models that docs/evidence.md reports.

    python benchmarks/language.py search     # tune every arm: the same space, the same trials
                                             # (all others refine the baseline and the recipe, too)
    python benchmarks/language.py targets    # the results of the baseline that arms are held to
    python benchmarks/language.py compare    # train the chosen settings on four schedules
    python benchmarks/language.py more       # twice as long, and on another text
    python benchmarks/language.py compare --store    # and write to docs/evidence/language
    python benchmarks/language.py costs      # measure the costs of steps of the stored study again
    python benchmarks/language.py reference  # a GPT-2 on bytes, which the plot has as a line

The protocol is docs/protocol.md. A trial is a number of CPU seconds of training: the cost of a step
is measured first, while no other trial runs, so that a larger batch, vocabulary or model gets fewer
steps. Text, tokens and packages must be those of the stored study. Trials are kept in
the folder, and the same command continues an interrupted search. The search takes about 20 minutes
an arm on one core, the comparison about 10.
"""

import argparse
import functools
import itertools
import json
import math
import os
import platform
import random
import shutil
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attrs
import torch

from composable import Callback, Logger, State, Trainer, recipes
from composable.algorithms import Alibi, NGramEmbeddings
from composable.comparison.arms import Arm
from composable.comparison.study_file import read_study
from composable.optim import AdamWScheduleFree, RowAdagrad, by_role, constant
from composable.recipes import Recipe

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

import counting  # noqa: E402 (a script of benchmarks/)
import small_gpt  # noqa: E402 (a script of examples/)
from data_hashes import check_data  # noqa: E402
from evidence import compare_overlapping, store, with_new_costs  # noqa: E402

SECONDS = (10.0, 16.0, 25.0, 40.0)
"""CPU seconds of training of the four schedules."""
SCHEDULES: dict[str, tuple[float, ...]] = {
    "NGramEmbeddings": (6.0, *SECONDS),
    "speedrun_gpt": (3.0, 5.0, 8.0, 13.0, 20.0, 32.0),
}
"""Those of arms that surpass the baseline's results in less time."""
TRIALS, FINALISTS = 48, 4
TUNING_SEEDS = (100, 101)
MORE_SEEDS = 2
STEPS = 12
"""Steps whose cost is measured, after as many."""
EVALUATED_CONTEXT = 256
"""Of the arms with ALiBi, which predict with a longer context than they train with."""

SPACE: dict[str, Sequence[Any]] = {
    "vocabulary": (256, 1024, 2048, 4096),
    "depth": (1, 2),
    "width": (96, 128, 192),
    "context": (32, 64, 128),
    "batch_tokens": (256, 512, 1024, 2048),
    "embedding_lr": (4e-3, 8e-3, 12e-3, 16e-3, 24e-3, 32e-3),
    "weight_decay": (0.0, 0.1),
    "warmup": ("0.02dur", "0.05dur", "0.1dur"),
    "initialization": ("gpt2", "fan-in"),
}
"""The values of every arm. Each has a space of the rate of the matrices of its own."""
BY_HAND: dict[str, Any] = {
    "vocabulary": 2048,
    "depth": 1,
    "width": 128,
    "context": 64,
    "batch_tokens": 512,
    "embedding_lr": 24e-3,
    "weight_decay": 0.1,
    "warmup": "0.05dur",
    "initialization": "fan-in",
}
"""The best setting of AdamW that was found by hand, on another text, before the search."""
RECIPE_BY_HAND: dict[str, Any] = {
    **BY_HAND,
    "width": 96,
    "batch_tokens": 1024,
    "lr": 16e-3,
    "evaluated_context": 256,
    "table_lr": 0.1,
    "rows": 2**20,
    "n": 3,
}
"""The best setting of `speedrun_gpt` of twelve that were tried by hand, on the validation text."""
ADAMW_LR, MUON_LR = (1e-3, 1.4e-3, 2e-3, 2.8e-3, 4e-3), (8e-3, 11e-3, 16e-3, 22e-3, 32e-3)
TABLES = {"table_lr": (0.05, 0.1, 0.2), "rows": (2**16, 2**18, 2**20), "n": (2, 3, 4)}
Source = tuple[str, Callable[[], dict[str, list[str]]]]
MEGABYTES = 2000.0
LONGER = {"evaluated_context": (EVALUATED_CONTEXT,)}
BASELINE, RECIPE = "AdamW", "speedrun_gpt"
STORED = ROOT / "docs/evidence/language"
GPT2, GPT2_RATES = "GPT-2 on bytes", (1e-3, 2e-3, 4e-3)
GPT2_SETTINGS: dict[str, Any] = {
    "vocabulary": 256,
    "depth": 2,
    "width": 128,
    "context": 128,
    "batch_tokens": 1024,
    "weight_decay": 0.1,
    "warmup": "0.05dur",
    "positions": "learned",
    "initialization": "gpt2",
}
"""A reference, with one rate for all parameters: no arm is compared to it."""
GPT2_RESULT = 2.008
"""What `reference` printed."""


def references() -> dict[str, float]:
    """Return what simpler predictors reach, by their names: the lines of the plot."""
    found = counting.stored()
    tables = {
        f"{n}-grams of tokens, {best['seconds']:.0f} CPU s": best["nats_per_byte"]
        for n in counting.ORDERS[::3]
        for best in [min((x for x in found["tokens"] if x["n"] == n), key=_loss)]
    }
    by_bytes = {f"{n}-grams of bytes": found["bytes"][n - 1] for n in (3, 5)}
    return {GPT2: GPT2_RESULT, **by_bytes, **tables, "xz": found["xz"]}


def _loss(table: Mapping[str, Any]) -> float:
    return float(table["nats_per_byte"])


TARGETS = (1.39, 1.34, 1.29, 1.23, 1.18)
"""What `targets` printed before the arms were compared."""


def muon(lr: float, embedding_lr: float, weight_decay: float) -> Recipe:
    """Return Muon for the hidden matrices, in the place of AdamW."""
    return attrs.evolve(alibi_muon(lr, embedding_lr, weight_decay), algorithms=())


def alibi_muon(lr: float, embedding_lr: float, weight_decay: float) -> Recipe:
    """Return the recipe `small_gpt` for sequences that the loader cuts, without its schedule."""
    recipe = recipes.small_gpt(
        lr=lr,
        adamw_lr=embedding_lr,
        weight_decay=weight_decay,
        max_sequence_length=EVALUATED_CONTEXT,
        sequence_length=EVALUATED_CONTEXT,
    )
    return attrs.evolve(recipe, schedulers=None)


def ngrams(
    lr: float, embedding_lr: float, weight_decay: float, table_lr: float, rows: int, n: int
) -> Recipe:
    """Return n-gram embeddings, with the two rates of AdamW and one of the table."""
    adamw = functools.partial(
        torch.optim.AdamW, lr=embedding_lr, betas=(0.9, 0.99), weight_decay=weight_decay, fused=True
    )
    optimizers = by_role(
        {"tables": functools.partial(RowAdagrad, lr=table_lr), "matrices": {"lr": lr}}, adamw
    )
    return Recipe([NGramEmbeddings(n, rows, MEGABYTES, sparse=True)], optimizers)


def speedrun(
    lr: float, embedding_lr: float, weight_decay: float, table_lr: float, rows: int, n: int
) -> Recipe:
    """Return the recipe `speedrun_gpt` for sequences that the loader cuts, without its schedule."""
    recipe = recipes.speedrun_gpt(
        lr=lr,
        adamw_lr=embedding_lr,
        table_lr=table_lr,
        weight_decay=weight_decay,
        n=n,
        rows=rows,
        max_sequence_length=EVALUATED_CONTEXT,
        sequence_length=EVALUATED_CONTEXT,
    )
    return attrs.evolve(recipe, schedulers=None)


def schedule_free(lr: float, embedding_lr: float, weight_decay: float) -> Recipe:
    """Return schedule-free AdamW, whose warm-up is a number of steps."""
    build = functools.partial(_schedule_free, lr, embedding_lr, weight_decay)
    return Recipe([], build, constant())


def _schedule_free(lr: float, embedding_lr: float, weight_decay: float, parameters: Any) -> Any:
    groups = small_gpt.groups(parameters, lr, embedding_lr)
    return AdamWScheduleFree(groups, weight_decay=weight_decay, warmup_steps=20)


ARMS: dict[str, tuple[Any, dict[str, Sequence[Any]]]] = {
    BASELINE: ([], {"lr": ADAMW_LR}),
    "Muon": (muon, {"lr": MUON_LR}),
    "ALiBi": ([Alibi(EVALUATED_CONTEXT, 1.0)], {"lr": ADAMW_LR, **LONGER}),
    "small_gpt": (alibi_muon, {"lr": MUON_LR, **LONGER}),
    "NGramEmbeddings": (ngrams, {"lr": ADAMW_LR, **TABLES}),
    RECIPE: (speedrun, {"lr": MUON_LR, **LONGER, **TABLES}),
    "AdamWScheduleFree": (schedule_free, {"lr": ADAMW_LR}),
}


# --- the search ---


@attrs.frozen
class Trial:
    """One run of the search."""

    arm: str
    settings: Mapping[str, Any]
    seconds: float
    seed: int
    part: str = "validation"


def candidates(arm: str) -> list[dict[str, Any]]:
    """Return one setting by hand and random ones: the same for all arms, but for its own values."""
    shared, own = random.Random(0), random.Random(1)
    values = ARMS[arm][1]
    by_hand = {**BY_HAND, **{name: some[len(some) // 2] for name, some in values.items()}}
    drawn = [
        {
            **{name: shared.choice(some) for name, some in SPACE.items()},
            **{name: own.choice(some) for name, some in values.items()},
        }
        for _ in range(TRIALS - 1)
    ]
    return [by_hand, *drawn]


def build(trial: Trial, max_duration: str) -> Trainer:
    """Return the Trainer of a trial."""
    arm = Arm(trial.arm, [] if trial.arm == GPT2 else ARMS[trial.arm][0])
    others = {name: one for name, one in trial.settings.items() if name not in arm.takes}
    arguments = {**arm.recipe(trial.settings).arguments(), **others}
    return small_gpt.build(
        seed=trial.seed, max_duration=max_duration, parts=[trial.part], **arguments
    )


class StepClock(Callback):
    """Records the CPU time at the end of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        """Record the time."""
        self.times.append(time.process_time())


def step_seconds(trial: Trial) -> float:
    """Return the CPU seconds of a step: the median of `STEPS`, after as many."""
    trainer, clock = build(trial, "1000ba"), StepClock()
    trainer.add_callback(clock)
    trainer.fit(duration=f"{2 * STEPS}ba")
    times = clock.times[STEPS - 1 :]
    return statistics.median(after - before for before, after in itertools.pairwise(times))


def step_costs(trials: Sequence[Trial], source: Source) -> list[float]:
    """Measure the steps of each setting, one after the other, while no other trial runs."""
    settings = [json.dumps([one.arm, one.settings], sort_keys=True) for one in trials]
    each = dict(zip(settings, trials, strict=True))
    with ProcessPoolExecutor(1, get_context("spawn"), begin, (source,)) as pool:
        costs = dict(zip(each, pool.map(step_seconds, each.values()), strict=True))
    return [costs[one] for one in settings]


def run(trial: Trial, cost: float) -> dict[str, Any]:
    """Train a trial for its seconds at a cost of a step, and return what the search keeps of it."""
    steps = max(2, round(trial.seconds / cost))
    trainer = build(trial, f"{steps}ba")
    trainer.fit()
    result = trainer.state.metrics[trial.part]["nats_per_byte"]
    return {**attrs.asdict(trial), "step_seconds": cost, "steps": steps, "result": float(result)}


def begin(source: Source) -> None:
    """Train the models of this process on a text, in one thread."""
    small_gpt.SOURCE = source
    torch.set_num_threads(1)


def trained(
    trials: Iterable[Trial], file: Path, workers: int, source: Source = small_gpt.SOURCE
) -> list[dict[str, Any]]:
    """Return the results of trials, those of the file or new ones, which are added to it."""
    lines = file.read_text().splitlines() if file.exists() else []
    known = {_name(one): one for one in map(json.loads, lines)}
    trials = list(trials)
    missing = [one for one in trials if _name(attrs.asdict(one)) not in known]
    costs = step_costs(missing, source)
    with (
        ProcessPoolExecutor(workers, get_context("spawn"), begin, (source,)) as pool,
        file.open("a") as out,
    ):
        running = [pool.submit(run, *one) for one in zip(missing, costs, strict=True)]
        for number, future in enumerate(as_completed(running)):
            result = future.result()
            known[_name(result)] = result
            print(json.dumps(result), file=out, flush=True)
            print(
                f"{number + 1}/{len(missing)} {result['arm']}: {result['result']:.3f}", flush=True
            )
    return [known[_name(attrs.asdict(one))] for one in trials]


def _name(trial: Mapping[str, Any]) -> str:
    fields = attrs.fields(Trial)
    return json.dumps([trial.get(one.name, one.default) for one in fields], sort_keys=True)


def search(arms: Sequence[str], folder: Path, workers: int) -> dict[str, dict[str, Any]]:
    """Return the settings of each arm that are best after the longest schedule."""
    file = folder / "search.jsonl"
    first = [
        Trial(arm, settings, SECONDS[1], TUNING_SEEDS[0])
        for arm in arms
        for settings in candidates(arm)
    ]
    # Arms take turns, so that an interrupted search has tried about as much of each.
    first = [one for turn in range(TRIALS) for one in first[turn::TRIALS]]
    results = trained(first, file, workers)
    last = [
        Trial(arm, one["settings"], SECONDS[-1], seed)
        for arm in arms
        for one in sorted((r for r in results if r["arm"] == arm), key=result_of)[:FINALISTS]
        for seed in TUNING_SEEDS
    ]
    return best(trained(last, file, workers))


def refine(arms: Sequence[str], folder: Path, workers: int) -> dict[str, dict[str, Any]]:
    """Try the neighbors of the best setting of each arm, and together those that improve it.

    Returns:
        The settings of each arm that are best after the longest schedule, among the best of all
        trials.
    """
    file = folder / "search.jsonl"
    if RECIPE in arms:
        short = Trial(RECIPE, RECIPE_BY_HAND, SECONDS[1], TUNING_SEEDS[0])
        long = [Trial(RECIPE, RECIPE_BY_HAND, SECONDS[-1], seed) for seed in TUNING_SEEDS]
        trials = [short, *long]
        trained(trials, file, workers)
    results = list(map(json.loads, file.read_text().splitlines()))
    chosen = best([one for one in results if one["seconds"] == SECONDS[-1]])
    starts = {
        arm: next(one for one in ranked(arm, file) if one["settings"] == chosen[arm]["settings"])
        for arm in arms
    }
    around = {
        arm: [
            Trial(arm, {**start["settings"], name: value}, SECONDS[1], TUNING_SEEDS[0])
            for name, value in neighbors(arm, start["settings"])
        ]
        for arm, start in starts.items()
    }
    trained([one for some in around.values() for one in some], file, workers)
    together = []
    for arm, start in starts.items():
        changes: dict[str, Any] = {}
        better = trained(around[arm], file, workers)
        for one in sorted(better, key=result_of, reverse=True):
            if result_of(one) < result_of(start):
                changes |= dict(one["settings"].items() - start["settings"].items())
        settings = {**start["settings"], **changes}
        together.append(Trial(arm, settings, SECONDS[1], TUNING_SEEDS[0]))
    trained(together, file, workers)
    last = [
        Trial(arm, one["settings"], SECONDS[-1], seed)
        for arm in arms
        for one in ranked(arm, file)[:FINALISTS]
        for seed in TUNING_SEEDS
    ]
    return best(trained(last, file, workers))


def ranked(arm: str, file: Path) -> list[dict[str, Any]]:
    """Return the first trials of an arm, the best one first."""
    results = map(json.loads, file.read_text().splitlines())
    return sorted(
        (one for one in results if (one["arm"], one["seconds"]) == (arm, SECONDS[1])), key=result_of
    )


def neighbors(arm: str, settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the next lower and the next higher value of each hyperparameter."""
    space = {**SPACE, **ARMS[arm][1]}
    found = []
    for name, values in space.items():
        at = values.index(settings[name])
        found += [(name, values[i]) for i in (at - 1, at + 1) if 0 <= i < len(values)]
    return found


def best(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings of each arm with the lowest mean result, and the cost of their steps."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in results:
        groups.setdefault((one["arm"], json.dumps(one["settings"])), []).append(one)
    chosen: dict[str, dict[str, Any]] = {}
    for (arm, _), runs in sorted(
        groups.items(), key=lambda one: statistics.fmean(map(result_of, one[1]))
    ):
        cost = statistics.fmean(one["step_seconds"] for one in runs)
        chosen.setdefault(arm, {"settings": runs[0]["settings"], "step_seconds": cost})
    return chosen


def result_of(one: Mapping[str, Any]) -> float:
    return one["result"] if one["result"] == one["result"] else math.inf


# --- the comparison ---


def comparison(chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arguments of `composable.compare` for chosen settings."""
    return {
        "build": small_gpt.build,
        "arms": {arm: ARMS[arm][0] for arm in chosen},
        "baseline": BASELINE,
        "metric": "test/nats_per_byte",
        "mode": "min",
        "tuning_metric": "validation/nats_per_byte",
        "durations": {
            arm: [
                f"{round(seconds / one['step_seconds'])}ba"
                for seconds in SCHEDULES.get(arm, SECONDS)
            ]
            for arm, one in chosen.items()
        },
        "tune": {
            arm: {name: [value] for name, value in one["settings"].items()}
            for arm, one in chosen.items()
        },
        "seeds": 5,
    }


def targets(chosen: Mapping[str, Any], folder: Path, workers: int) -> list[float]:
    """Return five results from the baseline's shortest to its longest schedule.

    They are those of the test text with the seeds of tuning: no reported run is among them.
    """
    trials = [
        Trial(BASELINE, chosen["settings"], seconds, seed, "test")
        for seconds in SECONDS[:: len(SECONDS) - 1]
        for seed in TUNING_SEEDS
    ]
    results = [one["result"] for one in trained(trials, folder / "targets.jsonl", workers)]
    middle = len(results) // 2
    worst, best_one = statistics.fmean(results[:middle]), statistics.fmean(results[middle:])
    return [round(worst + (best_one - worst) * step / 4, 2) for step in range(5)]


def reference(folder: Path, workers: int) -> float:
    """Return the test loss of a GPT-2 on bytes after the longest schedule, at its best rate."""
    file = folder / "reference.jsonl"
    tried = [
        Trial(GPT2, {**GPT2_SETTINGS, "lr": lr, "embedding_lr": lr}, SECONDS[1], TUNING_SEEDS[0])
        for lr in GPT2_RATES
    ]
    settings = min(trained(tried, file, workers), key=result_of)["settings"]
    last = [Trial(GPT2, settings, SECONDS[-1], seed, "test") for seed in TUNING_SEEDS]
    return statistics.fmean(map(result_of, trained(last, file, workers)))


def measure_again() -> None:
    """Store the study with the costs of steps that this machine has now."""
    searched = json.loads((STORED / "search.json").read_text())
    chosen = best([one for one in searched if one["seconds"] == SECONDS[-1]])
    study = read_study(STORED / "study.json")
    arms = {arm: one for arm, one in chosen.items() if arm in study.protocol.arms}
    arguments = {**comparison(arms), "durations": {a: study.protocol.schedules[a] for a in arms}}
    store(with_new_costs(study, arguments), STORED, references=references())


def more(chosen: Mapping[str, Mapping[str, Any]], folder: Path, workers: int) -> dict[str, Any]:
    """Train for twice the longest schedule, on another text, and without a longer context."""

    def trials(seconds: Iterable[float]) -> list[Trial]:
        return [
            Trial(arm, chosen[arm]["settings"], duration, seed, "test")
            for duration in seconds
            for seed in range(MORE_SEEDS)
            for arm in chosen
        ]

    settings = chosen[RECIPE]["settings"]
    same = {**settings, "evaluated_context": settings["context"]}
    python = (
        f"python-{platform.python_version()}",
        functools.partial(small_gpt.read_parts, Path(sysconfig.get_path("stdlib"))),
    )
    return {
        "twice as long": trained(trials([2 * SECONDS[-1]]), folder / "more.jsonl", workers),
        "other text": trained(
            trials(SECONDS[::3]), folder / "other-text.jsonl", workers, source=python
        ),
        "same context": trained(
            [
                Trial(RECIPE, same, seconds, seed, "test")
                for seconds in SECONDS[:3]
                for seed in range(MORE_SEEDS)
            ],
            folder / "more.jsonl",
            workers,
        ),
    }


def main() -> None:
    """Tune, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    stages = ["search", "targets", "compare", "more", "costs", "reference"]
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--folder", type=Path, default=Path("comparisons/language"))
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument(
        "--store", action="store_true", help="write to docs/evidence/language, after `more`"
    )
    options = parser.parse_args()
    check_data(counting.stored()["data"])
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.stage == "costs":
        measure_again()
        return
    if options.stage == "reference":
        print(reference(options.folder, options.workers))
        return
    arms = list(dict.fromkeys([BASELINE, *options.arms]))
    chosen = search(arms, options.folder, options.workers)
    if options.stage != "search":
        refined = [arm for arm in (BASELINE, RECIPE) if arm in arms]
        chosen |= refine(refined, options.folder, options.workers)
    for arm, one in chosen.items():
        print(arm, json.dumps(one))
    if options.stage == "targets":
        print(*targets(chosen[BASELINE], options.folder, options.workers))
    if options.stage == "more":
        two = {arm: chosen[arm] for arm in (BASELINE, RECIPE)}
        more_results = more(two, options.folder, options.workers)
        (options.folder / "more.json").write_text(json.dumps(more_results, indent=1) + "\n")
    if options.stage == "compare":
        found = compare_overlapping(
            **comparison(chosen), folder=options.folder, workers=options.workers
        )
        if options.store:
            store(found.study, STORED, references=references())
            keep(options.folder, STORED, arms)


def keep(folder: Path, target: Path, arms: Sequence[str]) -> None:
    """Store the trials of the search and the results of `more` beside the study."""
    trials = map(json.loads, (folder / "search.jsonl").read_text().splitlines())
    rows = [json.dumps(one) for one in trials if one["arm"] in arms]
    (target / "search.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")
    shutil.copy(folder / "more.json", target / "more.json")


if __name__ == "__main__":
    main()
