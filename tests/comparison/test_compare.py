"""Comparisons from beginning to end, with worker processes and very small models."""

import os
import re
import signal
import sys
import threading

import attrs
import pytest

import composable
from composable.algorithms import EMA, LabelSmoothing
from composable.cli import main
from composable.comparison import Comparison, Study, Verdict, stages
from composable.comparison.building import BuildError
from composable.comparison.compare import NothingToCompareError, check_results, equal_arms
from composable.comparison.records import Evaluation, Seconds, Trial, TrialResult
from tests.comparison.small import build, build_of_updates, descend, design
from tests.support.comparison import compare_in_threads, fork_workers
from tests.support.processes import wait_until
from tests.support.signals import signals_set

compare_module = sys.modules["composable.comparison.compare"]
SMALL = {
    "metric": "test/accuracy",
    "durations": ["1ep", "2ep"],
    "seeds": 2,
    "workers": 1,
    "progress_bar": False,
}


def reported(study, arm):
    return [
        (one.trial.duration, one.trial.seed)
        for one in study.results
        if one.trial.arm == arm and one.trial.purpose == "reporting"
    ]


@pytest.fixture
def unsaved(monkeypatch):
    """Write no plots, which take longer than training here."""
    monkeypatch.setattr(Comparison, "save", lambda self, folder: folder)


def compare(function, arms, folder, **options):
    """Compare in a thread, by given costs."""
    cost = dict.fromkeys(["baseline", *arms], 1.0)
    return compare_in_threads(function, arms, folder=folder, cost=cost, **{**SMALL, **options})


def test_a_comparison_trains_tunes_and_reports_and_the_next_call_reuses_it(
    tmp_path, capsys, unsaved
):
    folder = tmp_path / "compared"
    own = {"durations": {"baseline": ["1ep", "2ep"], "smoothing": ["1ep", "3ep"]}}
    options = {**own, "tune": {"lr": [0.01, 0.1]}, "tuning_seeds": 1}
    arms = {"smoothing": [LabelSmoothing(0.1)]}
    first = compare(build, arms, folder, **options)
    study = first.study
    assert isinstance(first, Comparison)
    assert isinstance(study, Study)
    assert study.protocol.arms == ("baseline", "smoothing", "baseline (repeated)")
    assert study.protocol.tuning_metric == "validation/accuracy"
    assert study.protocol.clock == "cpu"
    assert reported(study, "smoothing") == [("1ep", 0), ("3ep", 0), ("1ep", 1), ("3ep", 1)]
    assert study.protocol.durations == ("1ep", "2ep")
    assert study.protocol.own_durations == {"smoothing": ("1ep", "3ep")}
    assert {one.outcome for one in study.results} == {"finished"}
    assert study.protocol.chosen["smoothing"]["lr"] in (0.01, 0.1)
    printed = capsys.readouterr().out
    assert first.table() in printed
    assert str(folder) in printed
    stored = {path: path.stat().st_mtime_ns for path in (folder / "trials").iterdir()}

    second = compare(build, arms, folder, **options, seeds=1)
    assert {path: path.stat().st_mtime_ns for path in stored} == stored
    assert all(one in study.results for one in second.study.results)
    assert reported(second.study, "smoothing") == [("1ep", 0), ("3ep", 0)]
    assert Comparison.load(folder).study == second.study


def test_an_arm_whose_runs_fail_does_not_end_the_comparison(tmp_path, unsaved):
    def failing(algorithms, seed):
        if algorithms == [LabelSmoothing(0.9)]:
            raise RuntimeError("no such smoothing")
        return build(algorithms, seed)

    arms = {"good": [LabelSmoothing(0.1)], "bad": [LabelSmoothing(0.9)]}
    comparison = compare(failing, arms, tmp_path, durations=["3ba"], repeat_baseline=False)
    bad = [one for one in comparison.study.results if one.trial.arm == "bad"]
    assert {(one.outcome, one.error) for one in bad} == {
        ("failed", "RuntimeError: no such smoothing")
    }


def study_of(results):
    return Study(design().protocol, tuple(results), ())


def result(arm, outcome, error=None):
    trial = Trial(arm, {}, "4ep", 0, "reporting")
    return TrialResult(trial, outcome, 40, Seconds(0, 0, 1, 0), (), error)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (
            [result("baseline", "failed", "ValueError: no"), result("other", "finished")],
            "no run of baseline finished. baseline, 4ep, seed 0: ValueError: no",
        ),
        (
            [
                result("baseline", "finished"),
                result("other", "diverged"),
                result("baseline (repeated)", "finished"),
            ],
            "no run of other finished. other, 4ep, seed 0: diverged",
        ),
    ],
)
def test_without_a_result_to_compare_the_reason_is_an_error(results, message):
    with pytest.raises(NothingToCompareError, match=re.escape(message)):
        check_results(study_of(results), "build")


def runs_of(arm, losses):
    """Return a finished run for each loss, with seeds from 0."""
    return [
        attrs.evolve(
            result(arm, "finished"),
            trial=Trial(arm, {}, "4ep", seed, "reporting"),
            curve=(Evaluation(40, {"test/accuracy": 0.5, "test/loss": loss}),),
        )
        for seed, loss in enumerate(losses)
    ]


def test_runs_that_do_not_depend_on_the_seed_are_an_error():
    runs = [*runs_of("baseline", [0.4, 0.3]), *runs_of("other", [0.5, 0.5])]
    with pytest.raises(BuildError, match=r"arm 'other' have the same results for the seeds 0, 1"):
        check_results(study_of(runs), "build")


def test_runs_with_equal_results_of_some_metrics_may_be_compared():
    runs = [*runs_of("baseline", [0.4, 0.3]), *runs_of("other", [0.5])]
    check_results(study_of(runs), "build")


def test_an_arm_without_an_effect_is_noted():
    runs = [*runs_of("baseline", [0.4, 0.3]), *runs_of("other", [0.4, 0.3])]
    (note,) = equal_arms(study_of(runs))
    assert note.startswith("Arm 'other' has the same results as 'baseline'")
    assert equal_arms(study_of([*runs[:3], *runs_of("other", [0.4, 0.2])])) == []
    assert equal_arms(study_of(runs[:1])) == []


def test_an_algorithm_that_cannot_be_sent_is_found_before_training(tmp_path, monkeypatch):
    lock = threading.Lock()

    def locked(event, state):
        with lock:
            return state

    monkeypatch.setattr(compare_module, "train_designs", lambda *_: pytest.fail("has trained"))
    with pytest.raises(TypeError, match=r"arm 'locked' cannot be sent.*algorithm"):
        composable.compare(build, {"locked": [locked]}, folder=tmp_path, **SMALL)


def test_a_comparison_that_a_worker_imports_is_an_error(monkeypatch):
    monkeypatch.setenv("COMPOSABLE_COMPARISON_WORKER", "1")
    with pytest.raises(RuntimeError, match="put the call under if __name__ == '__main__'"):
        composable.compare(build, {"other": []}, metric="test/accuracy")


def test_runs_of_several_updates_are_compared(tmp_path, unsaved):
    arms = {"averaged": [EMA("4ba")]}
    study = compare(build_of_updates, arms, tmp_path).study
    for arm in ("baseline", "averaged"):
        assert [duration for duration, _ in reported(study, arm)] == ["1ep", "2ep"] * 2


# --- loops, given costs and added schedules: in threads, without a process ---

LOOP = {
    "run": descend,
    "baseline": {"factor": 1},
    "metric": "test/loss",
    "seeds": 3,
    "durations": ["10ba", "20ba"],
    "repeat_baseline": False,
    "progress_bar": False,
}


def compare_loop(folder, **changes):
    given = {**LOOP, "arms": {"fast": {"factor": 2}}, "cost": {"baseline": 1.0, "fast": 1.0}}
    return compare_in_threads(folder=folder, workers=2, **{**given, **changes})


def test_a_loop_is_compared_by_given_costs(tmp_path, unsaved):
    durations = {"baseline": ["10ba", "20ba", "40ba"], "fast": ["5ba", "10ba", "20ba"]}
    comparison = compare_loop(tmp_path, durations=durations)
    study = comparison.study
    assert comparison.verdict("fast") is Verdict.PAYS
    assert comparison.speedup("fast").value == pytest.approx(2.12, rel=0.05)
    assert [one.seconds for one in study.costs] == [((1.0,),), ((1.0,),)]
    assert study.protocol.notes[-1] == "The costs of steps were given, not measured."


@pytest.mark.parametrize(
    "cost", [{"baseline": 1.0}, {"baseline": 1.0, "fast": 0}, {"baseline": 1.0, "fast": "1"}, 3]
)
def test_given_costs_are_those_of_all_arms(tmp_path, cost):
    with pytest.raises((TypeError, ValueError), match="cost"):
        compare_loop(tmp_path, cost=cost)


def test_the_schedule_that_the_analysis_names_lets_results_overlap(tmp_path, unsaved):
    far = {"baseline": ["10ba", "20ba"], "fast": ["20ba", "40ba"]}
    once = compare_loop(tmp_path, durations=far)
    more = {**far, "fast": [*far["fast"], once.analysis.needed["fast"]]}
    again = compare_loop(tmp_path, durations=more)
    assert again.analysis["fast"].covered > once.analysis["fast"].covered


SCRIPT = """
import time
from composable import Callback
from composable.algorithms import LabelSmoothing
from tests.comparison.small import build as small_build

class Slow(Callback):
    def batch_end(self, state, logger):
        time.sleep(0.005)

def build(algorithms, seed, lr=0.05):
    trainer = small_build(algorithms, seed, lr)
    trainer.add_callback(Slow())
    return trainer

arms = {"smoothing": [LabelSmoothing(0.1)]}

if __name__ == "__main__":
    raise SystemExit("the command does not run this")
"""
OPTIONS = ["--metric", "test/accuracy", "--durations", "2ep,4ep", "--seeds", "2", "--workers", "1"]


def interrupt(folder, trials):
    """Send the signal of Ctrl-C as soon as some trials are stored."""

    def watch():
        wait_until(lambda: len(list(folder.glob("trials/*.json"))) >= trials, 300)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


@pytest.mark.usefixtures("unsaved")
def test_the_command_resumes_after_an_interrupt_and_repeats_nothing(tmp_path, monkeypatch, capsys):
    script, folder = tmp_path / "points.py", tmp_path / "comparisons" / "points"
    script.write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(stages, "_PROCESSES", 1)
    fork_workers(monkeypatch)

    def run(*options):
        monkeypatch.delitem(sys.modules, "points", raising=False)
        return main(["compare", str(script), *OPTIONS, *options])

    interrupt(folder, 2)
    with signals_set():
        assert run("--no-repeat") == 130
    output, errors = capsys.readouterr()
    assert "of 8 planned trials are finished" in output
    assert f"To resume: composable compare {script}" in errors
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("trials/*.json")}
    assert 2 <= len(kept) < 8

    assert run("--no-repeat") == 0
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*/*.json")}
    assert len(list(folder.glob("trials/*.json"))) == 8
    assert {name: after[name] for name in kept} == kept
    assert "smoothing" in capsys.readouterr().out
    study = Comparison.load(folder).study
    assert len(study.results) == 8
    assert study.protocol.command.startswith(f"composable compare {script} --metric")
    assert [(one.arm, one.duration, one.processes) for one in study.costs] == [
        ("baseline", "4ep", 1),
        ("smoothing", "4ep", 1),
    ]

    assert run("--no-repeat", "--seeds", "1") == 0  # starts no process
    again = {path.name: path.stat().st_mtime_ns for path in folder.glob("*/*.json")}
    assert again == after
    assert Comparison.load(folder).study.costs == study.costs
