"""The targets and the questions of the language comparison, answered with figures of its runs."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import fmean, stdev
from typing import Any

from composable.comparison import Comparison
from tests.support.cases import ROOT
from tools.comparisons import against

__all__ = ["question_lines", "target_lines"]

FOLDER = ROOT / "docs/evidence/language"
BASELINE, RECIPE, SMALL = "AdamW", "speedrun_gpt", "small_gpt"
PARTS = ("NGramEmbeddings", "Muon", "ALiBi")
OTHERS = (SMALL, *PARTS, "AdamWScheduleFree")
TARGETS = (1.39, 1.34, 1.29, 1.23, 1.18)


@cache
def comparison() -> Comparison:
    """Load the study."""
    return Comparison.load(FOLDER)


@cache
def recorded(name: str) -> Any:
    """Load the trials of the search, or the trials of longer schedules and another text."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def target_lines() -> list[str]:
    """Render the speed-up at each target."""
    arms = (RECIPE, *OTHERS)
    head = f"| target (nats per byte) | {' | '.join(arms)} |"
    rows = []
    for target in TARGETS:
        found = against(comparison(), BASELINE, target)
        rows += [f"| {target} | {' | '.join(str(found.speedup(arm) or '–') for arm in arms)} |"]
    return [
        "The speed-up at the targets that the [protocol](protocol.md#the-targets) fixed before the "
        "arms were compared; all lie above what counting reaches:",
        "",
        head,
        f"|{' --- |' * (1 + len(arms))}",
        *rows,
        "",
        "*At most* and *at least* are bounds, with their 95 % confidence, where one of the two "
        "arms reaches the target already in its shortest schedule, or not in its longest. A dash: "
        "both reach it in their shortest, or an end of a curve is within its noise of the target.",
    ]


def question_lines() -> list[str]:
    """Render the questions and their answers."""
    lines = ["### Questions of a referee", ""]
    for number, (question, answer) in enumerate(_questions(), start=1):
        lines += [f"{number}. **{question}** {answer}"]
    return lines


def _questions() -> Iterator[tuple[str, str]]:
    chosen = comparison().study.protocol.chosen
    yield (
        "Is the baseline tuned over what the recipe changes?",
        f"Yes: every arm tried 48 settings of the same space, with vocabulary, depth, width, "
        "context, batch, two learning rates, weight decay, warm-up and initialization. The "
        "baseline and the recipe then tried the neighbors of their best setting, "
        f"{_count(BASELINE)} and {_count(RECIPE)} settings in all: the recipe has more, since its "
        "table has three hyperparameters, and one of them was found by twelve trials by hand. The "
        f"baseline chose {_settings(chosen[BASELINE])}; the recipe chose "
        f"{_settings(chosen[RECIPE])}. Some of these values are the largest or the smallest of the "
        "space, so still better ones may lie beyond it, for either.",
    )
    yield (
        "Would more trials of tuning change the result?",
        "The best result of the first 12, 24, 48 and of all trials on the validation text was "
        + "; ".join(f"{_best_of(arm)} for {arm}" for arm in (BASELINE, RECIPE, *OTHERS))
        + ". The first trial is the setting found by hand.",
    )
    base = _final(BASELINE)
    alone = ", ".join(f"{part} {comparison().speedup(part)}" for part in PARTS)
    yield (
        "Which part gives how much?",
        f"Alone over the baseline: {alone}. {SMALL}, which is Muon and ALiBi, "
        f"{comparison().speedup(SMALL)}. N-gram embeddings, added to these two: "
        f"{against(comparison(), SMALL).speedup(RECIPE)}. Each arm has settings of its own, so the "
        "parts need not multiply to the whole.",
    )
    tested = comparison().analysis[RECIPE].qualities[2:5]
    yield (
        "Does the recipe gain by its longer context in evaluation?",
        "Evaluated with the 64 tokens that it trains with, it reaches "
        + _by_steps(recorded("more")["same context"])
        + ", with two seeds; with 256, "
        + ", ".join(f"{q.mean:.3f} after {q.duration.removesuffix('ba')}" for q in tested)
        + ". The baseline, whose context is 64, was not tried with 256.",
    )
    twice = recorded("more")["twice as long"]
    yield (
        "Does it hold for twice the length?",
        f"After schedules of 80 CPU seconds, the baseline reaches {_mean(twice, BASELINE)} and the "
        f"recipe {_mean(twice, RECIPE)}, with two seeds. The baseline gained "
        f"{base[-1] - _of(twice, BASELINE):.3f} by doubling its time.",
    )
    other = recorded("more")["other text"]
    short, long = ([one for one in other if one["seconds"] == s] for s in (10.0, 40.0))
    yield (
        "Does it hold on another text?",
        "On the source of Python's standard library, with the same settings and two seeds, the "
        f"baseline reaches {_mean(short, BASELINE)} after 10 CPU seconds and "
        f"{_mean(long, BASELINE)} after 40, the recipe {_mean(short, RECIPE)} and "
        f"{_mean(long, RECIPE)}. **No:** this text is smaller, and the longest runs see it about "
        "twice. The table then overfits, and the recipe is worse than the baseline.",
    )
    yield (
        "Is the difference larger than the noise of seeds?",
        f"The standard deviation of the baseline's final results is {_noise(BASELINE):.4f} nats "
        f"per byte, and the recipe's {_noise(RECIPE):.4f}. The baseline against itself with "
        f"other seeds is {comparison().analysis.noise_floor}.",
    )
    yield (
        "Was anything chosen on the test text?",
        "No: the search does not evaluate it. The targets are results of the baseline on it, with "
        "seeds that no reported run has.",
    )
    yield (
        "How are the costs of steps compared?",
        "A step of the recipe costs "
        f"{comparison().analysis[RECIPE].step_cost_ratio} the baseline's, because its batch "
        "is larger. All arms are measured in turns, each in four processes, on an idle machine; "
        "processes of the same arm differ in speed by more than the rounds within them show, and "
        "the intervals include this difference. `python benchmarks/language.py costs` measures all "
        "arms again.",
    )
    yield (
        "What does it not show?",
        "Anything about larger models, GPUs, several threads or much longer training: these models "
        "have less than a million parameters beside the table of n-grams, which has 101 million "
        "(403 MB). A trial is CPU seconds of one thread without set-up, "
        "tokenization and evaluation.",
    )


def _count(arm: str) -> int:
    return len({json.dumps(one["settings"]) for one in recorded("search") if one["arm"] == arm})


def _settings(settings: Any) -> str:
    names = ("vocabulary", "depth", "width", "context", "batch_tokens", "lr", "embedding_lr")
    return ", ".join(f"{name.replace('_', ' ')} {settings[name]:g}" for name in names)


def _best_of(arm: str) -> str:
    first = [one for one in recorded("search") if one["arm"] == arm and one["seconds"] == 16.0]
    return ", ".join(f"{min(one['result'] for one in first[:n]):.3f}" for n in (12, 24, 48, None))


def _final(arm: str) -> list[float]:
    """Return the mean results of the schedules of 10 to 40 seconds, the shortest first."""
    means = [one.mean for one in comparison().analysis[arm].qualities if one.mean is not None]
    return means[-4:]


def _by_steps(results: Sequence[Any]) -> str:
    groups = [[one for one in results if one["seconds"] == s] for s in (10.0, 16.0, 25.0)]
    return ", ".join(
        f"{_mean(group, RECIPE)} after {fmean(one['steps'] for one in group):.0f} steps"
        for group in groups
    )


def _noise(arm: str) -> float:
    results = comparison().analysis[arm].qualities[-1].results.values()
    return stdev(one for one in results if one is not None)


def _of(results: Sequence[Any], arm: str) -> float:
    return fmean(one["result"] for one in results if one["arm"] == arm)


def _mean(results: Sequence[Any], arm: str) -> str:
    return f"{_of(results, arm):.3f}"
