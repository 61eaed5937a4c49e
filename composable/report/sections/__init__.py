"""What the sections of the page show, as data: `page.html` has their structure."""

from collections.abc import Callable, Mapping
from typing import Any

from composable.report.comparison import RunComparison
from composable.report.sections.answer import answer
from composable.report.sections.checkpoints import checkpoints
from composable.report.sections.curves import curves
from composable.report.sections.faults import problems, warnings
from composable.report.sections.images import images
from composable.report.sections.overview import overview
from composable.report.sections.plan import plan
from composable.report.sections.settings import all_settings, differences
from composable.report.sections.time_split import time_split

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
