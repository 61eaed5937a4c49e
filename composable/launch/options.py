"""The options of `composable launch`, and their checks."""

import os
import re
import shutil
import socket
import string
from pathlib import Path

import attrs
import torch

from composable._support.checks import PathError, as_path
from composable.distributed.schedulers import port_of

PLACEHOLDERS = ("rank", "local_rank", "world_size", "local_world_size", "node_rank")


class LaunchError(ValueError):
    """The processes cannot be started: an option is invalid, or a resource is missing."""


@attrs.frozen
class Launch:
    """The options of a launch.

    Args:
        target: The path of a script, the name of a module, or a command, by `kind`.
        arguments: The arguments of the target.
        kind: "script", "module" or "command".
        nproc: Number of processes on this machine; by default one for each GPU, or one.
        world_size: Number of processes on all machines, a multiple of `nproc`.
        nnodes: Number of machines, in place of `world_size`: "2", or "1:3" with `max_restarts` for
            a run that restarts on the remaining machines, and waits for 1 at least.
        node_rank: The number of this machine, from 0.
        base_rank: The rank of the first process of this machine, instead of `node_rank`.
        master_addr: The address of machine 0.
        master_port: A free port of machine 0. Default: any on one machine. On several, one that is
            derived from `job_id`, or 29500 without it.
        job_id: What names the job: processes of another one are refused. Default: a digest of the
            command, the numbers of processes, the address and the port.
        stdout: Template of the files with the standard output of the ranks that are not on the
            console. The placeholders are {rank}, {local_rank}, {world_size}, {local_world_size}
            and {node_rank}.
        stderr: Template of the files with the standard error.
        log_dir: Folder of the files without a template; by default a temporary folder.
        console: Which local ranks write to the console: "first", "all" or "none".
        max_restarts: How often all processes are started again after one has failed.
        grace: Seconds between a signal and SIGKILL.
        timeout: Seconds to wait for the other machines.
        verbose: Whether the messages of torch's agent are shown.
    """

    target: str
    arguments: tuple[str, ...] = ()
    kind: str = "script"
    nproc: int | None = None
    world_size: int | None = None
    nnodes: str | None = None
    node_rank: int | None = None
    base_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    log_dir: str | None = None
    console: str = "first"
    max_restarts: int = 0
    grace: int = 30
    timeout: int = 600
    verbose: bool = False

    @property
    def port(self) -> int:
        """The port of machine 0 for several machines: by default torch's, or the job's."""
        default = 29500 if self.job_id is None else port_of(self.job_id)
        return default if self.master_port is None else self.master_port


@attrs.frozen
class ProcessLayout:
    """The processes and machines of a launch.

    Args:
        nproc: Number of processes on each machine.
        machines: Number of machines.
        machine: The number of this machine.
        fewest: Number of machines with which a restart goes ahead.
    """

    nproc: int
    machines: int
    machine: int
    fewest: int = 1

    @classmethod
    def of(cls, options: Launch) -> "ProcessLayout":
        """Check the options, and return the layout that they describe.

        Raises:
            LaunchError: An option is invalid, or a resource is missing.

        Example:
            >>> from composable.launch.options import Launch, ProcessLayout
            >>> second = Launch("train", kind="module", nproc=1, world_size=2, base_rank=1)
            >>> ProcessLayout.of(attrs.evolve(second, master_addr="node0"))
            ProcessLayout(nproc=1, machines=2, machine=1, fewest=2)
            >>> ProcessLayout.of(attrs.evolve(second, nproc=0))
            Traceback (most recent call last):
                ...
            composable.launch.options.LaunchError: nproc=0 must be at least 1.
        """
        _check_not_nested()
        _check_target(options)
        nproc = _processes(options.nproc)
        fewest, machines = _machines(options, nproc)
        machine = _machine(options, nproc, machines)
        _check_at_least("max_restarts", options.max_restarts, 0)
        _check_at_least("grace", options.grace, 1)
        _check_at_least("timeout", options.timeout, 1)
        for name in ("stdout", "stderr"):
            _check_template(name, getattr(options, name), machines * nproc)
        _check_address(options, machines, machine)
        return cls(nproc, machines, machine, fewest)


def _check_not_nested() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise LaunchError(
            "composable launch runs in a process that another launcher has started "
            "(TORCHELASTIC_RUN_ID is set); use one launcher only."
        )


def _check_target(options: Launch) -> None:
    if options.kind == "script" and not Path(options.target).exists():
        raise LaunchError(
            f"script={options.target!r} does not exist in {Path.cwd()}; pass the path of a Python "
            "script, -m with the name of a module, or -c with a command."
        )
    if options.kind == "command" and shutil.which(options.target) is None:
        raise LaunchError(f"command={options.target!r} is not an executable file on PATH.")


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise LaunchError(f"{name}={value} must be at least {least}.")


def _processes(nproc: int | None) -> int:
    """Return the number of processes on a machine."""
    gpus = torch.cuda.device_count()
    if nproc is None:
        return gpus or 1
    _check_at_least("nproc", nproc, 1)
    if gpus and nproc > gpus:
        raise LaunchError(
            f"nproc={nproc} exceeds the {gpus} GPUs that are visible on this machine; pass at most "
            f"-n {gpus}, or set CUDA_VISIBLE_DEVICES= (empty) to train on the CPU."
        )
    return nproc


def _machines(options: Launch, nproc: int) -> tuple[int, int]:
    """Return the fewest machines, and all."""
    world_size, nnodes = options.world_size, options.nnodes
    if nnodes is None:
        if world_size is not None and (world_size < 1 or world_size % nproc):
            raise LaunchError(
                f"world_size={world_size} must be a multiple of nproc={nproc}: it counts the "
                "processes of all machines, and each machine runs nproc of them."
            )
        count = (world_size or nproc) // nproc
        return count, count
    found = re.fullmatch(r"(\d+)(?::(\d+))?", nnodes)
    fewest, most = map(int, (found[1], found[2] or found[1])) if found else (0, 0)
    if not 1 <= fewest <= most:
        raise LaunchError(f"nnodes={nnodes!r} must be a number of machines, or two, such as 1:3.")
    if world_size not in (None, most * nproc):
        raise LaunchError(
            f"nnodes={nnodes!r} with nproc={nproc} means {most * nproc} processes, and world_size="
            f"{world_size}; pass one of the two."
        )
    if fewest < most and not options.max_restarts:
        raise LaunchError(f"nnodes={nnodes!r} needs --max_restarts: another number is a restart.")
    return fewest, most


def _machine(options: Launch, nproc: int, machines: int) -> int:
    """Return the number of this machine, from its own number or from its first rank."""
    machine, base = options.node_rank, options.base_rank
    if base is not None:
        if base % nproc or machine not in (None, base // nproc):
            raise LaunchError(
                f"base_rank={base} must be node_rank times nproc={nproc}"
                + ("" if machine is None else f", and node_rank={machine} is given")
                + "; pass one of the two."
            )
        machine = base // nproc
    if machine is None:
        if machines > 1:
            raise LaunchError(
                f"node_rank=None must be the number of this machine, from 0 to {machines - 1}, "
                f"since there are {machines} machines."
            )
        return 0
    if not 0 <= machine < machines:
        raise LaunchError(
            f"node_rank={machine} must be from 0 to {machines - 1}: world_size="
            f"{options.world_size}, nnodes={options.nnodes} and nproc={nproc} need {machines} "
            f"machine{'s' if machines > 1 else ''}."
        )
    return machine


def _check_template(name: str, template: str | None, world_size: int) -> None:
    """Check the placeholders of a log file, and that each rank has a separate file."""
    if template is None:
        return
    try:
        as_path(name, template)
    except PathError as error:
        raise LaunchError(str(error)) from None
    try:
        used = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise LaunchError(f"{name}={template!r} is an invalid template: {error}.") from None
    allowed = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
    if not used <= set(PLACEHOLDERS):
        raise LaunchError(f"{name}={template!r} must contain no placeholders except {allowed}.")
    if world_size > 1 and not used & {"rank", "local_rank"}:
        raise LaunchError(
            f"{name}={template!r} must contain {{rank}} or {{local_rank}}, so that each rank has "
            "its own file."
        )


def _check_address(options: Launch, machines: int, machine: int) -> None:
    """Check the address of machine 0, and that its port is free if this is machine 0."""
    if machines > 1 and not options.master_addr:
        raise LaunchError(
            f"master_addr={options.master_addr!r} must be the address of machine 0, since there "
            f"are {machines} machines."
        )
    if not 0 < options.port < 2**16:
        raise LaunchError(f"master_port={options.port} must be from 1 to 65535.")
    if machine == 0 and (machines > 1 or options.master_port is not None):
        _check_free(options.port)


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise LaunchError(
                f"master_port={port} cannot be used on this machine ({error.strerror}); pass a "
                "free port, or on one machine none."
            ) from None
