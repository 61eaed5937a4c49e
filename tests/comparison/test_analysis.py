from collections import Counter
from typing import Any

import attrs
import pytest
from scipy import stats

from composable.comparison.analysis.analyze import analyze
from composable.comparison.analysis.findings import Analysis, Verdict
from composable.comparison.records import Study, TrialResult

from .synthetic import METRIC, draw_study


def analyses(count: int, *args: Any, **changes: Any) -> list[Analysis]:
    return [analyze(draw_study(seed, *args, **changes), resamples=0) for seed in range(count)]


def at_most(errors: int, count: int, rate: float) -> bool:
    """Whether an error rate of at most `rate` is credible (binomial, 1 in 1,000)."""
    return bool(errors <= stats.binom.ppf(0.999, count, rate))


@pytest.mark.parametrize("target", [2.35, None])
def test_an_arm_of_twice_the_speed_pays(target: float | None) -> None:
    arms = [found["fast"] for found in analyses(40, {"fast": 2.0}, target=target)]
    assert sum(arm.verdict is Verdict.PAYS for arm in arms) >= 38
    ratios = [arm.time.ratio for arm in arms if arm.time.ratio is not None]
    outside = sum(not (one.low or 0.0) <= 2.0 <= (one.high or 99.0) for one in ratios)
    assert at_most(outside, len(ratios), 0.06)


@pytest.mark.parametrize("target", [2.35, None])
def test_the_baseline_under_another_name_shows_no_evidence(target: float | None) -> None:
    arms = [found["same"] for found in analyses(200, {"same": 1.0}, target=target)]
    verdicts = Counter(arm.verdict for arm in arms)
    assert at_most(200 - verdicts[Verdict.NO_EVIDENCE], 200, 0.05)


def test_four_arms_that_are_the_baseline_rarely_show_any_effect() -> None:
    found = analyses(60, dict.fromkeys("abcd", 1.0), target=None)
    wrong = sum(any(one.verdict is not Verdict.NO_EVIDENCE for one in a.arms[1:]) for a in found)
    assert at_most(wrong, 60, 0.05)


@pytest.mark.parametrize("target", [2.35, None])
def test_one_schedule_keeps_the_error_rate(target: float | None) -> None:
    found = analyses(100, {"same": 1.0}, target=target, steps=(800,))
    wrong = sum(one["same"].verdict is not Verdict.NO_EVIDENCE for one in found)
    assert at_most(wrong, 100, 0.05)


# --- arms with schedules of other lengths: a large batch, whose steps cost four times as much ---

LARGE: dict[str, Any] = {"step_costs": {"large": 0.04}}


@pytest.mark.parametrize("target", [2.35, None])
def test_an_arm_of_twice_the_speed_pays_on_schedules_of_its_own(target: float | None) -> None:
    own = {"large": (25, 50, 100, 200)}
    found = analyses(20, {"large": 8.0}, target=target, own_steps=own, **LARGE)
    arms = [one["large"] for one in found]
    assert sum(arm.verdict is Verdict.PAYS for arm in arms) >= 18
    ratios = [arm.time.ratio for arm in arms if arm.time.ratio is not None]
    outside = sum(not (one.low or 0.0) <= 2.0 <= (one.high or 99.0) for one in ratios)
    assert at_most(outside, len(ratios), 0.06)
    values = sorted(one.value for one in ratios if one.value is not None)
    assert values[len(values) // 2] == pytest.approx(2.0, rel=0.1)
    assert [one.duration for one in arms[0].qualities] == ["25ba", "50ba", "100ba", "200ba"]


@pytest.mark.parametrize("target", [2.35, None])
@pytest.mark.parametrize("own", [(25, 50, 100, 200), (40, 90, 160, 300), (10, 20, 40), (220, 400)])
def test_an_even_arm_on_schedules_of_its_own_shows_no_evidence(
    own: tuple[int, ...], target: float | None
) -> None:
    found = analyses(30, {"large": 4.0}, target=target, own_steps={"large": own}, **LARGE)
    wrong = sum(one["large"].verdict is not Verdict.NO_EVIDENCE for one in found)
    assert at_most(wrong, 30, 0.05)


def test_several_schedules_of_an_arm_find_its_time_to_the_only_one_of_the_baseline() -> None:
    own: Any = {"steps": (800,), "own_steps": {"large": (25, 50, 100, 200)}, "target": None}
    found = [one["large"] for one in analyses(20, {"large": 8.0}, **own, **LARGE)]
    assert sum(arm.verdict is Verdict.PAYS for arm in found) >= 17
    assert "against 8.0" in found[0].why
    ratios = [arm.time.ratio for arm in found if arm.time.ratio is not None]
    assert sum((one.low or 0.0) <= 2.0 <= (one.high or 99.0) for one in ratios) >= 17


def test_schedules_that_end_before_the_baselines_time_ask_for_longer_ones() -> None:
    study = draw_study(0, {"large": 4.0}, own_steps={"large": (10, 20, 40)}, **LARGE)
    arm = analyze(study, resamples=0)["large"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert arm.why.startswith("mean does not reach 2.35 within 1.6")
    assert arm.why.endswith("its schedules end before that time: add longer ones")


@pytest.mark.parametrize(
    ("speed", "own", "target", "words"),
    [
        (8.0, (150,), None, " after 6.07 s against 2.28 after 8.07 s"),
        (1.0, (400,), 2.27, " 0.109 worse at the time nearest to the baseline's 8.07 s"),
    ],
)
def test_one_schedule_of_each_arm_gives_the_times_of_the_final_results(
    speed: float, own: tuple[int, ...], target: float | None, words: str
) -> None:
    one: Any = {"steps": (800,), "own_steps": {"large": own}, "target": target}
    assert words in analyze(draw_study(0, {"large": speed}, **one, **LARGE))["large"].why


def test_one_schedule_finds_a_fast_arm_by_first_crossings() -> None:
    found = analyze(draw_study(0, {"fast": 2.0}, steps=(800,)))["fast"]
    assert found.verdict is Verdict.PAYS
    assert "runs of 800ba first reach 2.35 after" in found.why


def test_a_slow_arm_costs_and_a_dear_step_costs() -> None:
    assert analyze(draw_study(0, {"slow": 0.4}), resamples=0)["slow"].verdict is Verdict.COSTS
    dear = analyze(draw_study(0, {"dear": 1.0}, step_costs={"dear": 0.03}), resamples=0)["dear"]
    assert dear.verdict is Verdict.COSTS
    assert dear.step_cost_ratio.value == pytest.approx(3.0, rel=0.1)


def test_a_fast_arm_with_dear_steps_shows_no_evidence() -> None:
    arm = analyze(draw_study(0, {"even": 2.0}, step_costs={"even": 0.02}), resamples=0)["even"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert arm.time.ratio.low < 1.0


def test_the_sentence_names_times_ratio_and_correction() -> None:
    found = analyze(draw_study(3, {"fast": 2.0, "same": 1.0}))
    assert found.compared == 2
    assert "after Holm's correction over 2 arms" in found["fast"].why
    assert found["fast"].why.startswith("reaches 2.35 in ")
    assert found["fast"].time.speedup == pytest.approx(2.0, rel=0.05)
    assert found["fast"].time.ratio.resampled is not None


def test_two_seeds_decide_nothing() -> None:
    arm = analyze(draw_study(0, {"fast": 8.0}, seeds=2))["fast"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert "needs 3 seeds" in arm.why


def test_one_seed_has_no_interval() -> None:
    arm = analyze(draw_study(0, {"fast": 8.0}, seeds=1))["fast"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert arm.power is None


@pytest.mark.parametrize("steps", [(100, 200), (800,)])
def test_a_target_that_no_arm_reaches_is_reported(steps: Any) -> None:
    arm = analyze(draw_study(0, {"fast": 4.0}, target=1.0, steps=steps))["fast"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert "0 of 5 runs reached 1 within" in arm.why
    assert arm.crossing.ratio is None
    assert arm.time.seconds is None


def test_a_target_that_only_the_arm_reaches_pays() -> None:
    arm = analyze(draw_study(0, {"fast": 8.0}, target=2.15))["fast"]
    assert arm.verdict is Verdict.PAYS
    assert "0 of 5 of the baseline's" in arm.why


def test_a_target_that_is_too_easy_asks_for_a_harder_one_or_compares_crossings() -> None:
    arm = analyze(draw_study(0, {"fast": 2.0}, target=3.2, steps=(400, 800)))["fast"]
    assert "first reach 3.2" in arm.why


def change(study: Study, arm: str, seeds: tuple[int, ...], **changes: Any) -> Study:
    def changed(result: TrialResult) -> TrialResult:
        hit = result.trial.arm == arm and result.trial.seed in seeds
        return attrs.evolve(result, **changes) if hit else result

    return attrs.evolve(study, results=tuple(map(changed, study.results)))


def test_diverged_runs_count_as_not_reaching() -> None:
    study = change(draw_study(0, {"fast": 4.0}), "fast", (0, 3), outcome="diverged")
    arm = analyze(study)["fast"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert "2 of 5 runs" in arm.why
    assert arm.crossing.reached == 3
    assert any("diverged" in note for note in arm.notes)


def test_a_failed_baseline_run_is_said() -> None:
    study = change(draw_study(0, {"fast": 4.0}), "plain", (0,), outcome="failed", curve=())
    assert "1 of 5 baseline runs" in analyze(study)["fast"].why


def test_a_baseline_without_results_is_refused() -> None:
    study = change(draw_study(0, {"fast": 4.0}), "plain", (0, 1, 2, 3, 4), outcome="failed")
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


def test_seeds_that_change_nothing_decide_nothing() -> None:
    study = draw_study(0, {"fast": 4.0}, shared=0.0, own=0.0, cost_noise=0.0)
    arm = analyze(study)["fast"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert "no spread to judge by" in arm.why


def test_an_arm_whose_runs_are_the_baselines_shows_no_evidence() -> None:
    arm = analyze(draw_study(0, {"same": 1.0}, own=0.0))["same"]
    assert arm.verdict is Verdict.NO_EVIDENCE
    assert arm.time.ratio.value == pytest.approx(1.0, rel=0.02)


def test_the_repeated_baseline_gives_the_noise_floor() -> None:
    found = analyze(draw_study(0, {"again": 1.0, "fast": 2.0}, repeated="again"))
    assert found["again"].verdict is None
    assert found.compared == 1
    assert found.noise_floor is found["again"].time.ratio
    off = analyze(draw_study(0, {"again": 3.0}, repeated="again"))
    assert any("differs from itself" in note for note in off.notes)


def test_without_calibrated_costs_the_trials_own_seconds_count() -> None:
    found = analyze(attrs.evolve(draw_study(0, {"fast": 2.0}), costs=()))["fast"]
    assert found.verdict is Verdict.PAYS
    assert found.step_cost_ratio is None
    assert any("not calibrated" in note for note in found.notes)


def test_an_arm_without_a_cost_is_compared_by_the_seconds_of_both_arms_trials() -> None:
    study = draw_study(0, {"same": 1.0, "fast": 2.0})
    halved = [  # calibrated steps are cheaper than those beside other trials
        attrs.evolve(one, seconds=tuple(tuple(s / 2 for s in row) for row in one.seconds))
        for one in study.costs
    ]
    found = analyze(attrs.evolve(study, costs=tuple(halved[i] for i in (0, 2))), resamples=0)
    assert found["same"].time.ratio.value == pytest.approx(1.0, rel=0.2)
    assert found["fast"].time.ratio.value == pytest.approx(2.0, rel=0.2)
    assert any("not calibrated" in note for note in found["same"].notes)
    assert not found["fast"].notes


def test_the_target_is_that_of_the_longest_schedule_whose_runs_all_finished() -> None:
    study = draw_study(0, {"fast": 2.0}, target=None)
    assert analyze(study, resamples=0).target.duration == "800ba"

    def lost(result: TrialResult) -> TrialResult:
        hit = result.trial.arm == "plain" and result.trial.duration == "800ba"
        return attrs.evolve(result, outcome="failed") if hit and not result.trial.seed else result

    found = analyze(attrs.evolve(study, results=tuple(map(lost, study.results))), resamples=0)
    assert found.target.duration == "400ba"
    assert found.target.value == found["plain"].qualities[-2].mean
    assert any("mean final result on 400ba" in note for note in found.notes)


def test_crossings_of_some_runs_are_no_noise_floor() -> None:
    study = draw_study(0, {"again": 1.0}, steps=(800,), repeated="again")
    assert analyze(study).noise_floor is not None
    assert analyze(change(study, "again", (100,), outcome="diverged")).noise_floor is None


def test_costs_that_a_clock_cannot_measure_have_no_interval() -> None:
    study = draw_study(0, {"fast": 2.0})
    costs = [attrs.evolve(one, seconds=((0.0, 0.01), (0.01, 0.01))) for one in study.costs]
    costs[1] = attrs.evolve(costs[1], arm="fast", seconds=((0.0, 0.02), (0.01, 0.01)))
    found = analyze(attrs.evolve(study, costs=tuple(costs)), resamples=0)["fast"]
    assert found.step_cost_ratio.value > 1
    assert found.step_cost_ratio.p is None
    assert found.time.ratio.p is not None


def test_an_unknown_arm_is_refused() -> None:
    found = analyze(draw_study(0, {"fast": 2.0}), resamples=0)
    with pytest.raises(KeyError, match="no arm 'slow'; the arms are"):
        found["slow"]


def test_an_arm_without_trials_is_said() -> None:
    study = draw_study(0, {"fast": 2.0})
    kept = tuple(one for one in study.results if one.trial.arm == "plain")
    assert any("'fast'" in note for note in analyze(attrs.evolve(study, results=kept)).notes)


def test_schedules_of_other_times_do_not_make_an_even_arm_pay() -> None:
    quiet: Any = {"shared": 0.005, "own": 0.005, "step_costs": {"even": 0.0141}}
    found = analyses(50, {"even": 1.41}, **quiet)  # half an octave: the line is off by 1 %
    wrong = sum(one["even"].verdict is not Verdict.NO_EVIDENCE for one in found)
    assert at_most(wrong, 50, 0.05)


def test_seeds_that_change_nothing_decide_nothing_with_noisy_costs() -> None:
    study = draw_study(0, {"fast": 4.0}, shared=0.0, own=0.0)
    assert "no spread to judge by" in analyze(study)["fast"].why
