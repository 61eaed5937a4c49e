"""The tables and sentences of a comparison, as text and as HTML."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from math import floor, log10
from statistics import fmean
from typing import Any, TypeAlias

import attrs
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from composable._support.printable import printable
from composable._support.table import format_table
from composable._version import __version__
from composable.comparison.records import Study, TrialResult
from composable.comparison.verdict import (
    Analysis,
    ArmAnalysis,
    Quality,
    Verdict,
    axis_of,
    show_number,
    show_ratio,
)

Table: TypeAlias = Sequence[Mapping[str, str]]
"""The cells of each row, by the title of the column."""

NOTHING = "–"
"""Shown for a number that the trials do not determine."""
_WIDTH = 100


# --- tables ---


def arm_rows(study: Study, analysis: Analysis) -> Table:
    """Return the speed-ups and the verdicts."""
    ratio = axis_of(study.protocol).ratio
    return [
        {
            "arm": arm.arm,
            ratio: _unless_baseline(arm, arm.speedup),
            "worst to best result": " ".join(
                show_ratio(point.speedup.value) for point in arm.at_results[::2]
            ),
            "covered": _unless_baseline(arm, f"{arm.covered:.0%}"),
            "p": "" if arm.p is None else "<0.001" if arm.p < 0.001 else f"{arm.p:.2g}",
            "verdict": verdict_name(arm),
        }
        for arm in analysis.arms
    ]


def _costs(study: Study, analysis: Analysis) -> Table:
    """Return the final results and the costs of each arm, or its results by amount of data."""
    if study.protocol.data_amounts:
        return _amounts(analysis)
    return [
        {
            "arm": arm.arm,
            "final result": f"{_final(arm.qualities[-1])} at {arm.qualities[-1].duration}",
            "step": show_number(1e3 * arm.step_cost),
            "step / baseline": _unless_baseline(arm, arm.step_cost_ratio),
            "set-up": _mean_setup(study, arm),
        }
        for arm in analysis.arms
    ]


def _amounts(analysis: Analysis) -> Table:
    return [
        {
            "arm": arm.arm,
            "data": f"{quality.amount:g}",
            "result": _final(quality),
            "batches": str(quality.steps),
        }
        for arm in analysis.arms
        for quality in arm.qualities
    ]


def _trials(study: Study, results: Iterable[TrialResult]) -> Table:
    """Return some trials, with the settings that were chosen marked."""
    rows, metric = [], study.protocol.tuning_metric
    chosen = [(one.trial.arm, one.trial.settings) for one in study.reported]
    for result in results:
        trial = result.trial
        value = result.curve[-1].metrics.get(metric) if result.curve else None
        best = trial.purpose == "tuning" and (trial.arm, trial.settings) in chosen
        rows.append(
            {
                "arm": trial.arm,
                "settings": ", ".join(f"{name}={one!r}" for name, one in trial.settings.items()),
                "": "chosen" if best else "",
                "schedule": trial.duration,
                "seed": str(trial.seed),
                metric: NOTHING if value is None else f"{value:.4g}",
                "outcome": result.outcome,
                "error": (result.error or "")[:2000],
            }
        )
    return rows


def _protocol(study: Study) -> Table:
    facts = attrs.asdict(study.protocol, recurse=False)
    facts |= facts.pop("versions")
    return [{"": name.replace("_", " "), " ": _fact(fact)} for name, fact in facts.items()]


# --- sentences ---


def headline(study: Study, analysis: Analysis) -> str:
    """Return the main finding in one sentence."""
    baseline, target = study.protocol.baseline, study.protocol.target
    axis = axis_of(study.protocol)
    paying = [arm for arm in analysis.arms if arm.verdict is Verdict.PAYS]
    if not paying:
        return axis.unclaimed.format(baseline=baseline)
    best = max(paying, key=lambda arm: arm.at_least or (arm.speedup and arm.speedup.low) or 0.0)
    goal = "" if target is None else f" to {study.protocol.metric} {show_number(target)}"
    ratio = best.speedup if best.at_least is None else f"at least {show_ratio(best.at_least)}"
    return axis.claim.format(arm=best.arm, ratio=ratio, baseline=baseline, goal=goal)


def _legend(study: Study) -> str:
    axis = axis_of(study.protocol)
    return (
        f"{axis.ratio}: what the baseline needs for a result divided by what the arm needs, the "
        "mean over the results that both reach, with its 95 % interval. worst to best result: the "
        "ratio at the worst of them, in the middle, and at the best. covered: the share of the "
        "baseline's range of results that the arm reaches as well. p: after Holm's correction over "
        f"the arms. {axis.results}."
    )


def summarize(study: Study) -> str:
    """Return the metric, and the numbers of seeds and trials."""
    protocol, purposes = study.protocol, [result.trial.purpose for result in study.results]
    better = "higher" if protocol.mode == "max" else "lower"
    seeds = len(protocol.seeds)
    unfinished = sum(result.outcome != "finished" for result in study.results)
    failed = f", {unfinished} of which did not finish" if unfinished else ""
    compared = f"{'CPU ' * (protocol.clock == 'cpu')}seconds of training"
    if protocol.data_amounts:
        shown = ", ".join(f"{amount:g}" for amount in protocol.data_amounts)
        compared = f"amounts of data {shown}; each run at its best {protocol.tuning_metric}"
    return (
        f"{protocol.metric} ({better} is better); {seeds} seed{'s' * (seeds != 1)}, "
        f"{purposes.count('reporting')} reporting and {purposes.count('tuning')} tuning "
        f"trials{failed}; {compared}"
    )


def list_sentences(analysis: Analysis) -> list[str]:
    """Return the verdict on each arm with its reason, and the noise floor."""
    floor = "not measured"
    if analysis.noise_floor is not None:
        floor = f"the baseline against itself with other seeds, {analysis.noise_floor}"
    judged = [f"{arm.arm}: {arm.verdict.value}; {arm.why}" for arm in analysis.arms if arm.verdict]
    return [*judged, f"Noise floor: {floor}"]


def list_notes(analysis: Analysis) -> list[str]:
    """Return the warnings about the comparison and its arms, without repetitions."""
    by_arm = [f"{arm.arm}: {note}" for arm in analysis.arms for note in arm.notes]
    return list(dict.fromkeys([*analysis.notes, *by_arm]))


def verdict_name(arm: ArmAnalysis) -> str:
    """Return the verdict of an arm, or its role."""
    if arm.verdict is None:
        return "A/A" if arm.role == "repeated" else arm.role
    if arm.at_least is None:
        return arm.verdict.value
    return f"{arm.verdict.value}, {'≥' if arm.at_least > 1 else '≤'} {show_ratio(arm.at_least)}"


# --- forms ---


def format_text(study: Study, analysis: Analysis, *, details: bool = True) -> str:
    """Format a comparison as text of at most 100 columns; without details as the first table."""
    sections = [
        _wrap(f"{headline(study, analysis)}.") + "\n" + _wrap(summarize(study)),
        _narrow(arm_rows(study, analysis)),
    ]
    if details:
        sections += [
            "\n".join(_wrap(line, "", "  ") for line in list_sentences(analysis)),
            _narrow(_costs(study, analysis)),
            _wrap(_legend(study)),
            "\n".join(_wrap(note, "- ", "  ") for note in list_notes(analysis)),
        ]
    return "\n\n".join(filter(None, sections))


def _narrow(table: Table) -> str:
    rows = [[printable(cell) for cell in row.values()] for row in table]
    return format_table(rows, list(table[0]), width=_WIDTH)


def _wrap(text: str, first: str = "", later: str = "") -> str:
    return textwrap.fill(printable(text), _WIDTH, initial_indent=first, subsequent_indent=later)


def format_html(study: Study, analysis: Analysis, plot: str) -> str:
    """Format a comparison as a page around an SVG image."""
    tuning = [result for result in study.results if result.trial.purpose == "tuning"]
    failures = [result for result in study.results if result.outcome != "finished"]
    tables = {
        "arms": arm_rows(study, analysis),
        "costs": _costs(study, analysis),
        "tuning": _trials(study, tuning),
        "failures": _trials(study, failures),
        "protocol": _protocol(study),
    }
    source = files("composable.comparison").joinpath("page.html").read_text(encoding="utf-8")
    css = files("composable.report").joinpath("report.css").read_text(encoding="utf-8")
    template = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    ).from_string(source)
    page: str = template.render(
        title=headline(study, analysis),
        summary=summarize(study),
        sentences=list_sentences(analysis),
        notes=list_notes(analysis),
        legend=_legend(study),
        ratio=axis_of(study.protocol).ratio,
        version=__version__,
        css=Markup(css),
        plot=Markup(plot),
        tables=tables,
    )
    return page


# --- cells ---


def _unless_baseline(arm: ArmAnalysis, value: object) -> str:
    return "" if arm.role == "baseline" else str(value or NOTHING)


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_fact(one)}" for name, one in value.items()) or NOTHING
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or NOTHING
    return NOTHING if value is None else str(value)


def _final(quality: Quality) -> str:
    """Return the mean final result with its 95 % interval, such as "0.956 ± 0.012"."""
    if quality.mean is None:
        finished = sum(value is not None for value in quality.results.values())
        return f"{finished} of {len(quality.results)} finished"
    half = 0.0 if quality.high is None else quality.high - quality.mean
    if not half:
        return show_number(quality.mean)
    decimals = min(max(1 - floor(log10(half)), 0), 8)
    return f"{quality.mean:.{decimals}f} ± {half:.{decimals}f}"


def _mean_setup(study: Study, arm: ArmAnalysis) -> str:
    """Return the mean seconds of set-up, compilation and first steps on the longest schedule."""
    place = (arm.arm, arm.qualities[-1].duration, "finished")
    runs = [
        result.seconds.setup + result.seconds.warmup
        for result in study.reported
        if (result.trial.arm, result.trial.duration, result.outcome) == place
    ]
    return show_number(1e3 * fmean(runs)) if runs else NOTHING
