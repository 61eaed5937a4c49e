"""Run trials in worker processes, one process each."""

import faulthandler
import gc
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from pathlib import Path
from typing import Any, cast

import attrs
import torch

from composable._support.paths import check_no_link, open_to_write
from composable.comparison.building import BuildError
from composable.comparison.cost import TimedBlock, paused_run
from composable.comparison.records import Trial, TrialResult
from composable.comparison.study_file import Cache
from composable.comparison.trial import Compared, failed, run_trial

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MARK = "COMPOSABLE_COMPARISON_WORKER"
"""The environment variable of worker processes."""
_TAIL = 1500
"""The number of characters of a log that an error shows."""


def check_not_in_worker() -> None:
    """Refuse to start a comparison in a worker of another one."""
    if _MARK in os.environ:
        raise RuntimeError(
            "compare was called while a worker process of a comparison imported the script; put "
            "the call under if __name__ == '__main__'."
        )


# --- in a worker ---


def _run(payload: bytes) -> TrialResult:
    """Run a trial."""
    subject, trial = pickle.loads(payload)
    result = run_trial(subject, trial)
    gc.collect()  # a Trainer has cycles
    if _MARK in os.environ and not gc.get_freeze_count():  # modules take long to search
        gc.freeze()
    if torch.accelerator.is_available():
        torch.get_device_module().empty_cache()
    return result


_run_of_process: Iterator[TimedBlock | None] = iter(())
"""The run of a process that measures the cost of steps."""


def _begin(payload: bytes, steps: int) -> None:
    """Set up a run, which waits after its first step."""
    global _run_of_process
    subject, trial = pickle.loads(payload)
    _run_of_process = paused_run(subject, trial, steps)
    next(_run_of_process, None)


def _advance() -> TimedBlock | None:
    return next(_run_of_process, None)


def _start_worker(log: str) -> None:
    """Write what a process prints to its log, and end it by the process that began it alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with open_to_write(Path(log), "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    faulthandler.enable()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


# --- processes ---


class Worker:
    """A process on this machine, on the GPU of its number if there are any."""

    def __init__(self, folder: Path, number: int, threads: int) -> None:
        from loky import ProcessPoolExecutor

        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"worker-{number}.log"
        check_no_link(self._log)
        environment = {**dict.fromkeys(_THREADS, str(threads)), _MARK: "1"}
        if devices := _cuda_devices():
            environment["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
        start = {"initializer": _start_worker, "initargs": (str(self._log.absolute()),)}
        self._executor = ProcessPoolExecutor(1, env=environment, **start)
        self.submit = self._executor.submit

    def cause(self, error: BaseException) -> str:
        """Return why the process has died, with the end of its log."""
        codes = re.search(r"\{(.*)\}", str(error))
        text = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        end = f"its log {self._log} is empty"
        if text:
            end = f"the end of its log {self._log}:\n{text[-_TAIL:]}"
        return f"the worker process died{f' ({codes[1]})' if codes else ''}; {end}"

    def close(self) -> None:
        """End the process at once."""
        self._executor.shutdown(wait=True, kill_workers=True)


class ProcessRun(Worker):
    """A `paused_run` in a separate process."""

    def __init__(
        self, folder: Path, number: int, subject: Compared, trial: Trial, steps: int
    ) -> None:
        super().__init__(folder, number, subject.threads)
        self.begun = self.submit(_begin, _payload(subject, trial), steps)

    def advance(self) -> TimedBlock | None:
        """Train the next block; an error says why the run failed, or its process died."""
        try:
            self.begun.result()
            block: TimedBlock | None = self.submit(_advance).result()
        except BrokenExecutor as error:
            raise RuntimeError(self.cause(error)) from error
        return block


def _cuda_devices() -> list[str]:
    """Return the CUDA devices, as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [str(i) for i in range(count)] if given is None else given.split(",")
    return named[:count]


def default_workers(threads: int) -> int:
    """Return the number of workers: one for each CUDA device, or else for each group of cores."""
    from loky import cpu_count  # of the affinity of this process, and the quota of its container

    return len(_cuda_devices()) or max(1, cpu_count() // threads)


# --- trials ---


class Workers:
    """Runs trials at the same time, and keeps finished ones.

    Each worker process of this machine is a separate executor, so one that dies fails its trial
    only, and another one replaces it.
    """

    def __init__(
        self,
        subject: Compared,
        cache: Cache,
        workers: int,
        folder: Path,
        progress: "TrialProgress | None" = None,
    ) -> None:
        self.subject, self.cache, self.count, self.folder = subject, cache, workers, folder
        self.progress = progress or TrialProgress()
        self._own: dict[int, Worker] = {}

    def train(
        self,
        what: str,
        trials: Sequence[Trial],
        later: Sequence[Trial] = (),
        *,
        alone: bool = False,
    ) -> list[TrialResult]:
        """Train trials that are not stored, and return the results of all.

        Args:
            what: What they are for.
            trials: The trials, which start in this order.
            later: The trials that are planned after them, for the progress.
            alone: Train one trial at a time on this machine: others would slow its steps down.
        """
        self.progress.start(what, [*trials, *later])
        found = [self.cache.get(trial) for trial in trials]
        for known in filter(None, found):
            self.progress.finish(known.trial, cached=True)
        missing = [index for index, known in enumerate(found) if known is None]
        for index, result in self._run(trials, missing, alone=alone):
            found[index] = result
            self.cache.put(result)
            self.progress.finish(result.trial)
        return cast(list[TrialResult], found)

    def _run(
        self, trials: Sequence[Trial], waiting: list[int], *, alone: bool = False
    ) -> Iterator[tuple[int, TrialResult]]:
        """Yield the results of the trials that wait, as they complete."""
        free = list(range(1 if alone else self.count))
        running: dict[Future[TrialResult], tuple[int, int]] = {}
        try:
            while waiting or running:
                while waiting and free:
                    number, index = free.pop(), waiting.pop(0)
                    payload = _payload(self.subject, trials[index])
                    future = self._worker(number).submit(_run, payload)
                    running[future] = number, index
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number, index = running.pop(future)
                    free.append(number)
                    yield index, self._result(future, number, trials[index])
        finally:  # after an error or an interrupt
            if running:
                self.stop()

    def _worker(self, number: int) -> Worker:
        if number not in self._own:
            self._own[number] = Worker(self.folder, number, self.subject.threads)
        return self._own[number]

    def _result(self, future: "Future[TrialResult]", number: int, trial: Trial) -> TrialResult:
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, BrokenExecutor):
            dead = self._own.pop(number)
            dead.close()
            return failed(trial, dead.cause(error))
        if isinstance(error, BuildError):
            raise error
        return failed(trial, f"{type(error).__name__}: {error}")  # such as sys.exit in a script

    def stop(self) -> None:
        """End all worker processes at once. Later trials start new ones."""
        while self._own:
            self._own.popitem()[1].close()


class TrialProgress:
    """Counts trials, and shows the time left by their lengths."""

    def __init__(self, run_length: Callable[[Trial], float] = lambda _: 1.0, show: bool = False):
        from tqdm.auto import tqdm  # on use: it is slow, because it searches for notebooks

        self.finished = self.total = 0
        self._length_of, self._what = run_length, ""
        self._bar: Any = tqdm(
            bar_format="{desc} {bar} {elapsed}, {remaining} left", disable=not show, initial=0
        )
        self.close = self._bar.close

    def start(self, what: str, trials: Sequence[Trial]) -> None:
        """Begin a stage; the trials are all that remain."""
        self._what, self.total = what, self.finished + len(trials)
        self._bar.total = self._bar.n + sum(map(self._length_of, trials))
        self._show()

    def finish(self, trial: Trial, *, cached: bool = False) -> None:
        """Count a trial that has ended; a cached one says nothing about the speed."""
        self.finished += 1
        self._bar.n += self._length_of(trial)
        if cached and not self._bar.disable:
            self._bar.initial += self._length_of(trial)
        self._show()

    def _show(self) -> None:
        self._bar.set_description_str(f"{self._what}: {self.finished}/{self.total} trials")


# --- what is sent ---


def _payload(subject: Compared, trial: Trial) -> bytes:
    alone = attrs.evolve(subject, arms={trial.arm: subject.arms[trial.arm]})
    return pickled(f"arm {trial.arm!r}", (alone, trial))


def pickled(name: str, value: Any) -> bytes:
    """Return a value as bytes, functions of scripts and notebooks by value."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:  # an object may raise anything
        raise TypeError(
            f"{name} cannot be sent to worker processes: {error}. Create what cannot be pickled, "
            "such as open files, locks and generators, inside of build, or, in an algorithm, "
            "when it is first called."
        ) from error
