"""The analysis of a study."""

from composable.comparison.findings import Analysis
from composable.comparison.records import Study

__all__ = ["analyze"]


def analyze(study: Study, *, confidence: float = 0.95, resamples: int = 2000) -> Analysis:
    """Measure the arms of a study against its baseline, and say whether they pay."""
    raise NotImplementedError
