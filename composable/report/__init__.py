"""Reports of recorded runs: one HTML file, tables and figures."""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.report.page import write_report as write_report
    from composable.report.recorded_run import RecordedRun as RecordedRun
    from composable.report.recorded_run import plot_runs as plot_runs
else:
    export_lazily(__name__)
