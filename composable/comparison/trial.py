"""Run one trial in this process: a Trainer, or the user's training loop."""

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import attrs
import torch

from composable.comparison.arms import Arm
from composable.comparison.building import BuildError, build_trainer
from composable.comparison.records import Evaluation, Outcome, Seconds, Trial, TrialResult
from composable.core.callback import Callback
from composable.core.control import Control
from composable.core.result_names import full_name
from composable.core.time import Time, elapsed
from composable.trainer.guards import NonFiniteLossError
from composable.utils.reproducibility import accelerator, preserve_rng, seed_all

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State


T = TypeVar("T")

log = logging.getLogger("composable")

_WARMUP_STEPS = 3
"""The steps that compile and allocate."""
_COMPARED_STEPS = 10
"""The steps that follow, whose mean is the cost of a step without warm-up."""
_MOST = 2000


@attrs.frozen(eq=False, kw_only=True)
class Compared:
    """What is compared: arms of a function that builds a Trainer, or of a training loop."""

    function: Callable[..., Any]
    """`build(algorithms, seed, **hyperparameters)`, or the loop
    `run(arm, seed, duration, **hyperparameters)`, which yields `(step, result)`."""
    arms: Mapping[str, Arm] = attrs.field(factory=dict)
    """By name, the baseline first, and the A/A arm last."""
    name: Literal["build", "run"] = "build"
    """The argument of `compare` that it is."""
    metrics: tuple[str, ...] = ()
    """The results that a trial needs, such as "test/accuracy": it diverges when one is not
    finite. Empty: all."""
    threads: int = 1
    clock: Literal["cpu", "wall"] = "cpu"
    """CPU seconds of the process, which other load changes little; or seconds of a wall clock, for
    GPUs and several threads."""

    def arguments(self, trial: Trial) -> dict[str, Any]:
        """Return the arguments of the function besides the seed and the duration."""
        return self.arms[trial.arm].arguments(trial.settings)


class Stopwatch:
    """Seconds of several parts, one of which runs at a time; the first is "setup"."""

    def __init__(self, clock: Literal["cpu", "wall"]) -> None:
        self._now = time.process_time if clock == "cpu" else time.perf_counter
        self.device: torch.device | None = None
        """The device to wait for; None for the current one."""
        self.part = "setup"
        self._seconds: dict[str, float] = {}
        self._since = self._now()

    def switch(self, part: str) -> None:
        """End the current part, and start another one."""
        if accelerator() and (self.device is None or self.device.type != "cpu"):
            torch.accelerator.synchronize(self.device)
        now = self._now()
        self._seconds[self.part] = self._seconds.get(self.part, 0.0) + now - self._since
        self.part, self._since = part, now

    def read(self, part: str) -> float:
        """Return the seconds of a part so far."""
        self.switch(self.part)
        return self._seconds.get(part, 0.0)


Pause: TypeAlias = Callable[[int, Stopwatch], None]
"""What a measurement of step costs does after each step."""


class _Recorder:
    """The evaluations of a trial, and its seconds."""

    def __init__(self, subject: Compared, pause: Pause | None) -> None:
        self.metrics, self.watch, self.pause = subject.metrics, Stopwatch(subject.clock), pause
        self.batches = 0
        self.diverged: str | None = None
        """A description of the result that is not finite, if there is one."""
        self.curve: list[Evaluation] = []
        self._marks: dict[int, float] = {}

    def advance(self, batches: int) -> None:
        """Count batches, and measure the first ones."""
        self.batches = batches
        if batches in (_WARMUP_STEPS, _WARMUP_STEPS + _COMPARED_STEPS):
            self._marks[batches] = self.watch.read("training")
        if self.pause is not None:
            self.pause(batches, self.watch)

    def record(self, results: Mapping[str, float]) -> None:
        """Add an evaluation; two after one batch are one."""
        if self.curve and self.curve[-1].batch == self.batches:
            results = {**self.curve.pop().metrics, **results}
        self.curve.append(Evaluation(self.batches, results))
        needed = {name: results[name] for name in self.metrics or results if name in results}
        bad = [f"{name} is {value}" for name, value in needed.items() if not math.isfinite(value)]
        if bad:
            self.diverged = f"{bad[0]} after batch {self.batches}"

    def result(self, trial: Trial, outcome: Outcome, error: str | None) -> TrialResult:
        """Return the result, the seconds of training without the warm-up."""
        last = self.curve[-1].metrics if self.curve else {}
        missing = [name for name in self.metrics if name not in last]
        if outcome in ("finished", "stopped") and missing:
            logged = sorted({name for one in self.curve for name in one.metrics})
            raise BuildError(
                f"metric={missing[0]!r} must be a result of the last evaluation of the run, and "
                f"its evaluations log {', '.join(map(repr, logged)) or 'nothing'}."
            )
        setup, training, evaluation = map(self.watch.read, ("setup", "training", "evaluation"))
        warmup = 0.0  # what the first steps took beyond the cost of those that follow
        if len(self._marks) == 2:  # otherwise, the run is too short to tell
            begun, ended = self._marks.values()
            warmup = max(0.0, begun - _WARMUP_STEPS * (ended - begun) / _COMPARED_STEPS)
        seconds = Seconds(setup, warmup, max(0.0, training - warmup), evaluation)
        return TrialResult(trial, outcome, self.batches, seconds, tuple(self.curve), error)


def run_trial(subject: Compared, trial: Trial, pause: Pause | None = None) -> TrialResult:
    """Train from beginning to end, and record the evaluations and the seconds.

    A Trainer writes no files, logs nothing and shows no progress bar. The global random generators
    are seeded with the seed of the trial before the function is called, and restored afterwards.
    An exception gives a failed trial, except for a `BuildError`: the function cannot be compared.
    """
    recorder = _Recorder(subject, pause)
    follow = _follow_trainer if subject.name == "build" else _follow_loop
    before, error = torch.get_num_threads(), None
    torch.set_num_threads(subject.threads)
    try:
        with preserve_rng():
            seed_all(trial.seed)  # before the function of the arm is called, too
            outcome = follow(subject, trial, recorder)
    except BuildError:
        raise
    except NonFiniteLossError as problem:
        outcome, error = "diverged", _describe(problem)
    except Exception as problem:
        log.warning("seed %d of arm %r failed", trial.seed, trial.arm, exc_info=problem)
        outcome, error = "failed", _describe(problem)
    else:
        if recorder.diverged is not None:
            outcome, error = "diverged", recorder.diverged
    finally:
        torch.set_num_threads(before)
    return recorder.result(trial, outcome, error)


def failed(trial: Trial, error: str) -> TrialResult:
    """Return the result of a trial that did not train."""
    return TrialResult(trial, "failed", 0, Seconds(0.0, 0.0, 0.0, 0.0), (), error[:_MOST])


def _describe(error: BaseException) -> str:
    """Return the type and the message of an exception, and its notes."""
    lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    return os.linesep.join(lines)[:_MOST]


# --- a Trainer ---


def _follow_trainer(subject: Compared, trial: Trial, recorder: _Recorder) -> Outcome:
    arguments = subject.arguments(trial)
    trainer = build_trainer(subject.function, arguments, trial.seed, trial.duration)
    recorder.watch.device = trainer.state.device
    trainer.add_callback(_Observer(recorder))
    state = trainer.fit()
    return "finished" if elapsed(state) >= 1 else "stopped"


class _Observer(Callback):
    """Reports steps and evaluations; the time of training stops while the run evaluates."""

    def __init__(self, recorder: _Recorder) -> None:
        self.recorder = recorder

    def attach(self, run: Any) -> None:
        self.evaluation = run.evaluation

    def epoch_start(self, state: "State", logger: "Logger") -> None:
        if self.recorder.watch.part == "setup":
            self.recorder.watch.switch("training")

    def batch_end(self, state: "State", logger: "Logger") -> None:
        self.recorder.advance(self.recorder.batches + 1)

    def eval_before_all(self, state: "State", logger: "Logger") -> None:
        self.recorder.watch.switch("evaluation")

    def eval_after_all(self, state: "State", logger: "Logger") -> Control | None:
        evaluators = self.evaluation.evaluators
        current = [one.label for one in evaluators if self.evaluation.is_current(one, state)]
        results = {
            f"{label}/{name}": float(value)
            for label in current
            for name, value in state.metrics[label].items()
        }
        self.recorder.record(results)
        self.recorder.watch.switch("training")
        return Control.STOP if self.recorder.diverged is not None else None

    def fit_end(self, state: "State", logger: "Logger") -> None:
        self.recorder.watch.switch("end")


# --- a loop of the user's own ---


def yield_reports(train: Callable[[Callable[[T], None]], object]) -> Iterator[T]:
    """Turn a function that reports its progress from callbacks into a generator.

    The function runs in a thread, and waits in each report until the next item is taken. What it
    raises is raised here.

    Args:
        train: A function `train(report)` that calls `report(item)`.

    Example:
        >>> from composable.comparison import yield_reports
        >>> def train(report):
        ...     for step in (1, 2):
        ...         report((step, 1 / step))
        >>> list(yield_reports(train))
        [(1, 1.0), (2, 0.5)]
    """
    turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
    said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def report(item: T) -> None:
        said.put(("item", item))
        if not turns.get():
            raise SystemExit  # which ends the thread alone

    def target() -> None:
        try:
            turns.get()
            train(report)
            said.put(("end", None))
        except BaseException as error:
            said.put(("error", error))

    threading.Thread(target=target, daemon=True).start()
    try:
        while True:
            turns.put(True)
            kind, item = said.get()
            if kind == "error":
                raise item
            if kind == "end":
                return
            yield item
    finally:
        turns.put(False)


def _follow_loop(subject: Compared, trial: Trial, recorder: _Recorder) -> Outcome:
    """Follow a generator: the time until a yield with a further step counts as training."""
    watch, duration = recorder.watch, Time.parse(trial.duration)
    watch.switch("training")
    yielded = subject.function(**subject.arguments(trial), seed=trial.seed, duration=duration)
    if not hasattr(yielded, "__next__"):
        raise BuildError(
            f"run must be a generator that yields (step, result), not {yielded!r:.99}."
        )
    for item in yielded:
        step, results = _read(item, recorder)
        further = step > recorder.batches
        watch.part = "training" if further else "evaluation"
        watch.switch("between")
        if further:
            recorder.advance(step)
        if results is not None:
            recorder.record(results)
        watch.switch("training")
        if recorder.diverged is not None:
            break
    watch.part = "end"
    return "finished"


def _read(item: Any, recorder: _Recorder) -> tuple[int, dict[str, float] | None]:
    before = recorder.batches
    try:
        step, result = item
        if type(step) is not int or step < max(before, 1):
            raise ValueError(f"the step must be an integer, at least {max(before, 1)}")
        if result is None:
            return step, None
        named = result if isinstance(result, Mapping) else {recorder.metrics[0]: result}
        return step, {full_name("result", name): float(value) for name, value in named.items()}
    except (TypeError, ValueError) as error:
        raise BuildError(
            f"run yielded {item!r:.200}; it must yield (step, result) with the number of finished "
            "steps, and a number, numbers by name, or None for no result: "
            f"{error}."
        ) from error
