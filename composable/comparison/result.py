"""The result of `compare`: a study and its analysis, as text, pictures and files."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from composable._support.checks import as_path
from composable._support.extras import needs
from composable._support.paths import check_no_link, write_atomically
from composable.comparison.records import Study
from composable.comparison.study_file import read_study, write_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from composable.comparison.verdict import Analysis, Estimate, Verdict


_PICTURES = ("plot.png", "plot.svg", "report.html")


def _load(module: str) -> Any:
    """Import a module of this package, which needs the extra."""
    with needs("a comparison", "compare"):
        return import_module(f"composable.comparison.{module}")


@attrs.frozen(repr=False)
class Comparison:
    """The result of a comparison.

    Args:
        study: The protocol and the results of the trials.

    Raises:
        ImportError: SciPy is not installed.
        ValueError: The baseline has no finished reporting trial, a run has two results, or the
            metric is not logged.

    Example:
        >>> from composable.comparison import Comparison
        >>> comparison = Comparison.load("runs/comparison")  # doctest: +SKIP
        >>> comparison.verdict("muon")  # doctest: +SKIP
        <Verdict.PAYS: 'pays'>
    """

    study: Study
    analysis: "Analysis" = attrs.field(init=False)
    """The speed-ups, intervals and verdicts, which follow from the study."""

    @analysis.default
    def _analyze(self) -> "Analysis":
        found: Analysis = _load("analysis").analyze(self.study)
        return found

    @classmethod
    def load(cls, folder: str | Path) -> "Comparison":
        """Read a comparison that `save` wrote, and analyze it again.

        Args:
            folder: The folder, or its file study.json.

        Raises:
            InvalidRecordError: study.json is invalid; the message gives the path of the field.
            OSError: The file cannot be read.
        """
        path = as_path("folder", folder)
        return cls(read_study(path / "study.json" if path.is_dir() else path))

    def verdict(self, arm: str) -> "Verdict | None":
        """Return whether an arm pays; None for the baseline and the A/A arm.

        Args:
            arm: The name of the arm.

        Raises:
            ValueError: There is no such arm.
        """
        return self.analysis[arm].verdict

    def speedup(self, arm: str) -> "Estimate | None":
        """Return the baseline's time to a result, or data, divided by the arm's.

        Args:
            arm: The name of the arm.

        Returns:
            The mean over the results that both reach, or the value at the target, with its
            interval; above 1 if the arm is faster, or needs less data. None for the baseline, and
            without two schedules and seeds. `analysis[arm].curve` has the speed-up by result.

        Raises:
            ValueError: There is no such arm.
        """
        return self.analysis[arm].speedup

    def table(self, *, details: bool = True) -> str:
        """Return a text table of the arms, of at most 100 columns.

        Args:
            details: Add the reasons, the costs and the notes below it.
        """
        return str(_load("table").format_text(self.study, self.analysis, details=details))

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Plot the speed-up by result, and the metric against the seconds, or amount of data.

        Args:
            path: A file to write, such as "plot.svg"; matplotlib derives the format from its
                suffix. Default: none.

        Returns:
            A matplotlib figure, which belongs to no window.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: matplotlib does not support the suffix of `path`.
        """
        plots = _load("plot")
        figure: Figure = plots.draw_plot(self.study, self.analysis)
        if path is not None:
            file = as_path("path", path)
            write_atomically(file, plots.render_figure(figure, file.suffix))
        return figure

    def save(self, folder: str | Path) -> Path:
        """Write study.json, table.txt, plot.png, plot.svg and report.html.

        Args:
            folder: The folder; it is created, and existing files of these names are replaced.

        Returns:
            The folder.

        Raises:
            ImportError: matplotlib is not installed; the first two files are written.
            OSError: A file cannot be written.
        """
        target = as_path("folder", folder)
        target.mkdir(parents=True, exist_ok=True)
        for name in _PICTURES:  # an error below must not leave another study's
            check_no_link(target / name)
            (target / name).unlink(missing_ok=True)
        write_study(self.study, target / "study.json")
        write_atomically(target / "table.txt", (self.table() + "\n").encode())
        figure, plots = self.plot(), _load("plot")
        for name in ("plot.png", "plot.svg"):
            write_atomically(target / name, plots.render_figure(figure, Path(name).suffix))
        picture = plots.render_inline(figure)
        page = str(_load("table").format_html(self.study, self.analysis, picture))
        write_atomically(target / "report.html", page.encode())
        return target

    def __repr__(self) -> str:
        return self.table()
