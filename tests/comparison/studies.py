"""Synthetic studies: exponential learning curves with a known speed-up for each arm."""

import math
import random
from typing import Any

from composable.comparison.records import (
    Evaluation,
    Protocol,
    Seconds,
    StepCost,
    Study,
    Trial,
    TrialResult,
)

NOISE = 0.004
STEP = 0.02  # seconds
EVALUATIONS = 10


def make_study(  # noqa: PLR0913 (the parts of a study)
    speedups: dict[str, float] | None = None,
    *,
    seeds: int = 5,
    target: float | None = None,
    mode: str = "max",
    failing: dict[str, int] | None = None,
    repeated: str | None = "baseline again",
    tuned: bool = True,
    batches: tuple[int, ...] = (75, 150, 300),
    step: float = STEP,
    own_batches: dict[str, tuple[int, ...]] | None = None,
) -> Study:
    """Return a study in which an arm learns as fast as its speed-up says.

    Args:
        speedups: By arm, the baseline first.
        seeds: The number of reporting seeds.
        target: The target; None for the baseline's final result.
        mode: Whether the metric is an accuracy ("max") or an error ("min").
        failing: By arm, how many of its runs fail.
        repeated: The name of the A/A arm.
        tuned: Whether there are tuning trials.
        batches: The batches of the schedules.
        step: The calibrated seconds of a step.
        own_batches: Those of arms that have others.
    """
    own_batches = own_batches or {}
    speedups = speedups or {"baseline": 1.0, "MuonClip": 2.0}
    baseline = next(iter(speedups))
    every = {**speedups, **({repeated: 1.0} if repeated else {})}
    grid: dict[str, tuple[Any, ...]] = {"lr": (1e-3, 2e-3, 4e-3)} if tuned else {}
    chosen = {arm: ({"lr": 2e-3} if tuned else {}) for arm in every}
    results: list[TrialResult] = []
    for arm, speedup in every.items():
        if tuned and arm != repeated:
            for lr in grid["lr"]:
                trial = Trial(arm, {"lr": lr}, f"{batches[0]}ba", 1000, "tuning")
                slower = speedup * (1.0 if lr == 2e-3 else 0.8)
                results.append(_run(trial, slower, mode))
        for count in own_batches.get(arm, batches):
            for seed in range(seeds):
                shown = seed + (100 if arm == repeated else 0)
                trial = Trial(arm, chosen[arm], f"{count}ba", shown, "reporting")
                if seed < (failing or {}).get(arm, 0):
                    results.append(_failed(trial))
                else:
                    results.append(_run(trial, speedup, mode))
    protocol = Protocol(
        arms=tuple(every),
        baseline=baseline,
        repeated=repeated,
        metric="test/accuracy" if mode == "max" else "test/loss",
        tuning_metric="validation/accuracy" if mode == "max" else "validation/loss",
        mode="max" if mode == "max" else "min",
        target=target,
        durations=tuple(f"{count}ba" for count in batches),
        seeds=tuple(range(seeds)),
        tuning_seeds=(1000,) if tuned else (),
        grids=dict.fromkeys(speedups, grid),
        chosen=chosen,
        clock="cpu",
        versions={"python": "3.12.1", "torch": "2.9.0", "composable": "0.1.0", "device": "cpu"},
        own_durations={
            arm: tuple(f"{count}ba" for count in counts) for arm, counts in own_batches.items()
        },
    )
    costs = tuple(
        StepCost(
            arm,
            f"{own_batches.get(arm, batches)[-1]}ba",
            (0.0, 0.5, 1.0),
            tuple(tuple(step * (1 + 0.01 * r) for r in range(4)) for _ in range(3)),
        )
        for arm in every
    )
    return Study(protocol, tuple(results), costs)


def _run(trial: Trial, speedup: float, mode: str) -> TrialResult:
    total = int(trial.duration.removesuffix("ba"))
    # A paired seed: the offset of a seed is the same in all arms.
    offset = random.Random(trial.seed).gauss(0, NOISE)
    random_ = random.Random(f"{trial}")
    curve = []
    for i in range(1, EVALUATIONS + 1):
        batch = round(total * i / EVALUATIONS)
        error = 0.04 + 0.6 * math.exp(-speedup * batch / 90)
        error += 0.1 * (1 - i / EVALUATIONS)  # a schedule that ends helps
        error += offset + random_.gauss(0, NOISE / 2)
        value = 1 - error if mode == "max" else 3 * error
        name = "accuracy" if mode == "max" else "loss"
        metrics = {f"test/{name}": value, f"validation/{name}": value}
        curve.append(Evaluation(batch, metrics))
    seconds = Seconds(0.31, 0.12, total * STEP, 0.05 * EVALUATIONS)
    return TrialResult(trial, "finished", total, seconds, tuple(curve))


def _failed(trial: Trial) -> TrialResult:
    nothing = Seconds(0.3, 0.0, 0.0, 0.0)
    return TrialResult(trial, "failed", 0, nothing, (), "RuntimeError: expected 3 channels, got 1")
