"""Grids, as many configurations for every arm, and successive halving with made-up results."""

import math

import pytest

from composable.comparison.arms import Arm
from composable.comparison.records import Evaluation, Seconds, TrialResult
from composable.comparison.tuning import (
    Rung,
    configurations,
    grids_of,
    halving,
    hyperparameters,
    rung_trials,
    sample,
    tune,
)

SEEDS = {"plain": (8, 9), "mixed": (8, 9)}
RATES = (0.001, 0.01, 0.1, 1.0)
TRIED = {arm: [{"lr": rate} for rate in RATES] for arm in SEEDS}


def result(trial, value, outcome="finished", error=None):
    curve = (Evaluation(1, 1.0, 1.0, {"validation/loss": value}),)
    return TrialResult(trial, outcome, 1, Seconds(0, 0, 1, 0), curve, error)


def score(one):
    if one is None or one.outcome != "finished":
        return -math.inf
    return -one.curve[-1].metrics["validation/loss"]


class Landscape:
    """Runs trials whose loss is the distance of the rate to the best one of the arm."""

    def __init__(self, limit=math.inf):
        self.best = {"plain": 0.1, "mixed": 0.01}
        self.rounds = []
        self.limit = limit

    def __call__(self, trials):
        self.rounds.append(trials)
        found = []
        for trial in trials:
            self.limit -= 1
            distance = abs(math.log10(trial.settings["lr"] / self.best[trial.arm]))
            found.append(result(trial, distance) if self.limit >= 0 else None)
        return found


def test_the_best_settings_of_each_arm_are_chosen():
    chosen = tune(TRIED, [Rung("4ep", 4)], SEEDS, Landscape(), score)
    assert chosen.settings == {"plain": {"lr": 0.1}, "mixed": {"lr": 0.01}}
    assert chosen.notes == ()


def test_each_round_keeps_the_better_half_for_longer():
    run = Landscape()
    chosen = tune(TRIED, halving(4, ["1ep", "2ep", "4ep"]), SEEDS, run, score)
    assert chosen.settings == {"plain": {"lr": 0.1}, "mixed": {"lr": 0.01}}
    assert [(one[0].duration, len(one)) for one in run.rounds] == [("2ep", 16), ("4ep", 8)]
    kept = {trial.settings["lr"] for trial in run.rounds[1] if trial.arm == "plain"}
    assert kept == {0.1, 0.01}


def test_every_arm_gets_the_same_trials_and_only_tuning_seeds():
    trials = rung_trials(TRIED, "4ep", SEEDS, lambda arm, duration: duration)
    of = {arm: [one for one in trials if one.arm == arm] for arm in SEEDS}
    assert len(of["plain"]) == len(of["mixed"]) == 8
    assert {one.seed for one in trials} == {8, 9}
    assert {one.purpose for one in trials} == {"tuning"}
    first = [one.arm for one in trials[:4]]
    assert sorted(first) == ["mixed", "mixed", "plain", "plain"]


def test_dearer_arms_are_tuned_on_shorter_runs():
    run = Landscape()
    scale = {"plain": "4ep", "mixed": "2ep"}
    tune(TRIED, [Rung("4ep", 4)], SEEDS, run, score, lambda arm, duration: scale[arm])
    assert {(one.arm, one.duration) for one in run.rounds[0]} == set(scale.items())


def test_of_equal_settings_the_first_is_chosen():
    chosen = tune(TRIED, [Rung("4ep", 4)], SEEDS, lambda ts: [result(t, 1.0) for t in ts], score)
    assert chosen.settings["plain"] == {"lr": 0.001}


@pytest.mark.parametrize("outcome", ["failed", "diverged", "nan"])
def test_settings_without_a_result_on_one_seed_are_the_worst(outcome):
    def run(trials):
        return [
            result(
                one,
                math.nan if outcome == "nan" else 0.0,
                "finished" if outcome == "nan" else outcome,
            )
            if one.settings["lr"] == 0.001 and one.seed == 9
            else result(one, 5.0)
            for one in trials
        ]

    assert tune(TRIED, [Rung("4ep", 4)], SEEDS, run, score).settings["plain"] == {"lr": 0.01}


def test_an_arm_whose_trials_all_fail_is_named():
    def run(trials):
        return [
            result(one, 0.0, "failed", "ValueError: no") if one.arm == "mixed" else result(one, 1.0)
            for one in trials
        ]

    notes = tune(TRIED, [Rung("4ep", 4)], SEEDS, run, score).notes
    assert notes == ("mixed: no tuning trial of 4ep has a result: ValueError: no",)


def test_a_round_that_is_cut_short_chooses_by_what_is_finished():
    run = Landscape(limit=16 + 3)
    rungs = [Rung("2ep", 4), Rung("4ep", 2), Rung("8ep", 2)]
    chosen = tune(TRIED, rungs, SEEDS, run, score)
    assert len(run.rounds) == 2
    assert chosen.settings == {"plain": {"lr": 0.1}, "mixed": {"lr": 0.01}}
    assert chosen.notes == ("Tuning was cut short: 5 of 8 trials of a round of 4ep were not run.",)


def test_one_configuration_is_not_trained():
    def run(trials):
        raise AssertionError("nothing to choose")

    chosen = tune({"plain": [{}]}, halving(1, ["1ep"]), {"plain": (8,)}, run, score)
    assert chosen.settings == {"plain": {}}


@pytest.mark.parametrize(
    ("count", "rounds"),
    [
        (1, []),
        (2, [("4ep", 2)]),
        (3, [("2ep", 3), ("4ep", 2)]),
        (9, [("1ep", 9), ("2ep", 5), ("4ep", 3)]),
        (100, [("1ep", 100), ("2ep", 50), ("4ep", 25)]),
    ],
)
def test_halving_ends_with_the_longest_schedule(count, rounds):
    assert [(one.duration, one.count) for one in halving(count, ["1ep", "2ep", "4ep"])] == rounds


# --- grids ---

PLAIN, MIXED = Arm("plain", []), Arm("mixed", lambda alpha=0.2: [])


def build(algorithms, seed, lr=0.1, width=8, optimizers=None, max_duration="1ep"):
    raise AssertionError("not called")


REQUIRED = ("algorithms", "seed")
TAKEN = hyperparameters("build", build, REQUIRED)


def test_the_function_takes_its_hyperparameters():
    assert TAKEN == ("lr", "width", "optimizers", "max_duration")
    assert hyperparameters("build", lambda algorithms, seed, **others: None, REQUIRED) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, "build=3 must be a function"),
        (lambda: None, "must take algorithms, seed by these names"),
        (lambda methods, number: None, "must take algorithms, seed by these names"),
    ],
)
def test_a_function_without_what_compare_passes_is_an_error(wrong, message):
    with pytest.raises(TypeError, match=message):
        hyperparameters("build", wrong, REQUIRED)


def test_shared_values_are_for_all_arms_and_nested_ones_for_one():
    tune = {"lr": [1, 2], "mixed": {"alpha": [0.1, 0.2]}}
    grids = grids_of(tune, [PLAIN, MIXED], TAKEN)
    assert grids == {"plain": {"lr": (1, 2)}, "mixed": {"lr": (1, 2), "alpha": (0.1, 0.2)}}


@pytest.mark.parametrize(
    ("tune", "error", "message"),
    [
        ([1], TypeError, "must be a mapping"),
        ({"lr": 0.1}, TypeError, "tune\\['lr'\\]=0.1 must be a list"),
        ({"lr": []}, ValueError, "at least one value"),
        ({"lr": [1, 1]}, ValueError, "has a value twice"),
        ({"lr": [[1]]}, TypeError, "must be numbers, strings"),
        ({"learning_rate": [1]}, ValueError, r"\['learning_rate'\] for arm 'plain', which neither"),
        ({"alpha": [1]}, ValueError, r"for arm 'plain'.*it takes \['lr', 'width'\]"),
        ({"third": {"lr": [1]}}, ValueError, r"values for 'third'; the arms are \['plain', 'mi"),
        ({"seed": [1]}, ValueError, "which compare itself passes"),
        ({"max_duration": ["2ep"]}, ValueError, "which compare itself passes"),
    ],
)
def test_invalid_grids_are_errors(tune, error, message):
    with pytest.raises(error, match=message):
        grids_of(tune, [PLAIN, MIXED], TAKEN)


def test_a_build_function_with_any_hyperparameters_takes_all_names():
    assert grids_of({"depth": [1]}, [PLAIN], None) == {"plain": {"depth": (1,)}}


def test_a_required_hyperparameter_of_an_arm_needs_values():
    with pytest.raises(ValueError, match=r"arm 'needy' requires \['alpha'\]"):
        grids_of({}, [Arm("needy", lambda alpha: [])], TAKEN)


def test_configurations_are_the_product_of_the_values():
    tried = configurations({"plain": {"lr": (1, 2), "width": (3, 4)}})
    assert tried.count == 4
    assert tried.by_arm["plain"][1] == {"lr": 1, "width": 4}
    assert tried.notes == ()


def test_without_values_there_is_one_configuration():
    assert configurations({"plain": {}}).by_arm == {"plain": ({},)}


def test_larger_grids_are_sampled_down_to_the_smallest_and_a_note_says_so():
    tried = configurations({"plain": {"lr": (1, 2)}, "mixed": {"lr": (1, 2), "a": (3, 4, 5)}})
    assert {arm: len(one) for arm, one in tried.by_arm.items()} == {"plain": 2, "mixed": 2}
    assert tried.notes == (
        "Every arm tries 2 configurations: a sample of the larger grids of mixed (6).",
    )


def test_an_arm_without_values_beside_tuned_ones_is_an_error():
    with pytest.raises(ValueError, match=r"tune leaves \['plain'\] a single configuration"):
        configurations({"plain": {}, "mixed": {"alpha": (1, 2)}})


def test_samples_of_equal_grids_are_equal_and_smaller_ones_part_of_larger_ones():
    items = list(range(20))
    assert sample(items, 5) == sample(items, 5)
    assert set(sample(items, 3)) < set(sample(items, 5)) < set(items)
    assert list(sample(items, 5)) == sorted(sample(items, 5))
    assert sample(items, 30) == tuple(items)
