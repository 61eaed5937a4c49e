"""The summary at the end of `fit`."""

import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import attrs

from composable._support.printable import brief, format_duration, printable
from composable.core.state import State
from composable.core.time import Timestamp
from composable.distributed import Processes
from composable.runs.shown_warnings import ShownWarnings
from composable.storage.folders import address
from composable.trainer.checkpoints import Checkpoints

_COUNTED = ("epoch", "batch", "sample", "token")
_MOST_RESULTS = 8


@attrs.frozen
class FitSummary:
    """A call of `fit`, to be described in a few lines.

    Args:
        checkpoints: The checkpoints of the run, after the call.
        start: The timestamp before the call.
        seconds: The duration of the call.
        before: What parts of the run had taken before it.
        warnings: How many warnings of each class were shown.
    """

    checkpoints: Checkpoints
    start: Timestamp
    seconds: float
    before: Mapping[str, float]
    warnings: Counter[str]

    def __str__(self) -> str:
        lines = [self._trained(), *self._results(), *self._saved(), *self._problems(), self._next()]
        width = shutil.get_terminal_size().columns
        return "\n".join(
            textwrap.fill(
                printable(line),
                width,
                initial_indent="  " if i else "",
                subsequent_indent="    " if i else "  ",
                break_on_hyphens=False,
                break_long_words=False,  # paths are copied
            )
            for i, line in enumerate(lines)
        )

    def _trained(self) -> str:
        state = self.checkpoints.run.state
        before, after = (attrs.asdict(timestamp) for timestamp in (self.start, state.timestamp))
        done = {name: after[name] - before[name] for name in _COUNTED}
        counted = [_count(n, name) for name, n in done.items() if n or name == "batch"]
        training = after["total_wct"] - before["total_wct"]
        parts = [*self._times(training)] if training else []
        parts += [
            f"{_rate(done[name] / training)} {_plural(name)}/s"
            for name in ("batch", "sample", "token")
            if training and done[name]
        ]
        speed = f" ({', '.join(parts)})" if parts else ""
        end = "" if _is_over(state) else f" It stopped before max_duration={state.max_duration}."
        return (
            f"Trained {type(state.model).__name__}: {', '.join(counted)} in "
            f"{format_duration(self.seconds)}{speed}.{end}"
        )

    def _times(self, training: float) -> Iterator[str]:
        """Yield where the time went, from a hundredth of the call on."""
        taken = {n: s - self.before.get(n, 0.0) for n, s in self.checkpoints.run.seconds.items()}
        waited = taken.pop("data", 0.0)
        waits = f" with {format_duration(waited)} for data" if waited > 0.01 * self.seconds else ""
        yield f"training {format_duration(training)}{waits}"
        for name, seconds in taken.items():
            if seconds > 0.01 * self.seconds:
                yield f"{name} {format_duration(seconds)}"

    def _results(self) -> Iterator[str]:
        state = self.checkpoints.run.state
        found = {} if state.loss is None else {"loss/train": float(state.loss)}
        for label, results in state.metrics.items():
            found |= {f"metrics/{label}/{name}": value for name, value in results.items()}
        shown = [f"{name} {brief(value)}" for name, value in list(found.items())[:_MOST_RESULTS]]
        if shown:
            yield f"last: {', '.join(shown)}"
        best = self.checkpoints.best
        if best is not None:
            at_end = self.checkpoints.options.load_best_at_end
            loaded = "; its weights are loaded" if at_end else ""
            yield f"best: {best.metric} {brief(best.value)}, saved in {best.checkpoint}{loaded}"

    def _saved(self) -> Iterator[str]:
        for manager in self.checkpoints.managers:
            if manager.latest is not None:
                yield f"last checkpoint: {address(manager.latest)}"

    def _problems(self) -> Iterator[str]:
        run = self.checkpoints.run
        counts = {
            "batches skipped because their loss was not finite": run.guard.num_skipped,
            "rollbacks to a checkpoint": run.guard.num_rollbacks,
            "steps skipped by the loss scaler": run.loss_scaler.num_skipped,
        }
        yield from (f"{what}: {n}" for what, n in counts.items() if n)
        yield from map(str, run.dispatcher.plan.with_remarks(run.state).remarks)
        if self.warnings:
            kinds = ", ".join(f"{name} ({n})" for name, n in self.warnings.most_common())
            yield f"{_count(self.warnings.total(), 'warning')}: {kinds}"

    def _next(self) -> str:
        managers = self.checkpoints.managers
        if not managers:
            return "next: trainer.save_checkpoint(path); nothing was saved without a save_folder"
        manager, recorders = managers[0], self.checkpoints.run.recorders
        folder = manager.settings.folder
        if any(recorder.folder == folder for recorder in recorders):
            return f"next: composable report {address(folder)}"
        if manager.latest is not None:
            return f"next: composable checkpoint inspect {address(manager.latest)}"
        return f"next: Trainer(..., load_path={address(folder)!r}) resumes the run"


@contextmanager
def summarized(checkpoints: Checkpoints) -> Iterator[None]:
    """Print a summary of the call of `fit` in the block, if it ends without an error.

    It is printed on standard error by the main process, if the Trainer shows a progress bar.
    """
    run, options = checkpoints.run, checkpoints.options
    if not options.progress_bar or options.dry_run or not Processes.current().is_main:
        yield
        return
    warnings: Counter[str] = Counter()
    shown = ShownWarnings(lambda category, message, where: warnings.update([category]))
    start, before, began = run.state.timestamp, dict(run.seconds), time.perf_counter()
    shown.listen()
    try:
        yield
    finally:
        shown.stop()
    seconds = time.perf_counter() - began
    notebook = type(sys.stderr).__module__.startswith("ipykernel")  # standard error is red there
    summary = FitSummary(checkpoints, start, seconds, before, warnings)
    print(summary, file=sys.stdout if notebook else sys.stderr)


def _is_over(state: State) -> bool:
    return state.max_duration is None or state.reached(state.max_duration)


def _count(number: int, name: str) -> str:
    return f"{number:,} {name if number == 1 else _plural(name)}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _plural(name: str) -> str:
    return "batches" if name == "batch" else f"{name}s"
