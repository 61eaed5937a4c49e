"""The time left follows from the cost of trials, not from their number."""

import pytest

from composable.comparison.plan.progress import Progress, TimeLeft, format_seconds
from composable.comparison.records import Seconds, Trial, TrialResult


def trial(arm, duration, seed=0):
    return Trial(arm, {}, duration, seed, "reporting")


def result(one, seconds, setup=0.0, outcome="finished"):
    return TrialResult(one, outcome, 1, Seconds(setup, 0.0, seconds, 0.0), ())


class Watch:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_long_trial_of_a_dear_arm_counts_for_more():
    watch = Watch()
    trials = [
        trial("plain", "10ba"),
        trial("dear", "10ba"),
        trial("plain", "100ba"),
        trial("dear", "100ba"),
    ]
    progress = Progress(None, show=False, now=watch)
    progress.start("reported runs", trials)
    assert progress.left is None
    watch.now = 4.0
    progress.finish(result(trials[0], 1.0))
    progress.finish(result(trials[1], 3.0))
    assert (progress.finished, progress.total) == (2, 4)
    assert progress.left == pytest.approx(10 + 30)
    watch.now = 34.0
    progress.finish(result(trials[3], 30.0))
    assert progress.left == pytest.approx(10)


def test_a_stage_without_trials_has_a_time_left_of_its_own():
    watch = Watch()
    progress = Progress(None, show=False, now=watch)
    progress.start("reported runs", [trial("plain", "10ba")])
    watch.now = 100.0
    progress.finish(result(trial("plain", "10ba"), 100.0))
    progress.start("costs of steps", ())
    assert progress.left is None
    watch.now = 110.0
    progress.advance(0.25)
    assert progress.left == pytest.approx(30.0)
    progress.advance(1.0)
    assert progress.left is None


def test_parallel_trials_shorten_the_time_left():
    watch = Watch()
    trials = [trial("plain", "10ba", seed) for seed in range(6)]
    progress = Progress(None, show=False, now=watch)
    progress.start("reported runs", trials)
    watch.now = 1.0
    for one in trials[:2]:
        progress.finish(result(one, 1.0))
    assert progress.left == pytest.approx(2.0)


def test_short_trials_and_the_start_of_the_workers_give_no_estimate():
    watch = Watch()
    short, trials = trial("plain", "20ba"), [trial("plain", "400ba", seed) for seed in range(4)]
    progress = Progress(None, show=False, now=watch)
    progress.start("short trials", [short, *trials])
    watch.now = 30.0  # of which the trial took 4
    progress.finish(result(short, 1.0, setup=3.0))
    assert progress.left is None
    progress.start("tuning", trials)
    assert progress.left is None
    watch.now = 53.0
    progress.finish(result(trials[0], 20.0, setup=3.0))
    assert progress.left == pytest.approx(3 * 23 * 53 / 27)


def test_without_a_trial_that_remains_there_is_no_estimate():
    watch = Watch()
    progress = Progress(None, show=False, now=watch)
    progress.start("reported runs", [trial("plain", "10ba")])
    watch.now = 1.0
    progress.finish(result(trial("plain", "10ba"), 1.0))
    progress.start("costs of steps", ())
    assert progress.left is None


def test_cached_trials_give_costs_but_not_the_speed_of_this_call():
    watch = Watch()
    trials = [trial("plain", "10ba", seed) for seed in range(4)]
    progress = Progress(None, show=False, now=watch)
    progress.start("reported runs", trials)
    progress.finish(result(trials[0], 1.0), cached=True)
    assert progress.left is None
    watch.now = 2.0
    progress.finish(result(trials[1], 1.0))
    assert progress.left == pytest.approx(4.0)


def test_set_up_counts_once_for_each_trial():
    time_left = TimeLeft(epoch_length=5)
    time_left.learn(result(trial("plain", "2ep"), 1.0, setup=3.0))
    assert time_left.seconds_of(trial("plain", "4ep")) == pytest.approx(3.0 + 2.0)


def test_unknown_arms_cost_as_much_as_the_mean_of_the_others():
    time_left = TimeLeft(None)
    time_left.learn(result(trial("plain", "10ba"), 1.0))
    time_left.learn(result(trial("dear", "10ba"), 3.0))
    assert time_left.seconds_of(trial("new", "10ba")) == pytest.approx(2.0)


def test_failed_trials_give_no_costs():
    time_left = TimeLeft(None)
    time_left.learn(result(trial("plain", "10ba"), 0.0, outcome="failed"))
    assert time_left.seconds_of(trial("plain", "10ba")) == 0.0


def test_a_stage_replaces_the_trials_that_were_planned():
    progress = Progress(None, show=False)
    progress.start("tuning", [trial("plain", "10ba", seed) for seed in range(8)])
    progress.finish(result(trial("plain", "10ba", 0), 1.0))
    progress.start("reported runs", [trial("plain", "10ba", 9)])
    assert (progress.finished, progress.total) == (1, 2)


def test_the_bar_shows_the_stage_and_the_time_left(capsys):
    watch = Watch()
    progress = Progress(None, now=watch)
    trials = [trial("plain", "10ba", seed) for seed in range(3)]
    progress.start("tuning", trials)
    watch.now = 60.0
    progress.finish(result(trials[0], 1.0))
    progress.close()
    progress.close()
    shown = capsys.readouterr().err
    assert "tuning: 1/3 trials" in shown
    assert "about 2 min left" in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (3599, "1 h 0 min"), (5400, "1 h 30 min")],
)
def test_times_are_readable(seconds, text):
    assert format_seconds(seconds) == text
