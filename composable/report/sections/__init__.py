"""What the sections of the page show, as data: `page.html` has their structure."""

from collections.abc import Callable, Mapping
from typing import Any

from composable.report.comparison import RunComparison
from composable.report.sections.charts import curves, time_split
from composable.report.sections.files import checkpoints, images, problems, warnings
from composable.report.sections.results import answer, overview
from composable.report.sections.settings import all_settings, differences, plan

__all__ = ["SECTIONS"]

SECTIONS: Mapping[str, Callable[[RunComparison], Any]] = {
    "Answer": answer,
    "Overview": overview,
    "Problems": problems,
    "Differences": differences,
    "Curves": curves,
    "Time": time_split,
    "Plan": plan,
    "Images": images,
    "Checkpoints": checkpoints,
    "Warnings": warnings,
    "Configuration": all_settings,
}
"""The sections in the order of the page; one that has nothing to show returns an empty value."""
