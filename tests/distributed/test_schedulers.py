"""Processes that Slurm, Open MPI and LSF start: their variables become those of torch."""

import os

import pytest

from composable.distributed import network
from composable.distributed.schedulers import JOB, port_of, set_variables

OPEN_MPI = {
    **{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
    **{"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_MCA_ess_base_jobid": "9"},
}
LSF = {
    **{"JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_SIZE": "8", "JSM_NAMESPACE_LOCAL_RANK": "1"},
    **{"LSB_JOBID": "12", "LSB_MCPU_HOSTS": "batch 1 h1 42 h2 42"},
}
SLURM = {
    **{"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"},
    **{"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-08,11]-ib,login", "SLURM_NTASKS": "8"},
}
FORMED = {  # rank, size, local rank, host, job
    "Slurm": (SLURM, ["2", "4", "0", "gpu07-ib", "7.0"]),
    "Slurm, one node": (SLURM | {"SLURM_STEP_NODELIST": "a-1"}, ["2", "4", "0", "a-1", "7.0"]),
    "Slurm, two nodes": (SLURM | {"SLURM_STEP_NODELIST": "a,b"}, ["2", "4", "0", "a", "7.0"]),
    "Open MPI": (OPEN_MPI, ["3", "4", "3", "127.0.0.1", "9"]),
    "Open MPI in a step of Slurm": (SLURM | OPEN_MPI, ["3", "4", "3", "127.0.0.1", "7.0.9"]),
    "LSF": (LSF, ["5", "8", "1", "h1", "12"]),
    "LSF, one host": (LSF | {"LSB_MCPU_HOSTS": "h 42"}, ["5", "8", "1", "h", "12"]),
}
GIVEN = {"RANK": "0", "WORLD_SIZE": "2"}
ALONE = {
    "no scheduler": {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # sbatch
    "one task": SLURM | {"SLURM_STEP_NUM_TASKS": "1"},
    "the shell of salloc": SLURM | {"SLURM_STEP_ID": "4294967290"},
    "a launcher in a task": SLURM | GIVEN,
    "one process by name": OPEN_MPI | {"WORLD_SIZE": "1"},
}
ELSEWHERE = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
REFUSED = {
    "another size": (SLURM | {"WORLD_SIZE": "2"}, "WORLD_SIZE=2 and SLURM_STEP_NUM_TASKS=4 of the"),
    "another rank": (SLURM | {"RANK": "1"}, "RANK=1 and SLURM_PROCID=2 of the environment"),
    "an unknown host": (ELSEWHERE, "MASTER_ADDR is not set .*OMPI_COMM_WORLD_SIZE=4 processes run"),
}


@pytest.fixture(autouse=True)
def interfaces(monkeypatch):
    monkeypatch.setattr(network, "interface_to", lambda host: (f"to_{host}", "10.0.0.1"))


@pytest.mark.parametrize("name", FORMED)
def test_variables_of_a_scheduler_become_those_of_torch(name, monkeypatch):
    given, (rank, size, local, host, job) = FORMED[name]
    found = given.copy()
    monkeypatch.setattr(os, "environ", found)
    set_variables()
    port = str(port_of(job))
    names = () if host == "127.0.0.1" else ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    assert found == given | {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local, JOB: job} | {
        **{"MASTER_ADDR": host, "MASTER_PORT": port},
        **dict.fromkeys(names, f"to_{host}"),
    }


@pytest.mark.parametrize("given", ALONE.values(), ids=ALONE)
def test_nothing_is_set_where_no_scheduler_has_started_several_processes(given, monkeypatch):
    found = given.copy()
    monkeypatch.setattr(os, "environ", found)
    set_variables()
    assert found == given


@pytest.mark.parametrize("name", REFUSED)
def test_variables_that_contradict_one_another_are_refused_with_both(name, monkeypatch):
    given, text = REFUSED[name]
    monkeypatch.setattr(os, "environ", given)
    with pytest.raises(ValueError, match=text):
        set_variables()


def test_an_address_that_is_given_is_kept(monkeypatch):
    found = ELSEWHERE | {"MASTER_ADDR": "node3", "MASTER_PORT": "1234"}
    monkeypatch.setattr(os, "environ", found)
    set_variables()
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("node3", "1234")
