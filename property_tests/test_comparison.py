"""Laws of the analysis of a comparison."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable.comparison.analysis import analyze
from composable.comparison.records import Evaluation, StepCost, Study, TrialResult
from composable.comparison.verdict import Analysis
from tests.comparison.synthetic import draw_data_study, draw_study
from tests.support.strategies import fewer


@st.composite
def studies(draw: Any) -> Study:
    if draw(st.booleans()):
        return draw_data_study(
            draw(st.integers(0, 10_000)),
            {"one": draw(st.sampled_from([0.5, 1.0, 3.0])), "two": 1.2},
            seeds=draw(st.integers(2, 4)),
            target=draw(st.sampled_from([None, 2.4, 2.6])),
        )
    return draw_study(
        draw(st.integers(0, 10_000)),
        {"one": draw(st.sampled_from([0.5, 1.0, 1.5, 3.0])), "two": 1.2},
        seeds=draw(st.integers(2, 4)),
        steps=draw(st.sampled_from([(400,), (100, 400), (100, 200, 400)])),
        target=draw(st.sampled_from([None, 2.4, 2.6])),
    )


def edit(study: Study, change: Callable[[TrialResult], TrialResult]) -> Study:
    return attrs.evolve(study, results=tuple(map(change, study.results)))


def facts(found: Analysis) -> list[Any]:
    """Return what does not depend on units, orientation or the names of seeds."""
    rows = []
    for arm in found.arms:
        ratios = [arm.speedup, arm.step_cost_ratio, *(point.speedup for point in arm.at_results)]
        numbers = [
            pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
            for ratio in ratios
            if ratio is not None
            for value in (ratio.value, ratio.low, ratio.high, ratio.seeds)
        ]
        rows.append([arm.arm, arm.verdict, arm.needs, numbers])
    return rows


@fewer
@given(studies(), st.randoms(use_true_random=False))
def test_the_order_of_the_results_is_irrelevant(study: Study, rng: Any) -> None:
    results = list(study.results)
    rng.shuffle(results)
    shuffled = attrs.evolve(study, results=tuple(results))
    assert analyze(shuffled) == analyze(study)


@fewer
@given(studies(), st.floats(0.01, 100.0))
def test_a_slower_clock_changes_no_ratio(study: Study, scale: float) -> None:
    def slower(cost: StepCost) -> StepCost:
        seconds = tuple(tuple(scale * one for one in rounds) for rounds in cost.seconds)
        return attrs.evolve(cost, seconds=seconds)

    scaled = attrs.evolve(study, costs=tuple(map(slower, study.costs)))
    assert facts(analyze(scaled)) == facts(analyze(study))


@fewer
@given(studies())
def test_the_negated_metric_to_maximize_gives_the_same_ratios(study: Study) -> None:
    def negated(result: TrialResult) -> TrialResult:
        def flip(one: Evaluation) -> Evaluation:
            return attrs.evolve(one, metrics={name: -v for name, v in one.metrics.items()})

        return attrs.evolve(result, curve=tuple(map(flip, result.curve)))

    protocol = study.protocol
    target = None if protocol.target is None else -protocol.target
    mirrored = attrs.evolve(
        edit(study, negated), protocol=attrs.evolve(protocol, mode="max", target=target)
    )
    assert facts(analyze(mirrored)) == facts(analyze(study))


@fewer
@given(studies(), st.permutations(range(4)))
def test_the_labels_of_the_seeds_are_irrelevant(study: Study, labels: list[int]) -> None:
    def relabelled(result: TrialResult) -> TrialResult:
        return attrs.evolve(
            result, trial=attrs.evolve(result.trial, seed=labels[result.trial.seed])
        )

    assert facts(analyze(edit(study, relabelled))) == facts(analyze(study))


@fewer
@given(studies(), st.floats(-9, 9))
def test_tuning_trials_change_nothing(study: Study, loss: float) -> None:
    def tuning(result: TrialResult) -> TrialResult:
        metrics = {name: loss for one in result.curve for name in one.metrics}
        curve = tuple(attrs.evolve(one, metrics=metrics) for one in result.curve)
        trial = attrs.evolve(result.trial, purpose="tuning")
        return attrs.evolve(result, trial=trial, curve=curve)

    more = attrs.evolve(study, results=edit(study, tuning).results + study.results)
    assert analyze(more) == analyze(study)
