"""The variables by which schedulers tell processes their ranks."""

import os
import re
from collections.abc import Mapping
from zlib import crc32

_RANKS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
"""The rank, the number of processes and the local rank. Open MPI may run inside of the others."""
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
JOB = "COMPOSABLE_JOB"
"""The variable of the environment with the job of a process."""
_JOBS = ("LSB_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE")


def set_variables() -> None:
    """Set the variables of torch.distributed in a process that Slurm, Open MPI or LSF has started.

    Nothing is set in a process of a launcher, which has them, in a step of one process, and with
    `WORLD_SIZE=1`, by which each process trains alone.

    Raises:
        ValueError: Variables contradict one another, or the address of rank 0 is unknown.
    """
    env = os.environ
    started = next((names for names in _RANKS if env.keys() >= {*names}), None)
    if started is None or env.get("WORLD_SIZE") == "1" or env.keys() >= {*_NAMES[:2]}:
        return
    found = {name: env[one] for name, one in zip(_NAMES, started, strict=True)}
    if found["WORLD_SIZE"] == "1" or _is_shell(env):
        return
    for name, one in zip(_NAMES, started, strict=True):
        if env.get(name, env[one]) != env[one]:
            raise ValueError(
                f"{name}={env[name]} and {one}={env[one]} of the environment contradict each "
                f"other; unset {name}, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."
            )
    job = ".".join(env[one] for one in _JOBS if one in env)
    found |= {"MASTER_ADDR": _first_host(env, started), "MASTER_PORT": str(port_of(job)), JOB: job}
    for name, value in found.items():
        env.setdefault(name, value)
    if env["MASTER_ADDR"] != "127.0.0.1":
        from composable.distributed.network import set_interface  # on use

        set_interface(env["MASTER_ADDR"])


def port_of(job: str) -> int:
    """Return a port for a job, the same on all machines.

    Example:
        >>> from composable.distributed.schedulers import port_of
        >>> port_of("7")
        21346
    """
    return 20000 + crc32(job.encode()) % 10000


def _is_shell(env: Mapping[str, str]) -> bool:
    """Return whether this is the shell of `salloc`, in which Slurm has started no task."""
    return "SLURM_PROCID" in env and int(env.get("SLURM_STEP_ID", "0")) >= 2**31


def _first_host(env: Mapping[str, str], started: tuple[str, ...]) -> str:
    """Return the address of rank 0."""
    if "MASTER_ADDR" in env:
        return env["MASTER_ADDR"]
    nodes, hosts = env.get("SLURM_STEP_NODELIST", ""), env.get("LSB_MCPU_HOSTS", "").split()
    if started[0] == "SLURM_PROCID" and (found := _NODE.match(nodes)):  # node[07-09,11]-ib
        return "".join(found.groups(""))
    if started[0] == "JSM_NAMESPACE_RANK" and hosts:
        return hosts[::2][:2][-1]  # the first host of several runs the script of the job
    if env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == env[started[1]]:
        return "127.0.0.1"
    raise ValueError(
        f"MASTER_ADDR is not set in the environment, and {started[1]}={env[started[1]]} processes "
        "run on several machines; set it to the address of rank 0, as by `mpirun -x MASTER_ADDR`."
    )


_NODE = re.compile(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?")
