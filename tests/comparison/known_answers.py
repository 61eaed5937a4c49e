"""Simulated studies whose speed-ups are known, and how often the analysis finds them."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from composable import Algorithm, Evaluator, Trainer
from composable.comparison.analysis import analyze
from composable.comparison.records import Study
from composable.comparison.verdict import Verdict

from .small import clouds
from .synthetic import draw_data_study, draw_study, loss_after

THREE, TWO = (100, 200, 400), (100, 400)
NOISE = 0.1 * (loss_after(100) - loss_after(400)) / 2**0.5
"""Of the seeds that arms share, and of each run: together a tenth of the baseline's range."""


QUIET = {"shared": NOISE / 20, "own": NOISE / 20, "cost_noise": 0.005, "seeds": 3}


class Answer(NamedTuple):
    """Studies with one arm, and its speed-up."""

    speedup: float
    draw: Callable[[int], Study]


class Rates(NamedTuple):
    """The shares of studies with a result."""

    covered: float
    """The interval has the speed-up, of those with an interval."""
    verdicts: Mapping[Verdict | None, float]

    @property
    def pays(self) -> float:
        return self.verdicts.get(Verdict.PAYS, 0.0)

    @property
    def costs(self) -> float:
        return self.verdicts.get(Verdict.COSTS, 0.0)


def answer(
    speed: float, cost: float, steps: Sequence[int] = THREE, others: int = 0, **changes: Any
) -> Answer:
    """Return studies of an arm whose steps are worth `speed` of the baseline's, at `cost`.

    The other arms are equal to the baseline.
    """
    settings = {"shared": NOISE, "own": NOISE, "step_costs": {"arm": 0.01 * cost}, **changes}
    speeds = {**{f"{at}": 1.0 for at in range(others)}, "arm": speed}
    return Answer(speed / cost, lambda seed: draw_study(seed, speeds, steps=steps, **settings))


def tuned(seed: int, *, trials: int) -> Study:
    """Draw a study of equal arms, whose settings are chosen by noisy tuning trials."""
    rng = random.Random(-seed)

    def chosen() -> float:
        speeds = (1.0, 0.95, 0.9)
        losses = [loss_after(400, one) + rng.gauss(0, NOISE / trials**0.5) for one in speeds]
        return speeds[losses.index(min(losses))]

    return draw_study(seed, {"arm": chosen() / chosen()}, steps=THREE, shared=NOISE, own=NOISE)


ANSWERS: dict[str, Answer] = {
    "the baseline": answer(1, 1),
    "the baseline with other seeds": answer(1, 1, repeated="arm"),
    "half the step cost": answer(1, 1 / 2),
    "a third of the step cost": answer(1, 1 / 3),
    "half the step cost, two schedules": answer(1, 1 / 2, TWO),
    "twice as good a step": answer(2, 1),
    "2x better a step at 2x the cost": answer(2, 2),
    "2x better a step at 2x the cost, two schedules": answer(2, 2, TWO),
    "1.3x better a step at 2x the cost": answer(1.3, 2),
    "2x, on schedules of its own": answer(8, 4, own_steps={"arm": (12, 25, 50)}),
    "no speed-up, on schedules of its own": answer(4, 4, own_steps={"arm": (20, 40, 80)}),
    "no speed-up, at a given target": answer(1, 1, target=loss_after(220)),
    "1.5x, at a given target": answer(1.5, 1, target=loss_after(220)),
    "steps measured with 5 % of noise": answer(1, 1, cost_noise=0.05),
    "processes that differ by 5 %": answer(1, 1, process_noise=0.05),
    "processes that differ by 5 %, little other noise": answer(
        2, 2, process_noise=0.05, cost_noise=0.005, shared=NOISE / 20, own=NOISE / 20
    ),
    "little noise": answer(2, 2, TWO, shared=NOISE / 20, own=NOISE / 20),
    "one of nine arms whose processes differ by 15 % instead of 2 %": answer(
        1, 1, TWO, 7, process_noise={"arm": 0.15}, **QUIET
    ),
    "a baseline whose processes differ by 8 % instead of 2 %": answer(
        1, 1, TWO, 7, process_noise={"plain": 0.08}, **QUIET
    ),
    "an arm with five times the noise": answer(1, 1, own={"plain": NOISE, "arm": 5 * NOISE}),
    "noise of seeds that all schedules share": answer(1, 1, of_seed=NOISE),
    "noise with heavy tails": answer(1, 1, heavy=True),
    "2x, noise with heavy tails": answer(2, 1, heavy=True),
    "the baseline, beside an A/A arm": answer(1, 1, others=1, repeated="0"),
    "half the step cost, beside an A/A arm": answer(1, 1 / 2, others=1, repeated="0"),
}


def by_data(worth: float, **changes: Any) -> Answer:
    """Return studies of an arm that needs so much less data."""
    settings = {"shared": NOISE, "own": NOISE, "chance": NOISE, **changes}
    return Answer(worth, lambda seed: draw_data_study(seed, {"arm": worth}, **settings))


BY_DATA: dict[str, Answer] = {
    "the baseline": by_data(1),
    "the baseline with other seeds": by_data(1, repeated="arm"),
    "1.3 times the data": by_data(1.3),
    "twice the data": by_data(2),
    "twice the data, 20 seeds": by_data(2, seeds=20),
    "twice the data, two amounts": by_data(2, amounts=(100, 900)),
    "half the data": by_data(0.5),
    "no more data, at a given target": by_data(1, target=loss_after(320)),
    "1.5 times the data, at a given target": by_data(1.5, target=loss_after(320)),
    "no more data, 20 seeds and much chance": by_data(1, seeds=20, chance=3 * NOISE),
}


def rates(one: Answer, studies: int, first: int = 0) -> Rates:
    """Analyze some studies."""
    covered, verdicts = [], Counter[Verdict | None]()
    for seed in range(first, first + studies):
        found = analyze(one.draw(seed))["arm"]
        verdicts[_verdict(found)] += 1
        if found.speedup is not None:
            low, high = found.speedup.low or 0.0, found.speedup.high or float("inf")
            covered.append(low <= one.speedup <= high)
    shares = {verdict: count / studies for verdict, count in verdicts.items()}
    return Rates(sum(covered) / len(covered), shares)


def _verdict(found: Any) -> Verdict | None:
    """Return the verdict; of the A/A arm that of its interval."""
    if found.role == "arm" or found.speedup is None:
        return found.verdict
    if (found.speedup.low or 0) > 1:
        return Verdict.PAYS
    return Verdict.COSTS if (found.speedup.high or 2) < 1 else Verdict.NO_EVIDENCE


class Passes(nn.Module):
    """Computes the outputs of a model some times, and returns their mean."""

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__()
        self.model, self.count = model, count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.model(x) for _ in range(self.count)]).mean(dim=0)


def build_wide(algorithms: Sequence[Algorithm], seed: int, passes: int = 1) -> Trainer:
    """Return a Trainer whose forward and backward passes cost more than everything around them."""
    model = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 2))
    batches = [(x.repeat(16, 1), y.repeat(16)) for x, y in clouds(0)]
    return Trainer(
        Passes(model, passes),
        train_dataloader=batches,
        eval_dataloader=[
            Evaluator(name, clouds(i, 2)) for i, name in ((1, "validation"), (2, "test"))
        ],
        loss_fn=nn.functional.cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=0.001),
        max_duration="4ep",
        algorithms=algorithms,
        seed=seed,
    )
