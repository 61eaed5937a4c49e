"""Train the trials of a comparison, until its budget ends."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from composable.comparison.plan.design import Design
from composable.comparison.plan.progress import Progress
from composable.comparison.records import Trial, TrialResult
from composable.comparison.trials.trial import Request

__all__ = ["Runner"]


class Runner:
    """Trains trials, and keeps the time of the budget.

    Args:
        design: The arms of the trials.
        run: Trains trials, and yields results: those of finished trials first, while it still
            takes trials, and then the others as they complete.
        progress: Counts the trials.
        now: A clock in seconds.
    """

    def __init__(
        self,
        design: Design,
        run: Callable[[Iterator[Request]], Iterator[TrialResult]],
        progress: Progress,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.design, self.progress = design, progress
        self._run, self._now, self._begun = run, now, now()

    def spent(self) -> float:
        """Return the seconds since the start, as a fraction of the budget; 0 without one."""
        if self.design.budget is None:
            return 0.0
        return (self._now() - self._begun) / self.design.budget

    def train(
        self, what: str, trials: Sequence[Trial], later: Sequence[Trial], until: float = 1.0
    ) -> list[TrialResult | None]:
        """Train trials, and return their results; None for those that were not run.

        Args:
            what: What they are for.
            trials: The trials, which start in this order.
            later: The trials that are planned after them, for the progress.
            until: The fraction of the budget after which no trial starts.
        """
        self.progress.start(what, [*trials, *later])
        found: dict[str, TrialResult] = {}
        taking = True

        def requests() -> Iterator[Request]:
            nonlocal taking
            for trial in trials:
                yield self.design.request(trial)
            taking = False

        results = self._run(requests())
        for result in results:
            found[_key(result.trial)] = result
            self.progress.finish(result, cached=taking)
            if not taking and self.spent() > until:
                break
        if hasattr(results, "close"):
            results.close()
        return [found.get(_key(trial)) for trial in trials]


def _key(trial: Trial) -> str:
    """Return what identifies a trial: settings may be values that cannot be hashed."""
    settings: list[Any] = sorted(trial.settings.items())
    return repr((trial.arm, settings, trial.duration, trial.seed, trial.purpose))
