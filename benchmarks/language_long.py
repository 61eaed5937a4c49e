"""The comparison of small language models below counted tables: docs/protocol_long.md.

    python benchmarks/language_long.py search     # tune both arms: the same settings, the same time
    python benchmarks/language_long.py line       # what counting reaches of the text seen by then
    python benchmarks/language_long.py targets    # results of the baseline below that line
    python benchmarks/language_long.py compare    # train the chosen settings on four schedules
    python benchmarks/language_long.py store      # write to docs/evidence/language-long
    python benchmarks/language_long.py costs      # measure the stored study's costs of steps again

The text is that of benchmarks/corpus.py, of which no run reads a token twice. Each stage keeps its
trials in the folder, and the same command continues an interrupted one. Text, tokens, packages and
the type of the processor must be the same in all stages. They take about 160 minutes on two cores.
"""

import argparse
import functools
import json
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import composable
from composable import Algorithm, Trainer
from composable.comparison import Study
from composable.comparison.study_file import read_study

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

import corpus  # noqa: E402 (a script of benchmarks/)
import counting  # noqa: E402 (a script of benchmarks/)
import language  # noqa: E402 (a script of benchmarks/)
import small_gpt  # noqa: E402 (a script of examples/)
from data_hashes import check_data, data_hashes  # noqa: E402
from evidence import store, with_new_costs  # noqa: E402
from language import BASELINE, RECIPE, Trial  # noqa: E402

SECONDS = (40.0, 80.0, 160.0, 320.0)
"""CPU seconds of training of the four schedules."""
SCHEDULES: dict[str, tuple[float, ...]] = {
    BASELINE: SECONDS,
    RECIPE: (10.0, 20.0, *SECONDS[:3]),
}
SEARCHED = (40.0, 160.0)
"""CPU seconds of the trials of all settings, and of the best ones."""
TRIALS, FINALISTS, SEEDS = 24, 4, 5

SPACE: dict[str, Sequence[Any]] = {
    "vocabulary": (1024, 2048, 4096, 8192),
    "depth": (1, 2, 4),
    "width": (64, 96, 128, 192, 256),
    "context": (32, 64, 128, 256),
    "batch_tokens": (128, 256, 512, 1024, 2048),
    "embedding_lr": (4e-3, 8e-3, 12e-3, 16e-3, 24e-3, 32e-3),
    "weight_decay": (0.0, 0.1),
    "warmup": ("0.02dur", "0.05dur", "0.1dur"),
    "initialization": ("gpt2", "fan-in"),
    "precision": ("fp32", "amp_bf16"),
}
"""The values of both arms: those of the shorter study, opened where its baseline sat on an edge."""
SHARED: tuple[dict[str, Any], ...] = (
    {
        "vocabulary": 4096,
        "depth": 1,
        "width": 96,
        "context": 64,
        "batch_tokens": 256,
        "embedding_lr": 16e-3,
        "weight_decay": 0.0,
        "warmup": "0.05dur",
        "initialization": "fan-in",
        "precision": "fp32",
    },
    {
        "vocabulary": 2048,
        "depth": 1,
        "width": 96,
        "context": 64,
        "batch_tokens": 1024,
        "embedding_lr": 24e-3,
        "weight_decay": 0.0,
        "warmup": "0.05dur",
        "initialization": "fan-in",
        "precision": "fp32",
    },
)
"""What the baseline and the recipe chose in the shorter study: where the search of both starts."""
OF_ARM: dict[str, dict[str, Sequence[Any]]] = {
    BASELINE: {"lr": (7e-4, *language.ADAMW_LR)},
    RECIPE: {"lr": language.MUON_LR, **language.LONGER, **language.TABLES},
}
BY_HAND: dict[str, dict[str, Any]] = {
    BASELINE: {"lr": 1e-3},
    RECIPE: {"lr": 16e-3, "evaluated_context": 256, "table_lr": 0.1, "rows": 2**20, "n": 3},
}
"""The values that only one arm has, in that study."""
TARGETS = (1.42, 1.41, 1.4)
"""Below the line of the longest schedule, 1.429; the baseline reached 1.387 and 1.391 in it."""
STORED = ROOT / "docs/evidence/language-long"


def candidates(arm: str) -> list[dict[str, Any]]:
    """Return the settings of the search: the same for both arms, but for values of one arm alone.

    After the two that the shorter study chose, each hyperparameter has as often a value of these as
    one of its whole range.
    """
    shared, alone = random.Random(0), random.Random(1)
    found = [{**first, **BY_HAND[arm]} for first in SHARED]
    for _ in range(TRIALS - len(SHARED)):
        start = shared.choice(SHARED)
        found.append(
            {
                **_drawn(SPACE, start, shared),
                **_drawn(OF_ARM[arm], BY_HAND[arm], alone),
            }
        )
    return found


def _drawn(
    space: Mapping[str, Sequence[Any]], start: Mapping[str, Any], source: random.Random
) -> dict[str, Any]:
    return {
        name: start[name] if source.random() < 0.5 else source.choice(values)
        for name, values in space.items()
    }


@functools.wraps(small_gpt.build)
def build(algorithms: Sequence[Algorithm], seed: int, **settings: Any) -> Trainer:
    """Return a Trainer on this text.

    Raises:
        ValueError: The run would read the text twice.
    """
    small_gpt.SOURCE = corpus.SOURCE
    steps = int(settings["max_duration"].removesuffix("ba"))
    read, tokens = (
        steps * settings["batch_tokens"],
        len(small_gpt.training_tokens(settings["vocabulary"])),
    )
    if read > tokens:
        raise ValueError(
            f"{steps} steps read {read:,} tokens, and the text has {tokens:,} of vocabulary "
            f"{settings['vocabulary']}: it would be seen twice. Shorten the run."
        )
    return small_gpt.build(algorithms, seed, **settings)


def search(folder: Path, workers: int) -> dict[str, dict[str, Any]]:
    """Return the setting of each arm that is best after the longer trials, with its step's cost."""
    seed, file = language.TUNING_SEEDS[0], folder / "search.jsonl"
    trials = [
        Trial(arm, settings, SEARCHED[0], seed)
        for pair in zip(*(candidates(arm) for arm in OF_ARM), strict=True)
        for arm, settings in zip(OF_ARM, pair, strict=True)
    ]
    results = language.trained(trials, file, workers, corpus.SOURCE)
    last = [
        Trial(arm, one["settings"], SEARCHED[1], seed)
        for arm in OF_ARM
        for one in sorted((r for r in results if r["arm"] == arm), key=language.result_of)[
            :FINALISTS
        ]
    ]
    return language.best(language.trained(last, file, workers, corpus.SOURCE))


# --- the line ---


def tables(arm: str, chosen: Mapping[str, Any], seconds: Sequence[float]) -> list[dict[str, Any]]:
    """Return the test loss of counted n-grams of as much text as a run has read after some seconds.

    Windows, tokens and the length of windows are those of the arm.
    """
    settings, found = chosen["settings"], []
    for after in seconds:
        read = round(after / chosen["step_seconds"]) * settings["batch_tokens"]
        windows = some_windows(settings["vocabulary"], settings["context"], read)
        for n in counting.ORDERS:
            one = counting.counted_tokens(settings["vocabulary"], n, windows, repeats=1)
            found.append({"arm": arm, "after": after, "tokens": read, **one})
            print(json.dumps(found[-1]), flush=True)
    return found


def some_windows(vocabulary: int, context: int, count: int) -> counting.Tokens:
    """Return random windows with a number of tokens, as a run reads them."""
    rows = small_gpt.Windows(small_gpt.training_tokens(vocabulary), context).rows
    drawn = random.Random(0).sample(range(len(rows)), count // context)
    return rows.numpy()[sorted(drawn)].astype(np.int64)


def reached(found: Sequence[Mapping[str, Any]], arm: str, after: float) -> float:
    """Return the line: the lowest loss of the tables that are counted in at most the seconds."""
    return min(
        one["nats_per_byte"]
        for one in found
        if (one["arm"], one["after"]) == (arm, after) and one["seconds"] <= after
    )


def measure_line(chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tables at all times, and those of the whole training text."""
    small_gpt.SOURCE = corpus.SOURCE
    every = [table for arm, one in chosen.items() for table in tables(arm, one, SECONDS)]
    sizes = sorted({one["settings"]["vocabulary"] for one in chosen.values()})
    whole = [
        {"tokens": len(small_gpt.training_tokens(v)), **counting.counted_tokens(v, n, repeats=1)}
        for v in sizes
        for n in counting.ORDERS
    ]
    return {"tables": every, "whole text": whole}


# --- the comparison ---


def arguments(chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arguments of `composable.compare` for chosen settings."""
    durations = {
        arm: [f"{round(seconds / one['step_seconds'])}ba" for seconds in SCHEDULES[arm]]
        for arm, one in chosen.items()
    }
    same = language.comparison(chosen)
    return {**same, "build": build, "durations": durations, "seeds": SEEDS}


def baseline_results(chosen: Mapping[str, Any], folder: Path, workers: int) -> list[float]:
    """Return test results of the baseline with the seeds of tuning, after the longest schedule."""
    trials = [
        Trial(BASELINE, chosen["settings"], SECONDS[-1], seed, "test")
        for seed in language.TUNING_SEEDS
    ]
    found = language.trained(trials, folder / "targets.jsonl", workers, corpus.SOURCE)
    return [one["result"] for one in found]


def data(vocabularies: Sequence[int]) -> dict[str, str]:
    """Return the hashes of text and tokens, the versions, and the type of the processor."""
    small_gpt.SOURCE = corpus.SOURCE
    return {**data_hashes(vocabularies), "processor": processor()}


def processor() -> str:
    """Return the instructions that decide about the cost of a step."""
    amx = "AMX" if torch.cpu._is_amx_tile_supported() else "no AMX"
    return f"{torch.backends.cpu.get_cpu_capability()}, {amx}"


def check(folder: Path, vocabularies: Sequence[int]) -> dict[str, str]:
    """Check that data and processor are the ones of the earlier stages and of the stored study."""
    found, file = data(vocabularies), folder / "data.json"
    for known in (file, STORED / "data.json"):
        if known.exists():
            check_data(json.loads(known.read_text()), found, f"begin without {known}")
    file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def references(line: Mapping[str, Any]) -> dict[str, float]:
    """Return what counting reaches, by names: the lines of the plot."""
    after = {
        f"counted of the text of {seconds:.0f} s": min(
            reached(line["tables"], arm, seconds) for arm in OF_ARM
        )
        for seconds in (SECONDS[0], SECONDS[-1])
    }
    whole = min(one["nats_per_byte"] for one in line["whole text"])
    return {**after, "counted of the whole text": whole}


def measure_again() -> None:
    """Store the study with the costs of steps that this machine has now."""
    searched = json.loads((STORED / "search.json").read_text())
    chosen = language.best([one for one in searched if one["seconds"] == SEARCHED[1]])
    line = json.loads((STORED / "line.json").read_text())
    study = read_study(STORED / "study.json")
    stored = {arm: study.protocol.schedules[arm] for arm in chosen}
    found = with_new_costs(study, {**arguments(chosen), "durations": stored})
    store(found, STORED, references=references(line))


def keep(study: Study, folder: Path) -> None:
    """Store the study, its search, the line and the hashes of its data."""
    store(study, STORED, references=references(json.loads((folder / "line.json").read_text())))
    for name in ("search", "targets"):
        rows = (folder / f"{name}.jsonl").read_text().splitlines()
        (STORED / f"{name}.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")
    for name in ("line.json", "data.json"):
        shutil.copy(folder / name, STORED / name)


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    stages = ["search", "line", "targets", "compare", "store", "costs"]
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--folder", type=Path, default=Path("comparisons/language-long"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    folder, workers = options.folder, options.workers
    folder.mkdir(parents=True, exist_ok=True)
    check(folder, SPACE["vocabulary"])
    if options.stage == "costs":
        measure_again()
        return
    begun = time.monotonic()
    chosen = search(folder, workers)
    for arm, one in chosen.items():
        print(arm, json.dumps(one), flush=True)
    if options.stage == "line":
        (folder / "line.json").write_text(json.dumps(measure_line(chosen), indent=1) + "\n")
    if options.stage == "targets":
        print(*baseline_results(chosen[BASELINE], folder, workers))
    if options.stage == "compare":
        composable.compare(**arguments(chosen), folder=folder, workers=workers)
    if options.stage == "store":
        keep(read_study(folder / "study.json"), folder)
    print(f"{(time.monotonic() - begun) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
