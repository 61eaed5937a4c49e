"""Start a script in several processes, by the elastic agent of torch.

The agent starts the processes, watches them, and ends them all when one fails. This module chooses
its settings and the environment of the processes, and reports the first failure.
"""

import dataclasses
import logging
import os
import shutil
import signal
import socket
import sys
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from composable.distributed.network import set_interface
from composable.distributed.schedulers import JOB
from composable.launch import rank
from composable.launch.failure import describe_failures, ending, first_failure, status_of
from composable.launch.options import Launch, LaunchError, ProcessLayout
from composable.launch.rank_logs import RankLogs
from composable.launch.watch import Watch


def launch(options: Launch) -> int:
    """Start the processes, and wait until all have ended.

    The environment and the signal handlers of the calling process change: call it in a separate
    process, as `composable launch` does.

    Args:
        options: What to start, and how.

    Returns:
        The exit status: of the process that failed first, 128 + the number of the signal that ended
        it or this process, and 0 if all succeeded.

    Raises:
        LaunchError: An option is invalid, or a resource is missing.
    """
    layout = ProcessLayout.of(options)
    try:
        logs = RankLogs(options, layout.machine)
    except OSError as error:
        raise LaunchError(f"log_dir={options.log_dir!r} cannot be written: {error}.") from error
    own = _set_environment(options, layout)
    watch = None
    if layout.machines > 1 and not options.max_restarts:  # otherwise the rendezvous ends them
        watch = Watch(str(options.master_addr), options.port, options.timeout)
    _handle_hangup()
    if not options.verbose:
        logging.disable(logging.ERROR)  # the agent's messages: this process has no others
    entrypoint, *arguments = _command(options)
    try:
        elastic_launch(_config(options, layout, logs, own), entrypoint)(*arguments)
    except ChildFailedError as failed:
        rank, failure = first_failure(failed.failures)
        print(
            describe_failures(rank, failed.failures, logs.stderr_of, logs.folder), file=sys.stderr
        )
        if watch is not None and status_of(failure) not in (130, 143):  # of a run that was saved
            watch.end(
                f"rank {rank} on {socket.gethostname()} ended: {ending(failure)}; see its log"
            )
        return status_of(failure)
    except SignalException as received:
        return 128 + int(received.sigval)
    except (torch.distributed.DistError, RendezvousError) as error:
        raise LaunchError(
            f"master_addr={options.master_addr!r}: the {layout.machines} machines did not connect "
            f"within timeout={options.timeout} s; check the address, the port and the firewall, "
            f"and that each machine was started, with its own node_rank ({error})."
        ) from error
    finally:
        if watch is not None:
            watch.end(None)
    if options.log_dir is None:
        shutil.rmtree(logs.folder)
    return 0


def _config(
    options: Launch, layout: ProcessLayout, logs: RankLogs, own: str | None
) -> LaunchConfig:
    """Return the settings of the agent, and let the others reach this machine at an address."""
    settings: dict[str, Any] = {
        "run_id": "launch",
        "logs_specs": logs,
        "max_restarts": options.max_restarts,
        "log_line_prefix_template": "[rank ${rank}] ",
    }
    if layout.machines == 1:
        settings["rdzv_endpoint"] = f"127.0.0.1:{options.master_port or 0}"
    else:
        settings["rdzv_endpoint"] = f"{options.master_addr}:{options.port}"
    if layout.machines == 1 or options.max_restarts:  # this rendezvous can be repeated
        settings |= {"rdzv_backend": "c10d", "local_addr": own}
        settings["rdzv_configs"] = {
            **{"is_host": layout.machine == 0, "join_timeout": options.timeout},
            "read_timeout": options.timeout,
        }
    else:  # this one has the ranks in the order of the machines
        settings["rdzv_backend"] = "static"
        settings["rdzv_configs"] = {"rank": layout.machine, "timeout": options.timeout}
    newer = {"shutdown_timeout": options.grace, "signals_to_handle": ",".join(_signals())}
    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    settings |= {name: value for name, value in newer.items() if name in known}
    return LaunchConfig(layout.fewest, layout.machines, layout.nproc, **settings)


def _command(options: Launch) -> list[str]:
    """Return the command of a process; the agent substitutes $ in its arguments."""
    arguments = [argument.replace("$", "$$") for argument in options.arguments]
    if options.kind == "command":
        return [options.target, *arguments]
    target = options.target.replace("$", "$$")
    return [sys.executable, "-u", rank.__file__, options.kind, target, *arguments]


def _set_environment(options: Launch, layout: ProcessLayout) -> str | None:
    """Set the variables of the environment that the processes inherit, if they are not set.

    Returns:
        The address of this machine for the others.
    """
    defaults = {
        "OMP_NUM_THREADS": str(max(1, _usable_cores() // layout.nproc)),
        "PYTHONFAULTHANDLER": "1",  # a segmentation fault leaves a traceback
        # Otherwise restarted processes may read the addresses of those before them:
        # https://github.com/pytorch/pytorch/issues/135712
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if layout.machines == 1:
        return "127.0.0.1"  # the name of the host may have no address
    os.environ[JOB] = _job_of(options, layout)
    _report_unknown(str(options.master_addr))
    return set_interface(str(options.master_addr))


def _job_of(options: Launch, layout: ProcessLayout) -> str:
    """Return what is the same on all machines of a job."""
    same = [options.kind, options.target, *options.arguments, options.master_addr]
    digest = sha256("\0".join(map(str, [*same, options.port])).encode()).hexdigest()[:16]
    return f"{options.job_id or digest}, {layout.machines} machines with -n {layout.nproc}"


def _report_unknown(address: str) -> None:
    """Print that the name of a machine has no address yet."""
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        host = socket.gethostname()
        print(
            f"composable launch: master_addr={address!r} has no address on {host} ({error}); "
            "trying again until --timeout.",
            file=sys.stderr,
        )


def _usable_cores() -> int:
    """Return the number of cores that this process may use, within the quota of its container."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no control groups of version 2, or the quota is "max"
        return cores


def _signals() -> list[str]:
    """Return the names of the signals that the agent sends on to the processes.

    A signal that this process ignores stays ignored, as SIGINT in a job in the background.
    """
    passed_on = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
    return [one.name for one in passed_on if signal.getsignal(one) is not signal.SIG_IGN]


def _handle_hangup() -> None:
    """Treat the end of the terminal as SIGTERM, unless it is ignored, as under nohup.

    The agent would send SIGHUP on, which ends a process without a checkpoint.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise SignalException("the terminal was closed", signal.SIGTERM)

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, stop)
