"""Several processes save to a URL, and continue on machines with empty disks."""

import os
from functools import cache, partial

import pytest

from composable.distributed import DDP, FSDP2
from tests.support import parallel_runs, remote_processes
from tests.support.campaign import each_pair
from tests.support.losses import NaNOnce
from tests.support.object_store import BUCKET
from tests.support.processes import attempt, run
from tests.support.remote_run import URL, saved

ROLLS_BACK = {"nonfinite_loss": "rollback", "loss_mean_over": "examples"}
WAYS = {
    "plain": dict,
    "rollback": lambda: {**ROLLS_BACK, "loss_fn": NaNOnce(3)},
    "best": lambda: {"load_best_at_end": True, "save_best": "accuracy", "save_best_mode": "min"},
}
STRATEGIES = {"DDP": DDP(shards=2), "FSDP2": FSDP2(shards=2)}


def fits(tmp_path, machines, **options):
    environment = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}

    def fit(number, **more):
        homes = [str(tmp_path / f"{number}-{i}") for i in range(machines)]
        call = partial(remote_processes.fit, environment, homes, folder=URL, **options, **more)
        return attempt(call, 2)

    return fit


@pytest.fixture(scope="module")
def whole_of(tmp_path_factory):
    """Return a function to an uninterrupted run in a local folder."""

    @cache
    def trained(name, way="plain"):
        options = {"parallel": STRATEGIES[name], **WAYS[way]()}
        folder = str(tmp_path_factory.mktemp("whole"))
        return run(partial(parallel_runs.fit, folder=folder, **options), 2)

    return trained


@pytest.mark.parametrize(
    ("name", "machines", "others"), each_pair(STRATEGIES, [1, 2], [True, False])
)
def test_processes_continue_on_these_and_on_other_machines(
    name, machines, others, server, whole_of, tmp_path
):
    fit = fits(tmp_path, machines, parallel=STRATEGIES[name])
    assert [one.kind for one in fit(1, stop=3)] == ["KeyError", "KeyError"]
    assert saved(server) == [2]
    found = fit(2 if others else 1)
    for one, expected in zip(found, whole_of(name), strict=True):
        assert one["weights"] == expected["weights"]
    files = server.files.find(f"{BUCKET}/run")
    assert any("tensors-00002-of-00002" in path for path in files) == (name == "FSDP2")
    assert not any(".parts" in path for path in files)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("way", ["rollback", "best"])
def test_machines_read_what_others_saved_within_a_run(way, name, server, whole_of, tmp_path):
    found = fits(tmp_path, 2, parallel=STRATEGIES[name], **WAYS[way]())(1)
    for one, expected in zip(found, whole_of(name, way), strict=True):
        assert one["weights"] == expected["weights"]
        assert one["metrics"] == expected["metrics"]
