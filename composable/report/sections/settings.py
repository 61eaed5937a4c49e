"""Where the configurations of runs differ, and all their settings."""

from collections.abc import Mapping, Sequence

from composable.report.comparison import RunComparison, first_different_batch
from composable.report.html import HTML, element, join, scrolling_table
from composable.report.sections._common import (
    EMPTY,
    fold,
    format_number,
    group_label,
    label_of,
    note_of,
)
from composable.report.short_calls import short_calls

__all__ = ["configuration_section", "differences"]

_MOST_SETTINGS = 300
_WITHOUT_EFFECT = ("arguments",)  # folders, as a rule


def differences(comparison: RunComparison) -> HTML | None:
    """Show the settings and facts that differ, and from which batch on the runs do."""
    if len(comparison.runs) == 1:
        return None
    found = {**comparison.differing(comparison.settings), **comparison.differing(comparison.system)}
    shown = {name: row for name, row in found.items() if not name.startswith(_WITHOUT_EFFECT)}
    body = _differences_table(comparison, shown)
    if not shown:
        body = element("p", "The recorded configurations are equal.")
    return join(body, _partings(comparison))


def _differences_table(comparison: RunComparison, values: Mapping[str, Sequence[str]]) -> HTML:
    """Build a table with a column for each group, whose runs differ in the seed alone."""
    labels = [element("span", group_label(comparison, i)) for i in range(len(comparison.groups))]
    columns = [comparison.group_name(group) for group in comparison.groups]
    rows = []
    for name, row in list(values.items())[:_MOST_SETTINGS]:
        by_group = [", ".join(dict.fromkeys(row[run] for run in g)) for g in comparison.groups]
        if len(by_group) > 1 and len(set(by_group)) == 1:
            continue  # the seeds, as a rule
        cells = [
            element("td", text or EMPTY, data_column=column)
            for column, text in zip(columns, short_calls(by_group), strict=True)
        ]
        rows.append(element("tr", element("td", name, class_="name"), *cells))
    return join(scrolling_table(["setting", *labels], rows, class_="cards"), _left_out(values))


def _partings(comparison: RunComparison) -> HTML:
    """Tell from which batch on each run differs from the first one."""
    outcomes: dict[str, list[int]] = {}
    for index in range(1, len(comparison.runs)):
        batch, compared = first_different_batch(comparison.runs[0], comparison.runs[index])
        if not compared:
            text = "no batch in common"
        elif batch is None:
            text = (
                f"bit-identical losses and learning rates in all {format_number(compared)} batches"
            )
        else:
            text = f"other losses or learning rates from batch {format_number(batch)} on"
        outcomes.setdefault(text, []).append(index)
    lines = [
        element("li", f"{text}: ", *(element("span", label_of(comparison, run)) for run in runs))
        for text, runs in outcomes.items()
    ]
    heading = element("p", "Compared with ", label_of(comparison, 0), ":")
    return element("div", heading, element("ul", *lines), class_="partings")


def _settings_table(comparison: RunComparison, values: Mapping[str, Sequence[str]]) -> HTML:
    header = [
        "setting",
        *(element("span", label_of(comparison, i)) for i in range(len(comparison.runs))),
    ]
    rows = []
    for name, row in list(values.items())[:_MOST_SETTINGS]:
        differs = len(set(row)) > 1
        cells = [element("td", one or EMPTY) for one in row]
        kind = "differs" if differs else None
        rows.append(element("tr", element("td", name, class_="name"), *cells, class_=kind))
    return join(scrolling_table(header, rows), _left_out(values))


def _left_out(values: Mapping[str, Sequence[str]]) -> HTML:
    left_out = len(values) - _MOST_SETTINGS
    return note_of(f"… and {left_out} more" if left_out > 0 else "")


def configuration_section(comparison: RunComparison) -> HTML | None:
    """Show all hyperparameters and facts about the system."""
    modules = {n: v for n, v in comparison.settings.items() if n.split("/")[0] == "modules"}
    settings = {n: v for n, v in comparison.settings.items() if n not in modules}
    tables = {
        "Hyperparameters and data": settings,
        "Layers of the model": modules,
        "System": comparison.system,
    }
    tables_shown = [
        fold(f"{summary} ({len(values)})", _settings_table(comparison, values))
        for summary, values in tables.items()
        if values
    ]
    return join(*tables_shown) if tables_shown else None
