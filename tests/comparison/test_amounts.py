"""Comparisons by amounts of training data: the plan, the choice and the verdict."""

import random
import re

import attrs
import numpy as np
import pytest

from composable.algorithms import LabelSmoothing
from composable.comparison import Comparison, Verdict
from composable.comparison.analysis import analyze
from composable.comparison.building import build_trainer
from composable.comparison.design import check_amounts, plan_amounts
from composable.comparison.records import Evaluation, Seconds, Trial, TrialResult, stop_at_best
from composable.comparison.table import format_html
from tests.comparison import small
from tests.comparison.synthetic import METRIC, draw_data_study, edit, protocol, with_settings
from tests.support.comparison import compare_in_threads

VALIDATION = "validation/loss"


# --- amounts ---


def test_amounts_are_sorted_and_keep_their_type():
    assert check_amounts([80, 5, 20.5]) == (5, 20.5, 80)
    assert type(check_amounts([80, 5])[0]) is int


@pytest.mark.parametrize("kind", [int, float])
def test_amounts_of_numpy_are_numbers_of_python(kind):
    assert [type(one) for one in check_amounts(np.array([1, 4], dtype=kind))] == [kind, kind]


@pytest.mark.parametrize(
    ("amounts", "error", "message"),
    [
        ("0.1,1", TypeError, "must be a list of numbers"),
        (0.5, TypeError, "must be a list of numbers"),
        ([0.5], ValueError, "at least two amounts"),
        ([0.5, 0.5], ValueError, "at least two amounts"),
        ([0, 1], ValueError, "data_amounts=0 must be"),
        ([0.5, float("inf")], ValueError, "data_amounts=inf must be"),
        ([0.5, True], TypeError, "data_amounts"),
    ],
)
def test_amounts_that_give_no_curve_are_refused(amounts, error, message):
    with pytest.raises(error, match=re.escape(message)):
        check_amounts(amounts)


# --- the function that loads the data ---


def build(algorithms, seed, data_amount, lr=0.05):
    """Return a Trainer of these tenths of the training data."""
    return small.build(algorithms, seed, lr, batches=round(10 * data_amount))


def test_build_gets_the_amount():
    trainer = build_trainer(build, {"algorithms": [], "data_amount": 0.5}, 0, "1ep")
    assert len(trainer._options.train_dataloader) == 5


def test_a_build_without_the_amount_is_refused():
    with pytest.raises(TypeError, match="must take algorithms, seed, data_amount by these names"):
        small.design(data_amount=0.5)


# --- the plan ---


def plan(**changes):
    return lambda **given: small.design(**{"build": build, **changes}, **given)


def test_all_amounts_train_for_as_many_batches_each_on_its_own_settings():
    designs = plan_amounts(plan(tune={"lr": [0.1, 0.2]}), [0.1, 1.0], ["1ep", "4ep"])
    assert [one.protocol.durations for one in designs] == [("10ba", "40ba")] * 2
    assert [one.epoch_length for one in designs] == [1, 10]
    assert designs[0].tried["other"] == (
        {"lr": 0.1, "data_amount": 0.1},
        {"lr": 0.2, "data_amount": 0.1},
    )
    assert designs[0].protocol.repeated is not None


def test_arms_keep_schedules_of_their_own():
    durations = {"baseline": ["4ep"], "other": ["8ep"]}
    design = plan_amounts(plan(), [0.1, 1.0], durations)[0]
    assert design.protocol.schedules["other"] == ("80ba",)
    assert design.protocol.schedules["baseline (repeated)"] == ("40ba",)


def test_the_epoch_is_not_chosen_on_the_test_data():
    with pytest.raises(ValueError, match="are of one evaluator"):
        plan(tuning_metric="test/loss")(data_amount=0.5)
    made = plan()(data_amount=0.5)
    assert made.protocol.tuning_metric == "validation/accuracy"


def test_the_amount_is_no_hyperparameter_to_tune():
    with pytest.raises(ValueError, match=r"'data_amount'.*which compare itself passes"):
        plan(tune={"data_amount": [0.1]})(data_amount=0.5)


def test_an_arm_may_know_the_amount_and_build_gets_it_too():
    def arm(data_amount=1.0):
        return [LabelSmoothing(0.1 / data_amount)]

    made = plan(arms={"other": arm})(data_amount=0.5)
    arguments = made.subject.arms["other"].arguments(made.tried["other"][0])
    assert arguments["algorithms"] == [LabelSmoothing(0.2)]
    assert arguments["data_amount"] == 0.5


# --- the epoch that is chosen ---


def run(length, scores, results=None, outcome="finished"):
    """Return a run with these results on the data that choose, and on the test data."""
    pairs = zip(scores, results or scores, strict=True)
    curve = tuple(
        Evaluation(10 * (at + 1), {VALIDATION: one, METRIC: other})
        for at, (one, other) in enumerate(pairs)
    )
    trial = Trial("plain", {"data_amount": 5}, f"{length}ba", 0, "reporting")
    return TrialResult(trial, outcome, length, Seconds(1, 0, 8, 0), curve)


DATA = protocol(["plain", "arm"], [20, 40], 1, None, data_amounts=(5, 20))


def test_a_run_stops_where_it_is_best_on_the_data_that_choose():
    runs = [run(20, [0.5, 0.4]), run(40, [0.6, 0.3, 0.2, 0.9], [0.1, 0.2, 0.7, 0.3])]
    best = stop_at_best(DATA, runs)
    assert best.trial.duration == "40ba"
    assert best.curve[-1].metrics == {VALIDATION: 0.2, METRIC: 0.7}  # not its best on the test
    assert (best.batches, best.seconds.training) == (30, 6)
    upwards = attrs.evolve(DATA, tuning_mode="max")
    assert stop_at_best(upwards, runs).curve[-1].metrics[VALIDATION] == 0.9


def test_of_equal_evaluations_the_earliest_is_chosen():
    runs = [run(40, [0.5, 0.4, 0.4, 0.4]), run(20, [0.4, 0.4])]
    best = stop_at_best(DATA, runs)
    assert (best.trial.duration, best.batches) == ("20ba", 10)


def test_only_finished_runs_and_finite_results_are_chosen():
    nan = float("nan")
    runs = [run(20, [0.1, 0.1], outcome="diverged"), run(40, [0.2, nan, 0.4, 0.3], [nan, 1, 1, 2])]
    assert stop_at_best(DATA, runs).curve[-1].metrics == {VALIDATION: 0.3, METRIC: 2}
    assert stop_at_best(DATA, runs[:1]).curve == ()


# --- the analysis ---


def test_an_arm_is_worth_as_much_data_as_the_curves_are_apart():
    found = analyze(draw_data_study(0, {"arm": 2.0, "same": 1.0}, seeds=20, repeated="same"))
    arm = found["arm"]
    assert arm.verdict is Verdict.PAYS
    assert arm.speedup.value == pytest.approx(2.0, rel=0.2)
    assert [one.amount for one in arm.qualities] == [100, 300, 900]
    assert arm.step_cost_ratio is None
    assert "less data" not in arm.why
    assert found["same"].speedup.value == pytest.approx(1.0, rel=0.2)
    assert not any("step cost" in note for one in found.arms for note in one.notes)


def test_far_apart_curves_give_a_bound_and_the_amount_to_add():
    arm = analyze(draw_data_study(0, {"arm": 30.0}))["arm"]
    assert arm.speedup.value is None
    assert 1 < arm.at_least == arm.speedup.low < 9
    assert arm.why.startswith(f"at least {arm.at_least:.2f}x, since its worst result is better")
    assert float(arm.needs) < 100


@pytest.mark.parametrize(
    ("amounts", "needs"), [((0.1, 0.3, 1.0), None), ((0.1, 0.3, 0.9), "1"), ((5, 20, 80), "158")]
)
def test_no_more_than_all_of_the_data_is_recommended(amounts, needs):
    assert analyze(draw_data_study(0, {"arm": 0.25}, amounts=amounts))["arm"].needs == needs


def test_the_words_are_those_of_data():
    comparison = Comparison(draw_data_study(0, {"arm": 1.2}, seeds=20))
    text = comparison.table()
    assert re.match(r"arm is worth [12]\.\d+x \(.* to .*\) the data, against plain\.", text)
    assert "data 100, 300, 900; each run at its best validation/loss" in " ".join(text.split())
    assert "times the data" in text
    for word in ("speed-up", "faster", "seconds of"):
        assert word not in text + format_html(comparison.study, comparison.analysis, "<svg></svg>")
    none = Comparison(draw_data_study(0, {"arm": 1.0}))
    assert none.table().startswith("No evidence that an arm needs less data than plain.")


def test_a_schedule_that_diverges_leaves_the_others():
    def fail(one):
        return attrs.evolve(one, outcome="diverged", error="nan") if one.batches == 80 else one

    found = analyze(edit(draw_data_study(0, {"arm": 2.0}), fail))
    assert found["arm"].verdict is Verdict.PAYS


def test_an_amount_without_a_result_of_each_seed_is_not_on_the_curve():
    def fail(one):
        lost = (one.trial.arm, one.trial.data_amount, one.trial.seed) == ("arm", 900, 3)
        return attrs.evolve(one, outcome="diverged", error="nan") if lost else one

    arm = analyze(edit(draw_data_study(0, {"arm": 2.0}), fail))["arm"]
    assert [one.mean is None for one in arm.qualities] == [False, False, True]
    assert arm.notes == (
        "1 of 5 runs of 900 did not finish (diverged: nan): this amount is not part of the curve",
    )


def test_settings_at_the_edge_of_their_grid_are_noted_for_each_amount():
    study = draw_data_study(0, {"arm": 2.0})

    def tuned(one):
        amount = one.trial.data_amount
        rate = {100: 0.1, 300: 0.1, 900: 0.3}[amount]
        return with_settings(one, lr=rate, data_amount=amount)

    grids = {arm: {"lr": (0.1, 0.2, 0.3)} for arm in study.protocol.arms}
    edited = edit(study, tuned, protocol=attrs.evolve(study.protocol, grids=grids))
    assert analyze(edited)["arm"].notes == (
        "lr=0.1 is the lowest value that was tried: a lower one may be better "
        "(data_amount=100, 300)",
        "lr=0.3 is the highest value that was tried: a higher one may be better (data_amount=900)",
    )


# --- from beginning to end ---


def learn(arm, seed, duration, data_amount, lr=0.5):
    """Fit a number by so many noisy examples, and then overfit."""
    rng = random.Random(f"{seed} {data_amount}")
    level = (arm["factor"] * data_amount) ** -0.5 + rng.gauss(0, 0.01)
    for step in range(5, duration.value + 1, 5):
        yield step, None
        loss = level + (lr - 0.5) ** 2 + abs(step - 10) / 100
        yield step, {"test/loss": loss, "validation/loss": loss + rng.gauss(0, 1e-4)}


def compare_loop(folder, **changes):
    given = {
        "run": learn,
        "arms": {"better": {"factor": 2}},
        "baseline": {"factor": 1},
        "metric": "test/loss",
        "durations": ["10ba", "20ba"],
        "data_amounts": [1, 4, 16],
        "tune": {"lr": [0.4, 0.5]},
        "tuning_seeds": 1,
        "seeds": 5,
        "repeat_baseline": False,
        "progress_bar": False,
    }
    return compare_in_threads(folder=folder, workers=2, **{**given, **changes})


def test_a_loop_is_compared_by_amounts_of_data_and_the_next_call_reuses_it(tmp_path):
    comparison = compare_loop(tmp_path)
    study = comparison.study
    assert comparison.verdict("better") is Verdict.PAYS
    assert comparison.speedup("better").value == pytest.approx(2, rel=0.1)
    assert {one.trial.settings["lr"] for one in study.reported} == {0.5}
    assert len(study.reported) == 2 * 3 * 2 * 5
    assert study.costs == ()
    assert Comparison.load(tmp_path).study == study
    assert (tmp_path / "report.html").exists()
    stored = {path: path.stat().st_mtime_ns for path in (tmp_path / "trials").iterdir()}
    more = compare_loop(tmp_path, data_amounts=[1, 4, 16, 64])
    assert {path: path.stat().st_mtime_ns for path in stored} == stored
    assert more.study.protocol.data_amounts == (1, 4, 16, 64)


def test_amounts_of_the_data_of_a_trainer_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(Comparison, "save", lambda self, folder: folder)
    comparison = compare_in_threads(
        build,
        {"smoothing": [LabelSmoothing(0.1)]},
        metric="test/loss",
        tuning_metric="validation/loss",
        durations=["1ep", "2ep"],
        data_amounts=[0.2, 1.0],
        seeds=3,
        folder=tmp_path,
        workers=1,
        progress_bar=False,
    )
    study = comparison.study
    assert {one.batches for one in study.reported} == {10, 20}
    assert [one.outcome for one in study.results] == ["finished"] * (3 * 2 * 2 * 3)
    few = [one for one in study.reported if one.trial.data_amount == 0.2]
    assert {len(one.curve) for one in few} == {5, 10}  # epochs of two batches
    assert comparison.analysis[study.protocol.repeated].role == "repeated"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"run": small.descend, "tune": None},
            r"must take arm, seed, duration, data_amount by these names",
        ),
        ({"cost": {"baseline": 1.0, "better": 1.0}}, "is for comparisons by time"),
        ({"durations": ["1ep"]}, r"has '1ep', and the batches of an epoch .*\['100ba'\]"),
        ({"tuning_metric": "test/error"}, "are of one evaluator"),
    ],
)
def test_what_a_comparison_by_data_cannot_do_is_refused(tmp_path, changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        compare_loop(tmp_path, **changes)
