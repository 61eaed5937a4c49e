"""Reports of recorded runs: one HTML file, and tables."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.report.page import write_report as write_report
    from composable.report.recorded_run import RecordedRun as RecordedRun
else:
    export_lazily(__name__)
