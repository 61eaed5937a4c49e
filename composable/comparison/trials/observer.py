"""The callback that measures a trial: its curve, and its seconds by part."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from composable.comparison.records import Evaluation, Seconds
from composable.comparison.trials.clock import Clock
from composable.core.callback import Callback
from composable.core.control import Control
from composable.core.time import elapsed

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State
    from composable.trainer.run import Run

__all__ = ["TrialObserver"]

_WARMUP_STEPS = 3
"""The steps that compile and allocate."""
_COMPARED_STEPS = 10
"""The steps that follow, whose mean is the cost of a step without warm-up."""


class TrialObserver(Callback):
    """Records each evaluation, and the seconds of training until then.

    The clock of training stops while the run evaluates and saves. On a GPU, the device is
    synchronized at each evaluation, and twice at the beginning to measure the warm-up.

    Args:
        clock: The clock, started before the Trainer is built.
        run: The run to observe.
        metrics: The results that the trial needs. Training stops when one is not finite. Empty:
            all results.
    """

    def __init__(self, clock: Clock, run: "Run", metrics: Iterable[str]) -> None:
        self.clock, self.run, self.metrics = clock, run, tuple(metrics)
        self.diverged: str | None = None
        """A description of the result that is not finite, if there is one."""
        self._curve: list[Evaluation] = []
        self._batches = 0
        self._marks: dict[int, float] = {}

    def epoch_start(self, state: "State", logger: "Logger") -> None:
        """End the set-up at the first epoch."""
        if self.clock.part == "setup":
            self.clock.switch("training", synchronize=True)

    def batch_end(self, state: "State", logger: "Logger") -> None:
        """Count the batch, and measure the first ones."""
        self._batches += 1
        if self._batches in (_WARMUP_STEPS, _WARMUP_STEPS + _COMPARED_STEPS):
            self._marks[self._batches] = self.clock.read("training", synchronize=True)

    def eval_before_all(self, state: "State", logger: "Logger") -> None:
        """Stop the clock of training."""
        self.clock.switch("evaluation", synchronize=True)

    def eval_after_all(self, state: "State", logger: "Logger") -> Control | None:
        """Record the results, and start the clock of training again."""
        current = [e.label for e in self.run.evaluation.evaluators if self._is_current(e, state)]
        results = {
            f"{label}/{name}": float(value)
            for label in current
            for name, value in state.metrics[label].items()
        }
        seconds = self.clock.read("training")
        self._record(Evaluation(state.timestamp.batch, elapsed(state), seconds, results))
        self.clock.switch("training", synchronize=True)
        return Control.STOP if self.diverged is not None else None

    def before_save(self, state: "State", logger: "Logger") -> None:
        """Stop the clock of training."""
        self.clock.switch("saving", synchronize=True)

    def after_save(self, state: "State", logger: "Logger") -> None:
        """Start the clock of training again."""
        self.clock.switch("training")

    def fit_end(self, state: "State", logger: "Logger") -> None:
        """Stop the clock of training."""
        self.clock.switch("end", synchronize=True)

    def _is_current(self, evaluator: Any, state: "State") -> bool:
        return self.run.evaluation.is_current(evaluator, state)

    def _record(self, evaluation: Evaluation) -> None:
        """Add an evaluation; two after one batch are one."""
        if self._curve and self._curve[-1].batch == evaluation.batch:
            before = self._curve.pop()
            evaluation = attrs.evolve(before, metrics={**before.metrics, **evaluation.metrics})
        self._curve.append(evaluation)
        for name in self.metrics or evaluation.metrics:
            value = evaluation.metrics.get(name, 0.0)
            if not math.isfinite(value):
                self.diverged = f"{name} is {value} after batch {evaluation.batch}"
                return

    # --- the measurements ---

    @property
    def batches(self) -> int:
        """The number of batches."""
        return self._batches

    @property
    def warmup(self) -> float:
        """The seconds that the first steps took beyond the cost of those that follow."""
        first = self._marks.get(_WARMUP_STEPS)
        last = self._marks.get(_WARMUP_STEPS + _COMPARED_STEPS)
        if first is None or last is None:  # too short to tell
            return 0.0
        return max(0.0, first - _WARMUP_STEPS * (last - first) / _COMPARED_STEPS)

    def curve(self) -> tuple[Evaluation, ...]:
        """Return the evaluations, their seconds without the warm-up."""
        return tuple(
            attrs.evolve(one, seconds=max(0.0, one.seconds - self._warmup_until(one.batch)))
            for one in self._curve
        )

    def _warmup_until(self, batch: int) -> float:
        return self.warmup * min(batch, _WARMUP_STEPS) / _WARMUP_STEPS

    def seconds(self) -> Seconds:
        """Return the seconds by part."""
        training = self.clock.read("training")
        return Seconds(
            setup=self.clock.read("setup"),
            warmup=self.warmup,
            training=max(0.0, training - self._warmup_until(self._batches)),
            evaluation=self.clock.read("evaluation"),
        )
