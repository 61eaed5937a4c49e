"""Run trials in parallel processes."""

import queue
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs

from composable.comparison.records import TrialResult
from composable.comparison.trials.building import Build, BuildError
from composable.comparison.trials.cache import Cache
from composable.comparison.trials.cores import cuda_devices, default_workers, thread_variables
from composable.comparison.trials.payload import pickled, write_setup
from composable.comparison.trials.process import Ended, Reply, WorkerError, WorkerProcess
from composable.comparison.trials.trial import Request, failed, run_trial
from composable.comparison.trials.worker import READY, Connection
from composable.functional._checks import as_path, check_count

__all__ = ["Pool", "TrialTask"]

_POLL = 0.2
"""After how many seconds time limits are checked."""


@attrs.frozen(eq=False)
class TrialTask:
    """A trial, as a worker trains it."""

    request: Request
    metrics: tuple[str, ...]
    split_evaluation: bool

    def run(self, build: Build, connection: Connection) -> TrialResult:
        """Return the result."""
        return run_trial(
            build,
            self.request.arguments,
            self.request.trial,
            metrics=self.metrics,
            split_evaluation=self.split_evaluation,
        )


class Pool:
    """Worker processes that run trials, one at a time each.

    A worker is a new Python process, not a copy of this one; it gets `build` by its value, so that
    `build` may be a function of a script or a notebook, a lambda or a closure. A worker that dies
    fails its trial only, and another one replaces it. What the trials print goes to one log file
    for each worker.

    Args:
        build: A function `(algorithms, seed, **hyperparameters) -> Trainer`.
        workers: The number of workers. Default: the usable cores, divided by `threads`, or one for
            each CUDA device.
        threads: The number of threads of each worker.
        folder: Where the log files are written. Default: a temporary folder, which is deleted.
        time_limit: The seconds after which a trial fails. Default: none.
        metrics: The results that each trial needs: see `run_trial`.
        split_evaluation: Split the data of the evaluator into "validation" and "test".

    Raises:
        TypeError: `build` cannot be sent to another process.
        ImportError: cloudpickle is not installed.
    """

    def __init__(
        self,
        build: Build,
        *,
        workers: int | None = None,
        threads: int = 1,
        folder: str | Path | None = None,
        time_limit: float | None = None,
        metrics: Iterable[str] = (),
        split_evaluation: bool = False,
    ) -> None:
        self.build = build
        check_count("threads", threads, 1)
        self.threads = threads
        self.workers = default_workers(threads) if workers is None else workers
        check_count("workers", self.workers, 1)
        if time_limit is not None and not time_limit > 0:
            raise ValueError(f"time_limit={time_limit!r} must be a positive number of seconds.")
        self.time_limit = time_limit
        self.metrics, self.split_evaluation = tuple(metrics), split_evaluation
        self.peak_memory = 0
        """The most bytes of memory that a worker has had; 0 if unknown."""
        self._given_folder = None if folder is None else as_path("folder", folder)
        self._resources = ExitStack()
        self._replies: queue.SimpleQueue[Reply | Ended] = queue.SimpleQueue()
        self._started: dict[int, WorkerProcess] = {}
        self._waiting: deque[Request] = deque()

    def __enter__(self) -> "Pool":
        if self._given_folder is None:
            temporary = tempfile.TemporaryDirectory(
                prefix="composable-", ignore_cleanup_errors=True
            )
            self.folder = Path(self._resources.enter_context(temporary))
        else:
            self.folder = self._given_folder.absolute()
            self.folder.mkdir(parents=True, exist_ok=True)
        setup = self.folder / "setup.pickle"
        try:
            write_setup(setup, self.build, self.threads)
        except BaseException:
            self._resources.close()
            raise
        self._resources.callback(setup.unlink, missing_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._resources.close()

    def stop(self) -> None:
        """End all workers at once. Later trials start new ones."""
        for worker in self._started.values():
            worker.kill()
        self._started.clear()

    def start(
        self, number: int, replies: "queue.SimpleQueue[Reply | Ended]", device: int | None = None
    ) -> WorkerProcess:
        """Start a worker process.

        Args:
            number: Its number, that of its log file.
            replies: The queue for its messages.
            device: The index of its CUDA device, if there are any; by default, its number.
        """
        environment = thread_variables(self.threads)
        devices = cuda_devices()
        if devices:
            index = number if device is None else device
            environment["CUDA_VISIBLE_DEVICES"] = devices[index % len(devices)]
        return WorkerProcess(self.folder, number, environment, replies)

    def run(self, requests: Iterable[Request], cache: Cache | None = None) -> Iterator[TrialResult]:
        """Run trials, and yield their results as they complete.

        If the iteration is interrupted, all workers are ended at once.

        Args:
            requests: The trials, which are started in this order.
            cache: Results of earlier calls; the trials that it has are not run again, and come
                first. The others are added to it.

        Raises:
            BuildError: `build` cannot be compared, or does not log a metric.
            TypeError: An argument of a trial cannot be sent to another process.
            WorkerError: A worker cannot start.
        """
        self._waiting.clear()
        context = "" if cache is None else self._context(cache)
        for request in requests:
            known = None if cache is None else cache.get(context, request)
            if known is None:
                self._waiting.append(request)
            else:
                yield known
        try:
            while self._waiting or any(one.task is not None for one in self._started.values()):
                self._assign()
                for request, result in (*self._collect(), *self._overdue()):
                    if cache is not None:
                        cache.put(context, request, result)
                    yield result
        except BaseException:
            self.stop()
            raise

    def _context(self, cache: Cache) -> str:
        return cache.context(self.build, self.threads, self.metrics, self.split_evaluation)

    def _assign(self) -> None:
        """Give each idle worker a trial."""
        for number in range(self.workers):
            if not self._waiting:
                return
            worker = self._started.get(number)
            if worker is None:
                worker = self._started[number] = self.start(number, self._replies)
            if worker.task is None:
                request = self._waiting.popleft()
                name = f"the arguments of arm {request.trial.arm!r}"
                task = TrialTask(request, self.metrics, self.split_evaluation)
                worker.send(pickled(name, task, self.build))
                worker.task = request
                self._set_deadline(worker)

    def _set_deadline(self, worker: WorkerProcess) -> None:
        """Start the time of the trial of a worker, once it is ready."""
        if self.time_limit is not None and worker.ready and worker.task is not None:
            worker.deadline = time.monotonic() + self.time_limit

    def _collect(self) -> list[tuple[Request, TrialResult]]:
        """Wait for a message, and return the results that have arrived."""
        try:
            message = self._replies.get(timeout=_POLL)
        except queue.Empty:
            return []
        worker = message.worker
        if self._started.get(worker.number) is not worker:
            return []  # of a worker that was ended
        if isinstance(message, Ended):
            return self._ended(worker)
        if message.message == READY:
            worker.ready = True
            self._set_deadline(worker)
            return []
        reply, peak = message.message
        self.peak_memory = max(self.peak_memory, peak)
        request, worker.task, worker.deadline = worker.task, None, None
        if isinstance(reply, BuildError):
            raise reply
        return [(request, reply)]

    def _ended(self, worker: WorkerProcess) -> list[tuple[Request, TrialResult]]:
        """Fail the trial of a worker that has ended, or raise if it could not start."""
        del self._started[worker.number]
        cause = worker.cause()
        worker.kill()
        if not worker.ready:
            raise WorkerError(f"the comparison cannot start: {cause}")
        return self._failed(worker, cause)

    def _overdue(self) -> list[tuple[Request, TrialResult]]:
        """End the workers whose trials take too long."""
        now = time.monotonic()
        late = [w for w in self._started.values() if w.deadline is not None and now > w.deadline]
        why = f"the trial took longer than time_limit={self.time_limit} seconds; "
        results = []
        for worker in late:
            del self._started[worker.number]
            worker.kill()
            results += self._failed(worker, why + worker.describe_log())
        return results

    def _failed(self, worker: WorkerProcess, cause: str) -> list[tuple[Request, TrialResult]]:
        """Fail the trial of a worker, if it has one."""
        request: Request | None = worker.task
        return [] if request is None else [(request, failed(request.trial, cause))]
