"""Runs on two hosts, which are network namespaces of this machine."""

import sys
import time
from functools import partial
from unittest import mock

import pytest

from tests.support.forked_hosts import ForkedHosts
from tools.hosts import train
from tools.hosts.campaign import SCRIPT, Case, launch, reaches, run, weights
from tools.hosts.campaign import start as begin
from tools.hosts.faults import FAULTS
from tools.hosts.network import ip, wait, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
SECONDS = 150
campaign = pytest.mark.campaign


def torchrun(host, *arguments, **options):
    shown = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    counts = ["--nnodes=2", "--nproc-per-node=1", *shown]
    return [sys.executable, "-m", "torch.distributed.run", *counts, SCRIPT, *arguments]


def static(host, *arguments):
    return torchrun(host, *arguments, node_rank=host, master_addr="node0", master_port=29500)


def elastic(host, *arguments):
    place = {"rdzv_backend": "c10d", "rdzv_endpoint": "node0:29500", "rdzv_id": "a"}
    return torchrun(host, *arguments, **place)


def by_hand(host, *arguments):
    variables = {"RANK": host, "WORLD_SIZE": 2, "MASTER_ADDR": "node0", "MASTER_PORT": 29500}
    shown = [f"{name}={value}" for name, value in variables.items()]
    return ["env", *shown, sys.executable, SCRIPT, *arguments]


def ends(hosts, folder, commands):
    """Run a command on each host; return the statuses and the logs."""
    logs = [folder / f"{host}.log" for host in range(len(commands))]
    started = {n: hosts.start(n, command, logs[n]) for n, command in enumerate(commands)}
    found = wait(started, time.monotonic(), SECONDS)
    return [found[n][0] for n in started], [log.read_text() for log in logs]


def alone(folder, batches):
    """Return the weights of a run of one process."""
    options = ["--batches", str(batches), "--engine", "exact"]
    with mock.patch.object(sys, "argv", [str(SCRIPT), str(folder), *options]):
        train.main()
    return weights(folder)


@pytest.fixture(scope="module")
def four_batches(tmp_path_factory):
    """Return the weights of a short run of one process."""
    return alone(tmp_path_factory.mktemp("alone"), 4)


@pytest.mark.parametrize(
    ("names", "start"),
    [
        ("debian", launch),
        *(pytest.param("plain", one, marks=campaign) for one in (launch, static, elastic, by_hand)),
        pytest.param("none", partial(launch, master_addr="10.77.0.10"), marks=campaign),
        pytest.param("several", launch, marks=campaign),
    ],
)
def test_a_run_on_two_hosts_is_that_of_one_process(names, start, four_batches, tmp_path):
    with ForkedHosts(2, tmp_path / "hosts", "debian" if names == "several" else names) as hosts:
        for host in (0, 1) if names == "several" else ():
            inside = f"-n {hosts.space(host)}"
            ip(f"{inside} link add another type bridge")
            ip(f"{inside} addr add 192.168.7.{host + 1}/32 dev another")
            ip(f"{inside} link set another up")
        options = (tmp_path / "run", "--batches", 4, "--engine", "exact")
        statuses, said = ends(hosts, tmp_path, [start(host, *options) for host in (0, 1)])
    assert statuses == [0, 0], said
    assert weights(tmp_path / "run") == four_batches


DISAGREEMENTS = {
    "data": (["--data", 1], {}, [1, 1], "dataset/digest is"),
    "job": (["--batches", 3], {}, [1, 1], "start each job with another"),
    "processes": ([], {"nproc": 2, "world_size": 4}, [1, 1], "start each job with another"),
    "folder": ([], {}, [0, 0], "is not the folder of rank 0 on node0"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "data" else campaign) for n in DISAGREEMENTS]
)
def test_a_disagreement_of_hosts_is_named(name, tmp_path):
    other, options, expected, text = DISAGREEMENTS[name]
    job = {"master_port": 29500}
    with ForkedHosts(2, tmp_path / "hosts") as hosts:
        saves = hosts.disk / "saves" if name == "folder" else tmp_path / "saves"
        same = (tmp_path / "run", "--saves", saves)
        commands = [launch(0, *same, **job), launch(1, *same, *other, **job | options)]
        if name == "data":  # nothing in it is of the launchers
            commands = [by_hand(0, *same), by_hand(1, *same, *other)]
        statuses, said = ends(hosts, tmp_path, commands)
    assert statuses == expected, said
    assert text in said[0]
    assert text in said[1] or name == "folder"


@pytest.mark.parametrize("fault", ["cable", "stop"])
def test_every_host_ends_after_a_fault(fault, tmp_path):
    with ForkedHosts(2, tmp_path / "hosts") as hosts:
        found = run(hosts, tmp_path / "run", Case(fault, timeout=6))
    said = [(tmp_path / "run" / f"first{host}.log").read_text() for host in (0, 1)]
    assert found.wrong == [], said
    assert "Current thread" in said[0]
    if fault == "stop":
        assert "are ended: rank 1 on node1 did not answer in time" in said[1]
        assert "train.py" in said[1].partition("most recent call first")[2]


@campaign
@pytest.mark.parametrize(
    ("fault", "options"), [("kill", {}), ("stop", {}), ("power", {"nnodes": "1:2"})]
)
def test_hosts_restart_after_a_fault_and_train_to_the_bit(fault, options, tmp_path):
    case, folder = Case(fault, timeout=8, engine="exact"), tmp_path / "run"
    with ForkedHosts(2, tmp_path / "hosts") as hosts:
        started = begin(hosts, folder, case, "first", max_restarts=2, **options)
        assert reaches(folder, case, started)
        FAULTS[fault].do(hosts, 1, folder)
        found = wait(started, time.monotonic(), SECONDS)
    said = [(folder / f"first{host}.log").read_text() for host in (0, 1)]
    assert [status for status, _ in found.values()] == [0, -9 if fault == "power" else 0], said
    assert weights(folder) == alone(tmp_path / "one", 12), said
