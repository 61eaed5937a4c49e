"""What processes exchange."""

import atexit
import os
import re
import sys
import time
import warnings
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from composable.distributed import Processes, starting
from composable.distributed.schedulers import JOB
from composable.distributed.starting import failing_together, join_processes
from tests.support.processes import Failed, attempt, run


def exchange():
    """Exchange values in every way."""
    one = join_processes()
    return {
        "gathered": one.gather({"rank": one.rank, "values": [1.5, None, "ä"]}),
        "broadcast": one.broadcast([one.rank]),
        "main": one.on_main(lambda: f"from {one.rank}"),
        "maximum": one.maximum([one.rank, 3 - one.rank]),
        "sum": one.sum(torch.tensor([1.0, one.rank])).tolist(),
        "together": one.together(lambda: one.rank),
    }


def fail(rank, way):
    """Fail on one rank."""
    one = join_processes()

    def function():
        if one.rank == rank:
            raise OSError("no space")

    getattr(one, way)(function)


def be_silent(silent):
    """Wait for each other, but for some ranks, which hang."""
    one = join_processes(timeout=1.0)
    with mock.patch.object(starting, "_GRACE", 1.0), failing_together():
        one.barrier()
        if one.rank in silent:
            time.sleep(4.0)
        one.barrier()


def test_values_are_exchanged():
    for rank, seen in enumerate(run(exchange, 3)):
        values = [1.5, None, "ä"]
        assert seen == {
            "gathered": [{"rank": r, "values": values} for r in range(3)],
            "broadcast": [0],
            "main": "from 0",
            "maximum": [2, 3],
            "sum": [3.0, 3.0],
            "together": rank,
        }


def test_a_process_by_itself_exchanges_with_itself():
    one = Processes()
    assert one.gather(3) == [3]
    assert one.broadcast("a") == "a"
    assert one.on_main(lambda: 5) == one.together(lambda: 5) == 5
    assert one.maximum([4]) == [4]


def test_failure_of_a_rank_is_raised_on_all():
    for way, rank in (("on_main", 0), ("together", 1)):
        results = attempt(fail, 2, rank, way)
        assert all(isinstance(one, Failed) for one in results)
        assert repr(results[rank]) == "OSError: no space"
        assert repr(results[1 - rank]) == f"ProcessError: rank {rank} failed: OSError: no space"


def join(job, version, script):
    """Join, as a process of a job, of a version and of a script; return the warnings besides."""
    rank = int(os.environ["RANK"])
    os.environ |= {} if job is None else {JOB: job[rank]}
    starting.__version__ = version[rank]
    sys.argv = [script[rank]]
    with warnings.catch_warnings(record=True) as caught:
        return join_processes().size, [str(one.message) for one in caught]


def test_processes_of_another_job_or_version_are_refused_and_of_another_script_warned_of(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert (
        attempt(join, 2, None, "11", [a, a])
        == attempt(join, 2, "aa", "11", ["", ""])
        == [(2, [])] * 2
    )
    for job, version, text in [
        ("ab", "11", r"job is 'a' on rank 0 \(.*\), and 'b' on rank 1 \(.*\): .*--job_id"),
        (None, "12", r"composable is '1' on rank 0 \(.*\), and '2' on rank 1 .*the same version"),
    ]:
        for one in attempt(join, 2, job, version, [a, a]):
            assert one.kind == "ProcessError"
            assert re.match(text, one.message)
    (size, told), other = attempt(join, 2, None, "11", [a, b])
    assert (size, other) == (2, (2, []))
    assert re.match(r"script is 'a \w{8}' on rank 0 .*, and 'b \w{8}' on rank 1", told[0])


@pytest.mark.parametrize(("silent", "named"), [([1], "rank 1"), ([0, 2], "rank 0 .*, rank 2")])
def test_ranks_that_do_not_answer_in_time_are_named(silent, named):
    results = attempt(be_silent, 4, silent)
    for rank in {0, 1, 2, 3} - set(silent):
        assert results[rank].kind == "ProcessError"
        text = f"rank {rank} on .*, in the script, waited in vain: {named} on .* did not answer"
        assert re.match(text, results[rank].message)
    assert all(isinstance(one, Failed) for one in results)


def test_a_group_is_initialized_with_a_timeout_and_the_device(monkeypatch):
    given = {}
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **options: given.update(options))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(atexit, "register", lambda function: None)
    names = {"WORLD_SIZE": 8, "RANK": 6, "LOCAL_RANK": 2, "MASTER_ADDR": "host", "MASTER_PORT": 1}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
    join_processes(timeout=90)
    assert given == {"timeout": timedelta(seconds=90), "device_id": torch.device("cuda", 2)}
