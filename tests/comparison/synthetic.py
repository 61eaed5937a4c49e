"""Studies whose truth is known: power-law and exponential learning curves with noise by seed."""

import random
from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import Any

import attrs

from composable.comparison.records import (
    Evaluation,
    Protocol,
    Seconds,
    StepCost,
    Study,
    Trial,
    TrialResult,
)

METRIC = "test/loss"
STEPS = (100, 200, 400, 800)
PROCESSES = 4
AMOUNTS, EPOCHS = (100, 300, 900), (40, 80)


def edit(study: Study, change: Callable[[TrialResult], TrialResult], **changes: Any) -> Study:
    """Return a study with other results, and other fields."""
    return attrs.evolve(study, results=tuple(map(change, study.results)), **changes)


def with_settings(result: TrialResult, **settings: Any) -> TrialResult:
    """Return a result of a trial with these settings."""
    return attrs.evolve(result, trial=attrs.evolve(result.trial, settings=settings))


def loss_after(steps: float, speed: float = 1.0) -> float:
    """Return the true mean final loss of a schedule."""
    return 2.0 + 8.0 * (speed * steps) ** -0.5


def draw_study(  # noqa: PLR0913
    seed: int,
    speeds: Mapping[str, float],
    *,
    seeds: int = 5,
    steps: Sequence[int] = STEPS,
    target: float | None = None,
    shared: float = 0.02,
    own: float | Mapping[str, float] = 0.02,
    of_seed: float = 0.0,
    heavy: bool = False,
    step_costs: Mapping[str, float] | None = None,
    cost_noise: float = 0.02,
    process_noise: float | Mapping[str, float] = 0.02,
    repeated: str | None = None,
    own_steps: Mapping[str, Sequence[int]] | None = None,
) -> Study:
    """Draw a study whose arm named "plain" is the baseline, of speed 1.

    Args:
        seed: Of the noise.
        speeds: By arm: an arm of speed 2 needs half the steps.
        seeds: The number of reporting seeds.
        steps: The schedules.
        target: As in `Protocol`.
        shared: The standard deviation of the noise that the arms of one seed share.
        own: That of the noise of each run, of all arms or by arm, where 0.02 is the default.
        of_seed: That of the noise of a seed and arm, which all schedules share.
        heavy: Draw the noise of runs from a t distribution of 3 degrees of freedom.
        step_costs: The seconds of a step, by arm; 0.01 if not given.
        cost_noise: The relative noise of each measured step.
        process_noise: That of each process that measures steps, as `own`.
        repeated: The A/A arm, whose seeds are others.
        own_steps: The schedules of arms that have others than `steps`.
    """
    rng, own_steps = random.Random(seed), own_steps or {}
    arms = ("plain", *speeds)
    costs = {arm: (step_costs or {}).get(arm, 0.01) for arm in arms}
    paired = {(one, s): rng.gauss(0, shared) for one in steps for s in range(seeds)}
    extra = sorted({one for each in own_steps.values() for one in each} - set(steps))
    paired |= {(one, s): rng.gauss(0, shared) for one in extra for s in range(seeds)}
    results = []
    for arm in arms:
        speed, scale = speeds.get(arm, 1.0), _of_arm(own, arm)
        lasting = [rng.gauss(0, of_seed) if of_seed else 0.0 for _ in range(seeds)]
        for length in own_steps.get(arm, steps):
            for s in range(seeds):
                common = rng.gauss(0, shared) if arm == repeated else paired[length, s]
                noise = common + lasting[s] + rng.gauss(0, scale) / (_tail(rng) if heavy else 1.0)
                trial_seed = 100 + s if arm == repeated else s
                trial = Trial(arm, {}, f"{length}ba", trial_seed, "reporting")
                results.append(finished(trial, length, speed, noise, costs[arm]))
    longest = {arm: f"{own_steps.get(arm, steps)[-1]}ba" for arm in arms}
    cost = [
        calibrated(arm, longest[arm], costs[arm], (_of_arm(process_noise, arm), cost_noise), rng)
        for arm in arms
    ]
    own = {arm: tuple(f"{one}ba" for one in each) for arm, each in own_steps.items()}
    made = protocol(arms, steps, seeds, target, repeated, own_durations=own)
    return Study(made, tuple(results), tuple(cost))


def _of_arm(noise: float | Mapping[str, float], arm: str) -> float:
    return noise.get(arm, 0.02) if isinstance(noise, Mapping) else noise


def _tail(rng: random.Random) -> float:
    """Return what a normal number is divided by, to be one of a t distribution of variance 1."""
    return (3 * rng.gammavariate(1.5, 2 / 3)) ** 0.5


def draw_data_study(  # noqa: PLR0913
    seed: int,
    speeds: Mapping[str, float],
    *,
    seeds: int = 5,
    amounts: Sequence[float] = AMOUNTS,
    target: float | None = None,
    shared: float = 0.02,
    own: float = 0.02,
    chance: float = 0.02,
    repeated: str | None = None,
) -> Study:
    """Draw a study by amounts of data, whose runs overfit: an arm of speed 2 needs half of them.

    The noise is as in `draw_study`, and `chance` that of each evaluation, on the data that choose
    the epoch and on the test data alike.
    """
    rng, arms, results = random.Random(seed), ("plain", *speeds), []
    paired = {(one, s): rng.gauss(0, shared) for one in amounts for s in range(seeds)}
    for arm in arms:
        for amount in amounts:
            for s in range(seeds):
                common = rng.gauss(0, shared) if arm == repeated else paired[amount, s]
                for length in EPOCHS:
                    trial_seed = 100 + s if arm == repeated else s
                    settings = {"data_amount": amount}
                    trial = Trial(arm, settings, f"{length}ba", trial_seed, "reporting")
                    level = loss_after(amount, speeds.get(arm, 1.0)) + common + rng.gauss(0, own)
                    results.append(overfitted(trial, length, level, chance, rng))
    lengths = {"data_amounts": tuple(amounts), "grids": {arm: {} for arm in arms}}
    made = protocol(arms, EPOCHS, seeds, target, repeated, **lengths)
    return Study(made, tuple(results), ())


def overfitted(
    trial: Trial, length: int, level: float, chance: float, rng: random.Random
) -> TrialResult:
    """Return a run that is at its best level at a point of its own, and worse before and after."""
    best = rng.uniform(0.3, 0.9)
    curve = []
    for part in (0.2, 0.4, 0.6, 0.8, 1.0):
        loss = level + 0.2 * (part - best) ** 2
        found = {name: loss + rng.gauss(0, chance) for name in ("validation/loss", METRIC)}
        curve.append(Evaluation(round(length * part), found))
    return TrialResult(trial, "finished", length, Seconds(1.0, 0.5, length, 0.2), tuple(curve))


def finished(trial: Trial, length: int, speed: float, noise: float, cost: float) -> TrialResult:
    curve = tuple(
        Evaluation(round(length * part), {METRIC: loss_after(length * part, speed) + noise})
        for part in (0.2, 0.4, 0.6, 0.8, 1.0)
    )
    seconds = Seconds(1.0, 0.5, length * cost, 0.2)
    return TrialResult(trial, "finished", length, seconds, curve)


def calibrated(
    arm: str, duration: str, cost: float, noises: tuple[float, float], rng: random.Random
) -> StepCost:
    processes = [cost * exp(rng.gauss(0, noises[0])) for _ in range(PROCESSES)]
    rounds = [
        tuple(one * (1 + noises[1] * rng.expovariate(1)) for one in processes for _ in range(3))
        for _ in range(2)
    ]
    return StepCost(arm, duration, (0.25, 0.75), tuple(rounds), PROCESSES)


def protocol(
    arms: Sequence[str],
    steps: Sequence[int],
    seeds: int,
    target: float | None,
    repeated: str | None = None,
    **changes: Any,
) -> Protocol:
    values: dict[str, Any] = {
        "arms": tuple(arms),
        "baseline": "plain",
        "repeated": repeated,
        "metric": METRIC,
        "tuning_metric": "validation/loss",
        "mode": "min",
        "target": target,
        "durations": tuple(f"{one}ba" for one in steps),
        "seeds": tuple(range(seeds)),
        "tuning_seeds": (1000,),
        "grids": {},
        "chosen": {arm: {} for arm in arms},
        "clock": "cpu",
        "versions": {},
    }
    return Protocol(**(values | changes))


# --- exponential learning curves, of studies that are shown

SEED_NOISE = 0.004
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
    metric = "accuracy" if mode == "max" else "loss"
    made = protocol(
        tuple(every),
        batches,
        seeds,
        target,
        repeated,
        baseline=baseline,
        metric=f"test/{metric}",
        tuning_metric=f"validation/{metric}",
        mode=mode,
        tuning_seeds=(1000,) if tuned else (),
        grids=dict.fromkeys(speedups, grid),
        chosen=chosen,
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
    return Study(made, tuple(results), costs)


def _run(trial: Trial, speedup: float, mode: str) -> TrialResult:
    total = int(trial.duration.removesuffix("ba"))
    # A paired seed: the offset of a seed is the same in all arms.
    offset = random.Random(trial.seed).gauss(0, SEED_NOISE)
    random_ = random.Random(f"{trial}")
    curve = []
    for i in range(1, EVALUATIONS + 1):
        batch = round(total * i / EVALUATIONS)
        error = 0.04 + 0.6 * exp(-speedup * batch / 90)
        error += 0.1 * (1 - i / EVALUATIONS)  # a schedule that ends helps
        error += offset + random_.gauss(0, SEED_NOISE / 2)
        value = 1 - error if mode == "max" else 3 * error
        name = "accuracy" if mode == "max" else "loss"
        metrics = {f"test/{name}": value, f"validation/{name}": value}
        curve.append(Evaluation(batch, metrics))
    seconds = Seconds(0.31, 0.12, total * STEP, 0.05 * EVALUATIONS)
    return TrialResult(trial, "finished", total, seconds, tuple(curve))


def _failed(trial: Trial) -> TrialResult:
    nothing = Seconds(0.3, 0.0, 0.0, 0.0)
    return TrialResult(trial, "failed", 0, nothing, (), "RuntimeError: expected 3 channels, got 1")
