from math import exp
from typing import Any

import attrs
import pytest

from composable.comparison.analysis import analyze
from composable.comparison.records import StepCost, Study, TrialResult
from composable.comparison.verdict import Verdict

from .synthetic import METRIC, draw_data_study, draw_study, edit, loss_after, with_settings


def test_an_arm_of_twice_the_speed_pays_with_a_sentence() -> None:
    found = analyze(draw_study(3, {"fast": 2.0, "same": 1.0}))
    arm = found["fast"]
    assert arm.verdict is Verdict.PAYS
    assert arm.speedup.value == pytest.approx(2.0, rel=0.1)
    assert arm.why.startswith(f"at least {arm.at_least:.2f}x: {arm.speedup.value:.2f}x (")
    assert "% of the baseline's range of results, " in arm.why
    assert "after Holm's correction over 2 arms" in arm.why
    assert len(arm.at_results) == 5
    assert arm.at_results[0].result > arm.at_results[-1].result
    assert found.needed == {"fast": arm.needs}
    assert 35 <= int(arm.needs.removesuffix("ba")) <= 60


def test_cheaper_steps_pay_on_the_whole_range() -> None:
    study = draw_study(0, {"fast": 1.0}, step_costs={"fast": 0.005}, own=0.0)
    arm = analyze(study)["fast"]
    assert arm.verdict is Verdict.PAYS
    assert (arm.covered, arm.at_least, arm.needs) == (1.0, None, None)
    assert arm.step_cost_ratio.value == pytest.approx(0.5, rel=0.1)


def test_a_slow_arm_costs_and_a_dear_step_costs() -> None:
    slow = analyze(draw_study(0, {"slow": 0.4}))["slow"]
    assert slow.verdict is Verdict.COSTS
    assert slow.at_least < 1
    dear = analyze(draw_study(0, {"dear": 1.0}, step_costs={"dear": 0.03}))["dear"]
    assert dear.verdict is Verdict.COSTS
    assert dear.speedup.value == pytest.approx(1 / 3, rel=0.1)


def test_a_fast_arm_with_dear_steps_shows_no_evidence() -> None:
    arm = analyze(draw_study(0, {"even": 2.0}, step_costs={"even": 0.02}))["even"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert arm.speedup.low < 1.0 < arm.speedup.high


def test_better_results_at_dear_steps_ask_for_a_shorter_schedule() -> None:
    arm = analyze(draw_study(0, {"dear": 3.0}, step_costs={"dear": 0.016}))["dear"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert arm.speedup.low > 1
    assert "share too little of the baseline's range for a verdict; add its schedule" in arm.why


def test_a_method_that_pays_early_and_costs_late_says_where() -> None:
    study = draw_study(0, {"early": 1.0}, steps=(100, 200, 400), shared=0.002, own=0.002)

    def bent(result: TrialResult) -> TrialResult:
        if result.trial.arm != "early":
            return result
        gain = {"100ba": -0.1, "200ba": 0.0, "400ba": 0.03}[result.trial.duration]
        metrics = {METRIC: result.curve[-1].metrics[METRIC] + gain}
        return attrs.evolve(result, curve=(attrs.evolve(result.curve[-1], metrics=metrics),))

    arm = analyze(edit(study, bent))["early"]
    assert arm.at_results[0].speedup.low > 1
    assert arm.at_results[-1].speedup.high < 1
    assert "faster at 2.7" in arm.why
    assert "slower at " in arm.why


def test_results_that_do_not_overlap_give_a_bound_and_the_schedule_to_add() -> None:
    arm = analyze(draw_study(0, {"fast": 30.0}))["fast"]
    assert arm.verdict is Verdict.PAYS
    assert arm.speedup.value is arm.speedup.high is None
    assert arm.at_least == arm.speedup.low > 1
    assert arm.covered == 0
    assert "its worst result is better than the baseline's best one" in arm.why
    assert arm.needs == "13ba"
    slow = analyze(draw_study(0, {"slow": 0.05}))["slow"]
    assert slow.verdict is Verdict.COSTS
    assert slow.speedup.high < 1
    assert slow.needs == "2963ba"


def test_worse_results_at_less_cost_show_nothing() -> None:
    study = draw_study(0, {"short": 1.0}, own_steps={"short": (10, 20, 40)})
    arm = analyze(study)["short"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert arm.p == 1
    assert "its best result is worse than the baseline's worst one" in arm.why


def test_one_schedule_is_refused_with_the_cure() -> None:
    for steps in ({"steps": (800,)}, {"own_steps": {"fast": (400,)}}):
        arm = analyze(draw_study(0, {"fast": 2.0}, **steps))["fast"]
        assert arm.verdict is Verdict.NO_EVIDENCE
        assert "needs at least two schedules" in arm.why
        assert 'such as durations=["5ep"' in arm.why
        assert arm.speedup is None


def test_a_given_target_is_where_the_speed_up_is_measured() -> None:
    found = analyze(draw_study(0, {"fast": 2.0}, target=loss_after(400)))
    arm = found["fast"]
    assert arm.verdict is Verdict.PAYS
    assert [point.result for point in arm.curve] == [loss_after(400)]
    assert arm.why.startswith(f"{arm.speedup.value:.2f}x (")
    assert " at 2.4, p " in arm.why


def test_a_target_beyond_the_schedules_gives_a_bound_or_nothing() -> None:
    found = analyze(draw_study(0, {"fast": 8.0}, target=2.15))["fast"]
    assert found.verdict is Verdict.PAYS
    assert found.speedup.value is None
    none = analyze(draw_study(0, {"fast": 4.0}, target=1.0))["fast"]
    assert none.verdict is Verdict.NO_EVIDENCE
    assert "its curve and the baseline's end before 1; add its schedule of 6400ba" in none.why


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_decide_nothing(seeds: int) -> None:
    found = analyze(draw_study(0, {"fast": 2.0}, seeds=seeds))
    assert found["fast"].verdict is Verdict.NO_EVIDENCE
    assert ("two seeds" if seeds == 1 else "a verdict needs 3 seeds") in found["fast"].why
    assert any("fewer than 3 seeds" in note for note in found.notes)


def test_a_schedule_with_a_diverged_run_is_not_part_of_the_curve() -> None:
    def lost(result: TrialResult) -> TrialResult:
        hit = result.trial.seed == 3 and result.trial.duration == "800ba"
        return attrs.evolve(result, outcome="diverged") if hit else result

    study = draw_study(0, {"fast": 2.0})
    arm = analyze(edit(study, lost))["fast"]
    assert arm.qualities[-1].mean is None
    assert arm.covered < 0.7
    assert "1 of 5 runs of 800ba did not finish (diverged)" in arm.notes[0]
    assert "not part of the curve" in arm.notes[0]


def test_a_baseline_without_results_is_refused() -> None:
    def fail(result: TrialResult) -> TrialResult:
        return attrs.evolve(result, outcome="failed") if result.trial.arm == "plain" else result

    study = edit(draw_study(0, {"fast": 4.0}), fail)
    with pytest.raises(ValueError, match="'plain' has no finished reporting trial"):
        analyze(study)


def test_a_metric_that_is_not_logged_is_refused() -> None:
    study = draw_study(0, {"fast": 4.0})
    other = attrs.evolve(study, protocol=attrs.evolve(study.protocol, metric="test/lost"))
    with pytest.raises(ValueError, match=f"metric='test/lost'.*{METRIC}"):
        analyze(other)


def test_a_run_counts_once() -> None:
    study = draw_study(0, {"fast": 4.0})
    with pytest.raises(ValueError, match="two reporting results"):
        analyze(attrs.evolve(study, results=study.results + study.results[:1]))


def test_seeds_that_change_nothing_decide_nothing_without_an_error_of_costs() -> None:
    quiet: Any = {"shared": 0.0, "own": 0.0, "cost_noise": 0.0, "process_noise": 0.0}
    arm = analyze(draw_study(0, {"fast": 1.5}, **quiet))["fast"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert "no spread to judge by" in arm.why


def test_an_arm_whose_runs_are_the_baselines_shows_no_evidence() -> None:
    arm = analyze(draw_study(0, {"same": 1.0}, own=0.0))["same"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert arm.speedup.value == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("draw", [draw_study, draw_data_study])
def test_an_arm_that_is_the_baseline_to_the_bit_is_worth_once_as_much(draw: Any) -> None:
    study = draw(0, {"same": 1.0})
    plain = [one for one in study.results if one.trial.arm == "plain"]
    same = [attrs.evolve(one, trial=attrs.evolve(one.trial, arm="same")) for one in plain]
    given = [StepCost(one.arm, one.duration, (0.5,), ((0.01,),)) for one in study.costs]
    arm = analyze(Study(study.protocol, (*plain, *same), tuple(given)))["same"]
    assert (arm.verdict, arm.p) == (Verdict.NO_EVIDENCE, 1.0)
    assert [arm.speedup.low, arm.speedup.value, arm.speedup.high] == [1.0, 1.0, 1.0]


def test_the_repeated_baseline_gives_the_noise_floor() -> None:
    found = analyze(draw_study(0, {"again": 1.0, "fast": 2.0}, repeated="again"))
    assert found["again"].verdict is None
    assert "Holm" not in found["fast"].why
    assert found.noise_floor is found["again"].speedup
    off = analyze(draw_study(0, {"again": 3.0}, repeated="again"))
    assert any("differs from itself" in note for note in off.notes)


@pytest.mark.parametrize(
    ("speed", "verdict"), [(0.5, "costs"), (1.3, "no evidence"), (2.5, "pays")]
)
def test_a_verdict_needs_an_interval_beyond_the_noise_floor(speed: float, verdict: str) -> None:
    quiet: Any = {"shared": 0.002, "own": 0.002}
    alone = analyze(draw_study(0, {"arm": speed}, **quiet))["arm"]
    assert alone.verdict is (Verdict.COSTS if speed < 1 else Verdict.PAYS)
    for noise in (1.5, 1 / 1.5):
        found = analyze(draw_study(0, {"again": noise, "arm": speed}, repeated="again", **quiet))
        assert found["arm"].verdict == verdict
        assert ("the noise floor, 1.5" in found["arm"].why) is (verdict == "no evidence")


def test_without_measured_costs_the_trials_own_seconds_count() -> None:
    found = analyze(attrs.evolve(draw_study(0, {"fast": 2.0}), costs=()))["fast"]
    assert found.verdict is Verdict.PAYS
    assert found.step_cost_ratio is None
    assert any("not measured" in note for note in found.notes)


def test_an_arm_without_a_cost_is_compared_by_the_seconds_of_both_arms_trials() -> None:
    study = draw_study(0, {"same": 1.0, "fast": 2.0})
    halved = [  # measured steps are cheaper than those beside other trials
        attrs.evolve(one, seconds=tuple(tuple(s / 2 for s in row) for row in one.seconds))
        for one in study.costs
    ]
    found = analyze(attrs.evolve(study, costs=tuple(halved[i] for i in (0, 2))))
    assert found["same"].speedup.value == pytest.approx(1.0, rel=0.2)
    assert found["fast"].speedup.value == pytest.approx(2.0, rel=0.2)
    assert any("not measured" in note for note in found["same"].notes)
    assert not found["fast"].notes


@pytest.mark.parametrize("processes", [1, 2])
def test_costs_that_a_clock_cannot_measure_have_no_interval(processes: int) -> None:
    study = draw_study(0, {"fast": 2.0})
    coarse: Any = {"seconds": ((0.0, 0.01), (0.01, 0.01)), "processes": processes}
    costs = [attrs.evolve(one, **coarse) for one in study.costs]
    costs[1] = attrs.evolve(costs[1], arm="fast", seconds=((0.0, 0.02), (0.01, 0.02)))
    found = analyze(attrs.evolve(study, costs=tuple(costs)))["fast"]
    assert found.step_cost_ratio.value > 1
    assert found.step_cost_ratio.p is None
    assert found.speedup.p is not None


def test_the_error_of_costs_is_that_of_processes_of_all_arms() -> None:
    def error(arms: int, noise: float) -> Any:
        speeds = {str(at): 1.0 for at in range(arms)}
        study = draw_study(3, speeds, process_noise=noise, cost_noise=0.0)
        return analyze(study)["0"].step_cost_ratio

    few, many, noisy = error(1, 0.02), error(20, 0.02), error(20, 0.2)
    assert few.low < 1 < few.high
    assert many.high / many.low == pytest.approx(exp(4 * 0.02 / 2**0.5), rel=0.02)
    assert noisy.high / noisy.low > 1.5


def test_a_study_with_one_process_of_each_arm_has_the_typical_difference_of_processes() -> None:
    study = draw_study(0, {"fast": 1.0}, process_noise=0.0, cost_noise=0.001)
    costs = [attrs.evolve(one, processes=1) for one in study.costs]
    found = analyze(attrs.evolve(study, costs=tuple(costs)))["fast"].step_cost_ratio
    assert found.high / found.low == pytest.approx(exp(2 * 2.2 * 0.05), rel=0.01)


@pytest.mark.parametrize(
    ("chosen", "end"), [(0.1, "lowest"), (0.3, "highest"), (0.2, None), (0.0, None)]
)
def test_settings_at_the_edge_of_their_grid_are_said(chosen: float, end: str | None) -> None:
    study = draw_study(0, {"fast": 2.0})
    rates = (0.0, 0.2) if chosen == 0 else (0.1, 0.2, 0.3)  # no rate below 0 is recommended
    grids = {"fast": {"lr": rates, "name": ("a", "b"), "fixed": (1,)}}

    def tuned(one: TrialResult) -> TrialResult:
        settings = {"lr": chosen, "name": "a", "fixed": 1} if one.trial.arm == "fast" else {}
        return with_settings(one, **settings)

    notes = analyze(edit(study, tuned, protocol=attrs.evolve(study.protocol, grids=grids)))
    said = [f"lr={chosen} is the {end} value" in note for note in notes["fast"].notes]
    assert said == [True] * bool(end)


def test_an_unknown_arm_is_refused() -> None:
    found = analyze(draw_study(0, {"fast": 2.0}))
    with pytest.raises(ValueError, match="arm='slow' must be one of"):
        found["slow"]


def test_an_arm_without_trials_is_said() -> None:
    study = draw_study(0, {"fast": 2.0})
    kept = tuple(one for one in study.results if one.trial.arm == "plain")
    assert any("'fast'" in note for note in analyze(attrs.evolve(study, results=kept)).notes)
