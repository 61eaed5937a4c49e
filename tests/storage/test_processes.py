"""Several processes save to a URL, and continue on machines with empty disks."""

import os
from functools import partial

import pytest

from composable.distributed import DDP, FSDP2
from tests.support import parallel_runs, remote_processes
from tests.support.object_store import BUCKET
from tests.support.processes import attempt, run
from tests.support.remote_run import URL, saved

STRATEGIES = {"DDP": DDP(shards=2), "FSDP2": FSDP2(shards=2)}


def fits(server, tmp_path, machines, **options):
    environment = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}

    def fit(number, **more):
        homes = [str(tmp_path / f"{number}-{i}") for i in range(machines)]
        call = partial(remote_processes.fit, environment, homes, folder=URL, **options, **more)
        return attempt(call, 2)

    return fit


@pytest.mark.parametrize(("name", "machines"), [("DDP", 1), ("DDP", 2), ("FSDP2", 1)])
def test_processes_continue_on_other_machines(name, machines, server, tmp_path):
    options = {"parallel": STRATEGIES[name]}
    fit = fits(server, tmp_path, machines, **options)
    whole = run(partial(parallel_runs.fit, folder=str(tmp_path / "whole"), **options), 2)
    assert [one.kind for one in fit(1, stop=3)] == ["KeyError", "KeyError"]
    assert saved(server) == [2]
    found = fit(2)
    for one, expected in zip(found, whole, strict=True):
        assert one["weights"] == expected["weights"]
    files = server.files.find(f"{BUCKET}/run")
    assert any("tensors-00002-of-00002" in path for path in files) == (name == "FSDP2")


def test_parts_on_different_disks_are_refused(server, tmp_path):
    found = fits(server, tmp_path, 2, parallel=STRATEGIES["FSDP2"])(1)
    assert "must be written to a file system that all processes share" in repr(found)
    assert saved(server) == []
