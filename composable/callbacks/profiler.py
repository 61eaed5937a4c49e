"""Profile a few batches with PyTorch's profiler."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from composable._support.checks import as_path, check_count, check_flags
from composable._support.paths import next_name, open_to_write, replacing
from composable._support.warn import warn_user
from composable.core.callback import Callback
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.stateful import Count, Kind, NumberOrNone, is_count
from composable.core.time import Time, TimeLike, check_length, check_time, progress
from composable.distributed import Processes

_PHASES = ("wait", "warmup", "active")
_PHASE = Annotated[
    int,
    Kind(f"an integer in [0, {len(_PHASES)})", lambda one: is_count(one) and one < len(_PHASES)),
]
_active: list["Profiler"] = []


class Profiler(Callback):
    """Profiles parts of training with `torch.profiler`.

    The profiler waits, warms up, and records; then it writes a trace and a table, and starts again
    until it has done so `repeat` times. Each length is a time: `wait="1ep", active="3ba"` records
    the first batches of the second epoch. Each recording begins at the start of a batch and ends at
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
        wait: Time before each warm-up.
        warmup: Time in which the profiler runs and nothing is kept, because it is slow at first.
        active: Length of a recording, greater than 0.
        repeat: Number of recordings; None repeats until training ends.
        record_shapes: Record the shapes of inputs.
        profile_memory: Record allocations.
        with_stack: Record the lines of source code; slow.
        with_flops: Estimate floating-point operations of matrix products and convolutions.

    Raises:
        ValueError: An argument has an invalid value.

    Example:
        >>> from composable.callbacks import Profiler
        >>> profiler = Profiler("runs/a", wait="10ba", active="3ba")
        >>> str(profiler.warmup)
        '1ba'
    """

    _saved_attributes: ClassVar = {"_phase": _PHASE, "_recordings": Count, "_since": NumberOrNone}

    def __init__(  # noqa: PLR0913 (public options)
        self,
        folder: str | Path,
        *,
        wait: TimeLike = "1ba",
        warmup: TimeLike = "1ba",
        active: TimeLike = "3ba",
        repeat: int | None = 1,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
    ) -> None:
        self.folder = as_path("folder", folder)
        self.wait, self.warmup = check_time("wait", wait), check_time("warmup", warmup)
        self.active = check_length("active", active)
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
        self._phase, self._recordings = 0, 0
        self._since: Any = None
        self._torch: Any = None
        """PyTorch's profiler, from the start of the warm-up to the end of the recording."""
        self._recording, self._main = False, True
        self._first = self._last = 0
        self._batch: Any = None

    # --- the schedule ---

    @property
    def _name(self) -> str:
        return _PHASES[self._phase]

    @property
    def _length(self) -> Time:
        length: Time = getattr(self, self._name)
        return length

    @property
    def _done(self) -> bool:
        return self.repeat is not None and self._recordings >= self.repeat

    def _advance(self, state: State) -> None:
        """Move to the phase of the next batch."""
        now, length = progress(state, self._length)
        while now - self._since >= length:
            self._phase = (self._phase + 1) % len(_PHASES)
            self._recordings += self._phase == 0
            now, length = progress(state, self._length)
            self._since = now

    # --- events ---

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start the schedule, unless it has started."""
        self._main = Processes.current().is_main
        if self._since is None or state.timestamp.batch == 0:
            self._phase = self._recordings = 0
            self._since = progress(state, self._length)[0]

    def batch_start(self, state: State, logger: Logger) -> None:
        """Start to warm up or to record if due."""
        if self._done or not self._main:
            return
        self._advance(state)  # an epoch may have ended since the last batch
        if self._recording and self._name != "active":
            self._finish()
        if self._done or self._name == "wait":
            return
        if self._torch is None:
            if _active or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
                self._skip(state)
                return
            self._torch = profile(activities=_activities(state), **self.options)
            self._torch.prepare_trace()
            _active.append(self)
        if self._name == "active":
            self._record(state.timestamp.batch)

    def _skip(self, state: State) -> None:
        """Skip a recording: two profilers in one process crash it."""
        warn_user(
            f"Profiler skips a recording at batch {state.timestamp.batch}, because another "
            "profiler is running, and PyTorch runs one at a time.",
        )
        self._recordings, self._phase = self._recordings + 1, 0
        self._since = progress(state, self._length)[0]

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
            self._advance(state)
            if self._name != "active":
                self._finish()

    def close(self) -> None:
        """Write a recording that training has ended."""
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
