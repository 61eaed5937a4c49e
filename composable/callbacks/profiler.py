"""Profile a few batches with PyTorch's profiler."""

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from composable._support.checks import as_path, check_count, check_flags
from composable._support.paths import next_name, open_to_write, replacing
from composable._support.warn import warn_user
from composable.core.callback import Callback
from composable.core.logger import Logger
from composable.core.state import State
from composable.distributed import Processes

_active: list["Profiler"] = []


class Profiler(Callback):
    """Profiles parts of training with `torch.profiler`.

    The profiler waits, warms up, and records; then it writes a trace and a table, and starts again
    until it has done so `repeat` times. Each recording begins at the start of a batch and ends at
    the end of one, with everything in between: evaluations and saving too.

    It writes `trace-ba<first>-ba<last>.json`, which chrome://tracing and ui.perfetto.dev open, and
    `trace-ba<first>-ba<last>.txt`, the operations sorted by the time that they take. Existing files
    are kept. With several processes, rank 0 is profiled. If training ends or fails during a
    recording, the part so far is written. A resumed run continues with the schedule: a recording
    that was interrupted is continued in a second file.

    Outside a recording and its warm-up nothing is profiled. PyTorch runs one profiler at a time: a
    recording that would start while another profiler runs is skipped, with a warning.

    Args:
        folder: The folder of the files; it is created.
        wait: Number of batches before each warm-up.
        warmup: Number of batches in which the profiler runs and nothing is kept, because it is slow
            at first.
        active: Number of batches of a recording, at least 1.
        repeat: Number of recordings; None repeats until training ends.
        record_shapes: Record the shapes of inputs.
        profile_memory: Record allocations.
        with_stack: Record the lines of source code; slow.
        with_flops: Estimate floating-point operations of matrix products and convolutions.

    Raises:
        ValueError: An argument has an invalid value.

    Example:
        >>> from composable.callbacks import Profiler
        >>> profiler = Profiler("runs/a", wait=10, active=3)
        >>> profiler.warmup
        1
    """

    def __init__(  # noqa: PLR0913 (public options)
        self,
        folder: str | Path,
        *,
        wait: int = 1,
        warmup: int = 1,
        active: int = 3,
        repeat: int | None = 1,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
    ) -> None:
        self.folder = as_path("folder", folder)
        check_count("wait", wait)
        check_count("warmup", warmup)
        check_count("active", active, 1)
        self.wait, self.warmup, self.active = wait, warmup, active
        if repeat is not None:
            check_count("repeat", repeat, 1, advice="None repeats until training ends")
        self.repeat = repeat
        self.options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
        }
        check_flags(**self.options)
        self._torch: Any = None
        """PyTorch's profiler, from the start of the warm-up to the end of the recording."""
        self._recording = False
        self._skipped: int | None = None
        self._first = self._last = 0
        self._batch: Any = None

    # --- events ---

    def batch_start(self, state: State, logger: Logger) -> None:
        """Start to warm up or to record if due."""
        batch = state.timestamp.batch
        turn, position = divmod(batch, self.wait + self.warmup + self.active)
        done = turn == self._skipped or (self.repeat is not None and turn >= self.repeat)
        if done or position < self.wait or not Processes.current().is_main:
            return
        if self._torch is None:
            if _active or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
                self._skip(turn, batch)
                return
            self._torch = profile(activities=_activities(state), **self.options)
            self._torch.prepare_trace()
            _active.append(self)
        if position >= self.wait + self.warmup:
            self._record(batch)

    def _skip(self, turn: int, batch: int) -> None:
        """Skip a recording: two profilers in one process crash it."""
        warn_user(
            f"Profiler skips a recording at batch {batch}, because another profiler is running, "
            "and PyTorch runs one at a time.",
        )
        self._skipped = turn

    def _record(self, batch: int) -> None:
        if not self._recording:
            self._torch.start_trace()
            self._recording, self._first = True, batch
        self._last = batch
        self._batch = record_function(f"batch {batch}")
        self._batch.__enter__()

    def batch_end(self, state: State, logger: Logger) -> None:
        """End the recording if due."""
        if self._recording:
            self._end_batch()
            if not state.timestamp.batch % (self.wait + self.warmup + self.active):
                self._finish()

    def close(self) -> None:
        """Write a recording that training has ended."""
        self._skipped = None
        if self._recording:
            self._finish()
        elif self._torch is not None:
            self._torch.start_trace()  # as PyTorch does where a warm-up has no recording
            self._torch.stop_trace()
            self._torch = None
            _active.remove(self)

    def _end_batch(self) -> None:
        if self._batch is not None:
            self._batch.__exit__(None, None, None)
            self._batch = None

    # --- files ---

    def _finish(self) -> None:
        """Write the recording."""
        self._end_batch()
        finished, self._torch, self._recording = self._torch, None, False
        finished.stop_trace()
        _active.remove(self)
        on_cuda = ProfilerActivity.CUDA in finished.activities
        sort_by = f"self_{'cuda' if on_cuda else 'cpu'}_time_total"
        table = finished.key_averages().table(sort_by=sort_by, row_limit=100)
        path = self.folder / f"trace-ba{self._first}-ba{self._last}.json"
        with replacing(next_name(path)) as partial:
            with open_to_write(partial.with_suffix(".txt"), "x") as file:
                file.write(table)
            finished.export_chrome_trace(str(partial))


def _activities(state: State) -> list[ProfilerActivity]:
    on_cuda = state.device.type == "cuda"
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
