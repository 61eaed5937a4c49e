"""Several processes save to a URL, and continue on machines with empty disks."""

import os
from functools import partial

import pytest

from composable.distributed import DDP, FSDP2
from tests.support import parallel_runs, remote_processes
from tests.support.object_store import BUCKET
from tests.support.processes import run
from tests.support.remote_run import URL, saved

STRATEGIES = {"DDP": DDP(shards=2), "FSDP2": FSDP2(shards=2)}


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("name", STRATEGIES)
def test_processes_continue_on_other_machines(name, machines, server, tmp_path):
    environment = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    options = {"parallel": STRATEGIES[name]}

    def fit(number, **more):
        homes = [str(tmp_path / f"{number}-{i}") for i in range(machines)]
        call = partial(remote_processes.fit, environment, homes, folder=URL, **options, **more)
        return run(call, 2)

    whole = run(partial(parallel_runs.fit, folder=str(tmp_path / "whole"), **options), 2)
    assert fit(1, stop=3) == [None, None]
    assert saved(server) == [2]
    found = fit(2)
    for one, expected in zip(found, whole, strict=True):
        assert one["weights"] == expected["weights"]
    assert found[0]["losses"][-3:] == whole[0]["losses"][-3:]
    files = server.files.find(f"{BUCKET}/run")
    assert any("tensors-00002-of-00002" in path for path in files) == (name == "FSDP2")
