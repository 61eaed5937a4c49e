"""Laws of the analysis of a comparison, of the costs of its steps, and of its file."""

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import composable
from composable.comparison.analysis import analyze
from composable.comparison.cost import TimedBlock, step_cost
from composable.comparison.records import (
    Evaluation,
    Protocol,
    Seconds,
    StepCost,
    Study,
    Trial,
    TrialResult,
)
from composable.comparison.study_file import InvalidRecordError, format_study, parse_study
from composable.comparison.verdict import Analysis, Verdict
from tests.comparison.known_answers import (
    ANSWERS,
    BY_DATA,
    NOISE,
    THREE,
    Answer,
    answer,
    build_wide,
    rates,
    tuned,
)
from tests.comparison.synthetic import draw_data_study, draw_study, edit
from tests.support.campaign import FULL
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
    mirrored = edit(study, negated, protocol=attrs.evolve(protocol, mode="max", target=target))
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


positive = st.floats(1e-6, 1e3)


@st.composite
def costs(draw):
    points = sorted(draw(st.sets(st.integers(0, 100), min_size=1, max_size=6)))
    rounds = st.lists(positive, min_size=1, max_size=5)
    seconds = draw(st.lists(rounds, min_size=len(points), max_size=len(points)))
    return StepCost("plain", "1ep", tuple(one / 100 for one in points), tuple(map(tuple, seconds)))


@given(costs(), st.integers(1, 1000))
def test_the_seconds_of_a_run_are_within_the_bounds_of_its_steps(cost, batches):
    seconds, steps = cost.run_seconds(batches), cost.step_seconds

    assert batches * min(steps) <= seconds * (1 + 1e-6)
    assert seconds <= batches * max(steps) * (1 + 1e-6)
    assert seconds == pytest.approx(batches * cost.run_seconds(1))


@given(st.integers(1, 60), st.integers(1, 400))
def test_the_points_of_a_cost_lie_in_the_run_and_have_as_many_rounds(count, length):
    blocks = [TimedBlock(at * length, (at + 1) * length, 1.0) for at in range(count)]
    cost = step_cost(Trial("plain", {}, "1ep", 0, "reporting"), blocks, count * length)

    assert len(cost.progress) == min(5, count)
    assert list(cost.progress) == sorted(cost.progress)
    assert all(0 <= point <= 1 for point in cost.progress)
    assert {len(rounds) for rounds in cost.seconds} == {count // len(cost.progress)}
    assert cost.run_seconds(100) == pytest.approx(100)


NAMES = st.sampled_from(["baseline", "EMA + MixUp", "ä\ud800\n", "a/a"])
DURATIONS = st.sampled_from(["10ba", "2ep", "0.5dur", "1h30m"])
SECONDS = st.floats(min_value=0) | st.just(float("nan"))
POINTS = st.lists(st.floats(0, 1), min_size=1, max_size=3).map(sorted).map(tuple)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=5)
PLAIN: st.SearchStrategy[Any] = SCALARS | st.lists(SCALARS) | st.dictionaries(st.text(), SCALARS)
SETTINGS = st.dictionaries(st.text(max_size=4), SCALARS, max_size=2)
TRIALS = st.builds(
    Trial, NAMES, SETTINGS, DURATIONS, st.integers(), st.sampled_from(["tuning", "reporting"])
)


@st.composite
def results(draw: st.DrawFn) -> TrialResult:
    batches = sorted(draw(st.lists(st.integers(0), max_size=3)))
    metrics = st.dictionaries(st.text(max_size=4), st.floats(), max_size=2)
    curve = [Evaluation(batch, draw(metrics)) for batch in batches]
    return TrialResult(
        draw(TRIALS),
        draw(st.sampled_from(["finished", "diverged", "failed", "stopped"])),
        draw(st.integers(0)),
        Seconds(*draw(st.tuples(*[SECONDS] * 4))),
        tuple(curve),
        draw(st.none() | st.text(max_size=5)),
    )


@st.composite
def drawn_costs(draw: st.DrawFn) -> StepCost:
    progress = draw(POINTS)
    rounds = st.lists(SECONDS, min_size=1, max_size=3).map(tuple)
    seconds = tuple(draw(rounds) for _ in progress)
    return StepCost(draw(NAMES), draw(DURATIONS), progress, seconds)


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


PROTOCOLS = st.builds(
    Protocol,
    arms=st.just(("baseline", "EMA + MixUp", "ä\ud800\n")),
    baseline=st.just("baseline"),
    repeated=st.just("a/a"),
    metric=st.text(max_size=5),
    tuning_metric=st.text(max_size=5),
    mode=st.sampled_from(["min", "max"]),
    target=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    durations=tuples(DURATIONS),
    seeds=tuples(st.integers()),
    tuning_seeds=tuples(st.integers()),
    grids=st.dictionaries(NAMES, st.dictionaries(st.text(max_size=4), tuples(SCALARS), max_size=2)),
    chosen=st.dictionaries(NAMES, SETTINGS),
    clock=st.sampled_from(["cpu", "wall"]),
    versions=st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    notes=tuples(st.text(max_size=5)),
    own_durations=st.dictionaries(NAMES, st.lists(DURATIONS, min_size=1, max_size=3).map(tuple)),
)
STUDIES = st.builds(Study, PROTOCOLS, tuples(results()), tuples(drawn_costs()))


@given(STUDIES)
def test_a_study_is_read_back_as_it_was_written(study: Study) -> None:
    text = format_study(study)
    back = parse_study(text)
    assert repr(back) == repr(study)  # NaN is not equal to itself
    assert format_study(back) == text


@given(STUDIES, st.data())
def test_a_file_with_another_value_anywhere_is_refused_or_another_study(
    study: Study, data: st.DataObject
) -> None:
    content = json.loads(format_study(study))
    place, key = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(place[key], (dict, list)) and len(place[key]) and data.draw(st.booleans()):
        place = place[key]
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
    place[key] = data.draw(PLAIN)
    with suppress(InvalidRecordError):
        back = parse_study(json.dumps(content))
        assert repr(parse_study(format_study(back))) == repr(back)


KNOWN = ANSWERS | {f"by data: {name}": known for name, known in BY_DATA.items()}
COUNT = 2000 if FULL else 12
COVERAGE, WRONG, FOUND = 0.94, 0.04, 0.95
# The variance of processes is pooled unless it is larger in an arm, which few processes may hide.
LOWER_COVERAGE = {"a baseline whose processes differ by 8 % instead of 2 %": 0.925}


def at_most(rate: float, bound: float) -> bool:
    """Whether a rate is below a bound; of few studies, whether this is credible (1 in 1,000)."""
    if FULL:
        return rate <= bound
    return bool(round(rate * COUNT) <= stats.binom.ppf(0.999, COUNT, bound))


@pytest.mark.parametrize("name", KNOWN)
def test_intervals_and_verdicts_are_right(name: str) -> None:
    known = KNOWN[name]
    found = rates(known, COUNT)
    print(f"{name}: covered {found.covered:.3f}, pays {found.pays:.3f}, costs {found.costs:.3f}")
    assert at_most(1 - found.covered, 1 - LOWER_COVERAGE.get(name, COVERAGE))
    if known.speedup <= 1:
        assert at_most(found.pays, WRONG)
    if known.speedup >= 1:
        assert at_most(found.costs, WRONG)
    if "step cost" in name:
        assert at_most(1 - found.pays, 1 - FOUND)


def test_eight_arms_without_a_speed_up_rarely_show_one() -> None:
    arms = dict.fromkeys("abcdefgh", 1.0)
    wrong = {Verdict.PAYS: 0, Verdict.COSTS: 0}
    for seed in range(COUNT // 4):
        found = analyze(draw_study(seed, arms, steps=THREE, shared=NOISE, own=NOISE))
        for verdict in wrong:
            wrong[verdict] += any(arm.verdict is verdict for arm in found.arms)
    print(f"eight nulls: {wrong}")
    assert all(count <= stats.binom.ppf(0.999, COUNT // 4, WRONG) for count in wrong.values())


def test_other_rates_are_reported() -> None:
    reported = {f"3 seeds, {one}": answer(*one, seeds=3) for one in ((1, 1), (1, 0.5), (1.3, 2))}
    for trials in (1, 2, 4):
        draw = partial(tuned, trials=trials)
        reported[f"settings chosen with {trials} seeds, whose speeds differ"] = Answer(1.0, draw)
    for name, known in reported.items():
        found = rates(known, max(5, COUNT // 4))
        print(f"{name}: {found}")
        assert found.covered > 0.7


@pytest.mark.campaign  # it measures the costs of steps, and so must run long
def test_an_arm_whose_forward_pass_is_doubled_costs(tmp_path: Path) -> None:
    found = composable.compare(
        build_wide,
        {"two passes": []},
        metric="test/loss",
        tune={"baseline": {"passes": [1]}, "two passes": {"passes": [2]}},
        workers=2,
        folder=tmp_path,
        progress_bar=False,
    )
    arm = found.analysis["two passes"]
    assert arm.verdict is Verdict.COSTS
    assert arm.covered == 1
    assert arm.speedup is not None
    assert arm.step_cost_ratio is not None
    assert 1.6 < (arm.step_cost_ratio.value or 0) < 2.4
    assert (arm.speedup.value or 0) * (arm.step_cost_ratio.value or 0) == pytest.approx(1)
