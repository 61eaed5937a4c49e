"""Trials in worker processes: real ones, so they are few."""

import copy
import os
import pickle
import threading
from concurrent.futures import BrokenExecutor, Future
from types import SimpleNamespace

import cloudpickle
import pytest

import composable
import composable.functional as F
from composable import algorithms, optim
from composable.comparison import execution
from composable.comparison.building import BuildError
from composable.comparison.execution import ProcessRun, TrialProgress, Worker, Workers, pickled
from composable.comparison.study_file import Cache
from composable.comparison.trial import run_trial
from tests.support.commands import Command
from tests.support.comparison import (
    build,
    build_or_die,
    compared,
    fork_workers,
    trial,
    work_in_threads,
)
from tests.support.processes import is_alive, wait_until

TRIALS = {
    "first": trial(arm="mixed", seed=1),
    "exit": trial(seed=2, how="exit"),
    "raise": trial(seed=3, how="raise"),
    "last": trial(seed=4),
}


def workers(folder, function, count=1):
    subject = compared(function, metrics=("eval/loss",))
    return Workers(subject, Cache(folder / "cache", subject), count, folder)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run some trials, one of which ends its worker, and return the results by name.

    A file beside the script has the name of a module, and must not be imported.
    """
    folder = tmp_path_factory.mktemp("pool")
    (folder / "json.py").write_text("raise ImportError('the wrong json')")
    pool = workers(folder, build_or_die)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        fork_workers(patch, after=1)
        results = pool.train("trials", list(TRIALS.values()))
        pool.stop()
    assert pool._own == {}
    return folder, dict(zip(TRIALS, results, strict=True))


def test_a_trial_gives_the_same_results_as_in_this_process(ran):
    one, found = TRIALS["first"], ran[1]["first"]
    here = run_trial(compared(build_or_die), one)

    assert (found.outcome, found.trial) == ("finished", one)
    assert [one.metrics for one in found.curve] == [one.metrics for one in here.curve]


def test_a_worker_that_dies_fails_its_trial_only(ran):
    folder, results = ran

    assert results["exit"].outcome == "failed"
    assert "the worker process died (EXIT(7))" in results["exit"].error
    assert f"{folder / 'worker-0.log'}:\nbefore the end" in results["exit"].error
    assert results["last"].outcome == "finished"


def test_an_exception_fails_its_trial(ran):
    assert (ran[1]["raise"].outcome, ran[1]["raise"].error) == ("failed", "OSError: no such data")


def test_finished_trials_are_read_and_failed_ones_are_run_again(ran, monkeypatch):
    pool = workers(ran[0], build_or_die)
    monkeypatch.setattr(pool, "_worker", lambda number: pytest.fail("a worker was started"))
    stored = pool.train("trials", [TRIALS["first"], TRIALS["last"]])
    assert stored == [ran[1]["first"], ran[1]["last"]]
    assert len(list((ran[0] / "cache").iterdir())) == 2


@pytest.mark.parametrize(("alone", "most"), [(False, 3), (True, 1)])
def test_trials_that_measure_costs_run_one_at_a_time(tmp_path, monkeypatch, alone, most):
    pool, running = workers(tmp_path, build_or_die, 3), []

    class Own:
        def submit(self, *_):
            running.append(Future())
            return running[-1]

    def done(futures, *_, **__):
        counts.append(len(futures))
        first = next(iter(futures))
        first.set_result(None)
        return SimpleNamespace(done=[first])

    counts = []
    monkeypatch.setattr(pool, "_worker", lambda number: Own())
    monkeypatch.setattr(pool, "_result", lambda *_: None)
    monkeypatch.setattr(execution, "wait", done)
    assert len(list(pool._run([trial()] * 4, [*range(4)], alone=alone))) == 4
    assert max(counts) == most


def test_a_measurement_whose_process_dies_says_so(ran, monkeypatch):
    def dies(*arguments):
        job = Future()
        job.set_exception(BrokenExecutor("The exit codes of the workers are {EXIT(7)}"))
        return job

    monkeypatch.setattr(Worker, "__init__", lambda self, folder, number, threads: None)
    monkeypatch.setattr(Worker, "submit", dies, raising=False)
    monkeypatch.setattr(Worker, "_log", ran[0] / "worker-0.log", raising=False)
    run = ProcessRun(ran[0], 0, compared(build_or_die), trial(), 24)
    with pytest.raises(RuntimeError, match=r"process died \(EXIT\(7\)\); the end of its log"):
        run.advance()


def test_a_fault_of_the_function_ends_the_comparison(tmp_path, monkeypatch):
    def ignoring(algorithms, seed):
        return build(algorithms, 7)

    work_in_threads(monkeypatch)
    with pytest.raises(BuildError, match="Trainer with seed=7"):
        workers(tmp_path, ignoring).train("trials", [trial()])


def test_the_progress_counts_trials_and_takes_cached_ones_as_done():
    progress = TrialProgress(lambda trial: 2.0, show=True)
    progress.start("tuning", [trial(seed) for seed in range(4)])
    progress.finish(trial(0), cached=True)
    progress.finish(trial(1))
    assert (progress.finished, progress.total) == (2, 4)
    assert (progress._bar.n, progress._bar.initial, progress._bar.total) == (4.0, 2.0, 8.0)
    progress.start("reported runs", [trial(seed) for seed in range(3)])
    assert (progress.total, progress._bar.total) == (5, 10.0)
    progress.close()


# --- what is sent ---


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="build cannot be sent to worker processes"):
        pickled("build", lambda algorithms, seed: lock)


def test_a_function_that_uses_the_package_is_sent():
    def build(algorithms, seed):
        return composable.Trainer, composable.functional.mixup, F.cutmix

    assert pickle.loads(pickled("build", build))(1, 2) == (
        composable.Trainer,
        F.mixup,
        F.cutmix,
    )


@pytest.mark.parametrize(
    "package", [composable, F, algorithms, optim], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("library", [pickle, cloudpickle])
def test_a_package_is_pickled_by_its_name(package, library):
    assert pickle.loads(library.dumps(package)) is package
    assert copy.deepcopy(package) is package


SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from composable import Trainer
from composable.comparison.study_file import Cache
from composable.comparison.execution import Workers
from composable.comparison.records import Trial
from composable.comparison.arms import Arm
from composable.comparison.trial import Compared

class Model(torch.nn.Linear):
    pass

data = [(torch.ones(8, 4), torch.zeros(8).long())] * 4
folder = Path.cwd()

def build(algorithms, seed):
    if seed:
        open(folder / f"pid-{seed}", "w").write(str(os.getpid()))
        time.sleep(600)
    return Trainer(
        Model(4, 3), train_dataloader=data, eval_dataloader=data, algorithms=algorithms,
        loss_fn=torch.nn.functional.cross_entropy, seed=seed,
        optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )

trials = [Trial("plain", {}, "2ep", seed, "reporting") for seed in (0, 1)]
arms = {"plain": Arm("plain", ())}
subject = Compared(function=build, arms=arms)  # no `if __name__`: workers don't run the script
Workers(subject, Cache(folder / "cache", subject), 1, folder).train("trials", trials)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL")
def test_a_comparison_that_is_killed_leaves_no_workers_and_keeps_finished_trials(tmp_path):
    pid = tmp_path / "pid-1"
    process = Command(tmp_path, SCRIPT)
    try:
        wait_until(lambda: pid.exists() and pid.read_text(), 300)
    finally:
        process.kill()
    wait_until(lambda: not is_alive(int(pid.read_text())))
    assert len(list((tmp_path / "cache").iterdir())) == 1
