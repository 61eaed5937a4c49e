"""The epoch at which a run is best on the data that choose, so that it may be stopped there."""

from collections.abc import Sequence
from math import isfinite, nan

import attrs

from composable.comparison.records import Protocol, TrialResult

__all__ = ["stop_at_best"]


def stop_at_best(protocol: Protocol, runs: Sequence[TrialResult]) -> TrialResult:
    """Return the best of the runs of a seed, up to its best evaluation by the metric of tuning.

    If time is compared, the only run is returned. Of equal evaluations the earliest is kept.
    Without one that has both metrics, the first run is returned without its evaluations.
    """
    if not protocol.data_amounts:
        return runs[0]
    sign = 1 if (protocol.tuning_mode or protocol.mode) == "max" else -1
    best, stopped = -float("inf"), attrs.evolve(runs[0], curve=())
    for run in sorted(runs, key=lambda one: one.batches):
        for at, one in enumerate(run.curve if run.outcome == "finished" else ()):
            score = sign * one.metrics.get(protocol.tuning_metric, nan)
            if score > best and isfinite(one.metrics.get(protocol.metric, nan)):
                training = run.seconds.training * one.batch / max(run.batches, 1)
                seconds = attrs.evolve(run.seconds, training=training)
                best, curve = score, run.curve[: at + 1]
                stopped = attrs.evolve(run, batches=one.batch, seconds=seconds, curve=curve)
    return stopped
