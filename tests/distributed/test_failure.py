"""The process that failed first, of those that fail within the agent's resolution of a second."""

import json
import os
import socket
import threading
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from composable.distributed import starting
from composable.launch.failure import first_failure, status_of

NOW, HOST = 1_000_000, socket.gethostname()


@pytest.fixture
def failure(tmp_path):
    """Return a function that makes the failure of a rank."""

    def make(rank, code, at, raised):
        file = tmp_path / f"{rank}.json"
        if raised:
            extra = {"py_callstack": "", "timestamp": str(int(at))}
            file.write_text(json.dumps({"message": {"message": "", "extraInfo": extra}}))
            os.utime(file, (at, at))
        made = ProcessFailure(rank, pid=rank, exitcode=code, error_file=str(file))
        made.timestamp = int(at)
        return made

    return make


# Of each rank: the exit code, the time, and whether an exception was recorded.
RAISED, CONSEQUENCE = (1, NOW + 0.4, True), (1, NOW + 0.7, True)
STOPPED, KILLED = (-15, NOW + 0.9, False), (-9, NOW + 0.9, False)
SLOW_TO_END = (-15, NOW + 0.4, True)  # the agent stopped it while its exception ended it
KILLED_BY_AGENT = (-9, NOW + 30.9, False)
PREEMPTED = (143, NOW + 0.2, False)


@pytest.mark.parametrize(
    ("failures", "rank", "status"),
    [
        ([CONSEQUENCE, RAISED], 1, 1),
        ([STOPPED, RAISED], 1, 1),
        ([PREEMPTED, RAISED], 1, 1),
        ([CONSEQUENCE, SLOW_TO_END], 1, 1),
        ([CONSEQUENCE, KILLED], 1, 137),
        ([KILLED_BY_AGENT, RAISED], 1, 1),
        ([RAISED, KILLED_BY_AGENT], 0, 1),
        ([(7, NOW + 0.1, False), STOPPED], 0, 7),
        ([PREEMPTED, PREEMPTED], 0, 143),
        ([(-6, NOW + 0.4, True), CONSEQUENCE], 0, 1),
    ],
)
def test_first_failure_and_its_status(failure, failures, rank, status):
    by_rank = {i: failure(i, *each) for i, each in enumerate(failures)}
    found, first = first_failure(by_rank)
    assert (found, status_of(first)) == (rank, status)


class Store:
    """A store that records its use."""

    def __init__(self):
        self.said, self.waited = {}, []

    def set(self, key, value):
        self.said[key] = value

    def wait(self, keys, timeout):
        self.waited += keys


READ = ["composable/read/1", "composable/read/2"]


@pytest.mark.parametrize(
    ("rank", "agent", "waited"),
    [(0, None, READ), (0, "False", READ), (0, "True", []), (1, None, [])],
)
def test_rank_0_waits_until_its_error_is_read_where_it_has_the_store(
    rank, agent, waited, monkeypatch
):
    store, aborted = Store(), []
    monkeypatch.setattr(starting, "_store", lambda: store)
    monkeypatch.setattr(starting, "_abort", lambda: aborted.append(list(store.waited)))
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    if agent is not None:
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    monkeypatch.setattr(starting, "_phase", ["the script"])
    starting._end_with(OSError("the disk is gone"))
    text = f"rank {rank} failed: OSError: the disk is gone (on {HOST}, in the script)"
    said = {"composable/failed": text}
    assert store.said == {**said, f"composable/read/{rank}": ""}  # it waits for no other report
    assert store.waited == waited
    assert aborted == [[]]  # first: the others wait for it in a collective


def test_a_process_that_reads_an_error_says_so(monkeypatch):
    store = dist.HashStore()
    monkeypatch.setattr(starting, "_store", lambda: store)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    store.set("composable/failed", "rank 0 failed: OSError: the disk is gone")
    found = starting._failure_elsewhere(RuntimeError("Connection closed by peer"))
    assert str(found) == "rank 0 failed: OSError: the disk is gone"
    assert store.check(["composable/read/2"])


@pytest.mark.parametrize("text", ["Connection reset by peer", "timed out", "No route to host"])
def test_a_store_of_a_machine_that_is_cut_off_is_asked_for_a_limited_time(text, monkeypatch, capfd):
    cut, asked = threading.Event(), []

    def wait(*_):
        asked.append(_)
        cut.wait()
        raise RuntimeError("no answer from the store")

    monkeypatch.setattr(starting, "_store", lambda: Mock(check=wait, set=wait))
    monkeypatch.setattr(starting, "_abort", lambda: None)
    monkeypatch.setattr(starting, "_GRACE", 0.02)
    monkeypatch.setattr(starting, "_hosts", {0: "node0", 1: HOST})
    monkeypatch.setattr(starting, "_phase", ["the script"])
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    try:
        found = starting._failure_elsewhere(RuntimeError(text))
        starting._end_with(OSError("the disk is gone"))
    finally:
        cut.set()
    assert str(found).startswith(
        f"rank 1 on {HOST}, in the script, waited in vain: rank 0 on node0 ended without a report, "
        "or its machine is cut off. Look at its log"
    )
    assert len(asked) == 2
    assert "Current thread" in capfd.readouterr().err
