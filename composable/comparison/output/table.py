"""The text table of a comparison."""

import textwrap
from collections.abc import Iterator, Sequence

from composable.comparison.analysis.findings import Analysis, ArmAnalysis, Power
from composable.comparison.output.summaries import failures, mean_seconds, num_trials, trials_of
from composable.comparison.output.wording import (
    NOTHING,
    chosen_quality,
    clock_seconds,
    describe_target,
    format_estimate,
    format_final,
    format_p,
    format_seconds,
    format_settings,
    headline,
    noise_floor,
    notes,
    verdict_name,
    verdict_sentences,
)
from composable.comparison.records import Study
from composable.core._printable import printable
from composable.core._table import format_table

__all__ = [
    "COST_HEADER",
    "HEADER",
    "MAX_WIDTH",
    "arm_row",
    "cost_row",
    "count",
    "count_trials",
    "explain_columns",
    "explain_costs",
    "format_comparison",
]

MAX_WIDTH = 100

HEADER = ("arm", "schedule", "final", "reached", "time", "speed-up", "p", "verdict")
COST_HEADER = (
    *("arm", "step", "step / baseline", "set-up", "warm-up", "evaluation"),
    *("detectable", "seeds needed"),
)
_LEGEND = (
    "schedule: the shortest one whose mean final result passes the target with 95 % confidence, or "
    "else the longest. final: the mean with its 95 % interval. reached: runs of the longest "
    "schedule that reach the target. time: {seconds} of training to the target. speed-up: the "
    "baseline's time divided by the arm's, with its 95 % interval. p: after Holm's correction over "
    "{arms}."
)
_COST_LEGEND = (
    "step: {seconds} of one training step. set-up, warm-up (compilation and the first steps) and "
    "evaluation: mean seconds of a run, not part of the time. detectable: the smallest speed-up "
    "that this many seeds detect with probability 0.8. seeds needed: to confirm the observed "
    "speed-up with probability 0.8."
)


def format_comparison(study: Study, analysis: Analysis) -> str:
    """Format a comparison as text of at most 100 columns.

    Args:
        study: The study.
        analysis: Its analysis.
    """
    return "\n\n".join(_sections(study, analysis))


def _sections(study: Study, analysis: Analysis) -> Iterator[str]:
    protocol = study.protocol
    better = "higher" if analysis.mode == "max" else "lower"
    target = describe_target(analysis, protocol)
    yield "\n".join(
        (
            _wrap(f"{headline(study, analysis)}."),
            _wrap(f"{analysis.metric}, {better} is better; target {target}"),
            f"{count(len(protocol.seeds), 'seed')}; {count_trials(study)}",
        )
    )
    yield _narrow([arm_row(arm) for arm in analysis.arms], HEADER)
    yield _wrap(explain_columns(study, analysis))
    yield _settings(analysis)
    yield _narrow([cost_row(study, arm) for arm in analysis.arms], COST_HEADER)
    yield _wrap(explain_costs(study))
    yield "\n".join(
        _wrap(line, "", "  ") for line in (*verdict_sentences(analysis), noise_floor(analysis))
    )
    if warnings := notes(analysis):
        yield "notes\n" + "\n".join(_wrap(note, "- ", "  ") for note in warnings)


def _settings(analysis: Analysis) -> str:
    shown = {arm.arm: format_settings(arm.settings) for arm in analysis.arms}
    if len(set(shown.values())) == 1:
        return _wrap(f"settings of all arms: {next(iter(shown.values()))}", "", "  ")
    lines = (_wrap(f"{arm}: {settings}", "  ", "      ") for arm, settings in shown.items())
    return "settings\n" + "\n".join(lines)


def explain_columns(study: Study, analysis: Analysis) -> str:
    """Return a legend of the columns of `HEADER`."""
    arms = count(analysis.compared, "arm")
    return _LEGEND.format(seconds=clock_seconds(study.protocol), arms=arms)


def explain_costs(study: Study) -> str:
    """Return a legend of the columns of `COST_HEADER`."""
    return _COST_LEGEND.format(seconds=clock_seconds(study.protocol))


def count_trials(study: Study) -> str:
    """Return the number of trials, and of those that did not finish."""
    tuning, reporting = (num_trials(study, purpose) for purpose in ("tuning", "reporting"))
    text = f"{reporting} reporting and {tuning} tuning trials"
    unfinished = len(failures(study))
    return f"{text}, {unfinished} of which did not finish" if unfinished else text


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> from composable.comparison.output.table import count
        >>> count(1, "seed"), count(2, "seed")
        ('1 seed', '2 seeds')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def arm_row(arm: ArmAnalysis) -> tuple[str, ...]:
    """Return the measures of an arm: the cells of `HEADER`."""
    quality = chosen_quality(arm)
    return (
        arm.arm,
        quality.duration if quality else NOTHING,
        format_final(quality) if quality else NOTHING,
        f"{arm.crossing.reached} of {arm.crossing.runs}",
        format_seconds(arm.time.interpolated),
        "" if arm.role == "baseline" else format_estimate(arm.time.ratio),
        format_p(arm.p),
        verdict_name(arm),
    )


def cost_row(study: Study, arm: ArmAnalysis) -> tuple[str, ...]:
    """Return the costs of an arm, and its statistical power: the cells of `COST_HEADER`."""
    longest = study.protocol.durations_of(arm.arm)[-1:] or (None,)
    seconds = mean_seconds(trials_of(study, arm.arm, "reporting", *longest))
    parts = [seconds.setup, seconds.warmup, seconds.evaluation] if seconds else [None] * 3
    return (
        arm.arm,
        format_seconds(arm.step_cost),
        "" if arm.role == "baseline" else format_estimate(arm.step_cost_ratio),
        *map(format_seconds, parts),
        _detectable(arm.power),
        _seeds_needed(arm),
    )


def _detectable(power: Power | None) -> str:
    return NOTHING if power is None else f"{power.detectable:.2f}x"


def _seeds_needed(arm: ArmAnalysis) -> str:
    if arm.power is None:
        return NOTHING
    needed = arm.power.seeds_for_observed
    return ">1000" if needed is None else str(needed)


# --- layout ---


def _narrow(rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> str:
    """Format a table of at most 100 columns: the names in the first column are wrapped."""
    columns = zip(*(row[1:] for row in (header, *rows)), strict=True)
    widths = [max(map(len, column)) for column in columns]
    room = max(MAX_WIDTH - sum(widths) - 2 * len(widths), 8)
    lines: list[tuple[str, ...]] = []
    for name, *cells in rows:
        first, *more = textwrap.wrap(printable(name), room) or [""]
        lines.append((first, *cells))
        lines += [(part, *[""] * len(cells)) for part in more]
    return format_table(lines, header)


def _wrap(text: str, first: str = "", later: str = "") -> str:
    return textwrap.fill(printable(text), MAX_WIDTH, initial_indent=first, subsequent_indent=later)
