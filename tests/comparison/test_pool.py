"""Trials in worker processes: real ones, so they are few."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from composable.algorithms import MixUp
from composable.comparison.trials.building import BuildError
from composable.comparison.trials.cache import Cache
from composable.comparison.trials.pool import Pool
from composable.comparison.trials.trial import run_trial
from tests.support.comparison import build, build_or_die, request
from tests.support.signals import set_signals

REQUESTS = {
    "first": request(MixUp(0.3), seed=1),
    "exit": request(seed=2, how="exit"),
    "raise": request(seed=3, how="raise"),
    "last": request(seed=4),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run some trials, one of which ends its worker, and return the results by name."""
    folder = tmp_path_factory.mktemp("pool")
    cache = Cache(folder / "cache")
    with Pool(build_or_die, workers=1, folder=folder, metrics=["eval/loss"]) as pool:
        results = list(pool.run(REQUESTS.values(), cache))
    by_seed = {one.trial.seed: one for one in results}
    return folder, {name: by_seed[one.trial.seed] for name, one in REQUESTS.items()}


def test_a_trial_gives_the_same_results_as_in_this_process(ran):
    request, found = REQUESTS["first"], ran[1]["first"]
    here = run_trial(build_or_die, request.arguments, request.trial)

    assert (found.outcome, found.trial) == ("finished", request.trial)
    assert [one.metrics for one in found.curve] == [one.metrics for one in here.curve]


def test_a_worker_that_ends_fails_its_trial_only(ran):
    folder, results = ran

    assert results["exit"].outcome == "failed"
    assert "exit code 7" in results["exit"].error
    assert f"{folder / 'worker-0.log'}:\nbefore the end" in results["exit"].error
    assert results["last"].outcome == "finished"


def test_an_exception_fails_its_trial(ran):
    assert ran[1]["raise"].outcome == "failed"
    assert ran[1]["raise"].error == "OSError: no such data"


def test_finished_trials_are_read_and_failed_ones_are_run_again(ran):
    folder = ran[0]
    with Pool(build_or_die, workers=1, folder=folder, metrics=["eval/loss"]) as pool:
        stored = pool.run([REQUESTS["first"], REQUESTS["last"]], Cache(folder / "cache"))
        assert list(stored) == [ran[1]["first"], ran[1]["last"]]
        assert pool.peak_memory == 0  # no worker was started
    assert len(list((folder / "cache").iterdir())) == 2


def test_a_file_of_the_name_of_a_module_beside_the_script_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise ImportError('the wrong json')")
    monkeypatch.syspath_prepend(tmp_path)
    with Pool(build, workers=1) as pool:
        (result,) = pool.run([request(duration="1ba")])
    assert result.outcome == "finished"


def test_a_trial_that_takes_too_long_fails():
    with Pool(build_or_die, workers=1, time_limit=0.3) as pool:
        (result,) = pool.run([request(how="sleep")])

    assert result.outcome == "failed"
    assert "longer than time_limit=0.3 seconds" in result.error


def test_a_fault_of_the_function_ends_the_comparison():
    local = {"seed": 7}

    def closure(algorithms, seed):
        return build(algorithms, **local)

    with (
        Pool(closure, workers=1) as pool,
        pytest.raises(BuildError, match="returned a Trainer with seed=7"),
    ):
        list(pool.run([request()]))


def test_refuses_what_cannot_be_sent():
    lock = threading.Lock()

    def locked(algorithms, seed):
        return lock

    with pytest.raises(TypeError, match="build cannot be sent to worker processes"):
        Pool(locked, workers=1).__enter__()
    with (
        Pool(build, workers=1) as pool,
        pytest.raises(TypeError, match="arguments of arm 'plain' cannot be sent"),
    ):
        list(pool.run([request(lr=lock)]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers=0 must be at least 1"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"time_limit": 0}, "time_limit=0 must be a positive number"),
    ],
)
def test_refuses_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Pool(build, **arguments)


SCRIPT = """
import os, sys, time
from functools import partial
import torch
from composable import Trainer
from composable.comparison.trials.cache import Cache
from composable.comparison.trials.pool import Pool
from composable.comparison.records import Trial
from composable.comparison.trials.trial import Request

class Model(torch.nn.Linear):
    pass

data = [(torch.ones(8, 4), torch.zeros(8).long())] * 4

def build(algorithms, seed):
    if seed:
        open(f"{sys.argv[1]}/pid-{seed}", "w").write(str(os.getpid()))
        time.sleep(600)
    return Trainer(
        Model(4, 3), train_dataloader=data, eval_dataloader=data, algorithms=algorithms,
        loss_fn=torch.nn.functional.cross_entropy, seed=seed,
        optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )

requests = [
    Request(Trial("plain", {}, "2ep", seed, "reporting"), {"algorithms": []}) for seed in (0, 1, 2)
]
with Pool(build, workers=2) as pool:  # no `if __name__`: workers don't run the script
    for result in pool.run(requests, Cache(sys.argv[1] + "/cache")):
        print(result.trial.seed, result.outcome, flush=True)
"""


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_all_workers_and_keeps_finished_trials(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    pids = [tmp_path / "pid-1", tmp_path / "pid-2"]
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=set_signals,
    ) as process:
        try:
            assert process.stdout.readline() == "0 finished\n", process.stderr.read()
            assert _within(60, lambda: all(one.exists() and one.read_text() for one in pids))
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()

    assert errors.strip().endswith("KeyboardInterrupt")
    assert _within(10, lambda: not any(_is_alive(int(one.read_text())) for one in pids))
    assert len(list((tmp_path / "cache").iterdir())) == 1
