"""`composable launch -n 8 SCRIPT`."""

import argparse
import os
import sys
from typing import Any

import attrs

_CPP_LOG = "TORCH_CPP_LOG_LEVEL"
"""torch reads it when it is imported. It prints frames of C++ before an error of the launcher."""


def add_launch(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "launch",
        usage="%(prog)s [-h] [-n NPROC] [options] SCRIPT [ARGUMENTS ...]",
        help="run a training script in several processes, of one or several machines",
        description=(
            "Starts a script in several processes, by the elastic agent of torch.distributed. If "
            "one fails, all are ended, and the command has its traceback and exit status. "
            "SIGTERM and SIGINT are sent on, so that the Trainer saves a checkpoint."
        ),
    )
    kind = parser.add_mutually_exclusive_group()
    for flags, name in ((("-m", "--module_mode"), "module"), (("-c", "--command_mode"), "command")):
        what = "the name of a module, as of python -m" if name == "module" else "a command"
        _flag(kind, *flags, action="store_const", const=name, dest="kind", help=f"SCRIPT is {what}")
    parser.set_defaults(kind="script", run=_run)
    numbers = {
        "nproc": "number of processes on this machine; by default one for each GPU, or one",
        "world_size": "number of processes on all machines; by default NPROC",
        "node_rank": "number of this machine, from 0",
        "base_rank": "rank of the first process of this machine, instead of --node_rank",
        "master_port": "free port of machine 0; by default any, of several machines 29500, or one "
        "for each job_id",
        "max_restarts": "restarts of all processes after one fails, with autoresume; by default 0",
        "grace": "seconds between a signal and SIGKILL; by default 30",
        "timeout": "seconds to wait for the other machines; by default 600",
    }
    for name, text in numbers.items():
        short = ["-n"] if name == "nproc" else []
        _flag(parser, *short, f"--{name}", type=int, help=text)
    texts = {
        "nnodes": "number of machines in place of --world_size, or 1:3 with --max_restarts, where "
        "1 machine is enough to train on",
        "master_addr": "address of machine 0",
        "job_id": "names the job, and refuses processes of another; by default a digest of "
        "the command, the numbers of processes and the address",
        "stdout": "file of the standard output of each rank that is not on the console, such as "
        "'logs/{rank}.out'; placeholders: {rank}, {local_rank}, {world_size}, {local_world_size}, "
        "{node_rank}",
        "stderr": "file of the standard error",
        "log_dir": "folder of these files without a template; by default a temporary folder",
    }
    for name, text in texts.items():
        _flag(parser, f"--{name}", help=text)
    _flag(
        parser,
        "--console",
        choices=["first", "all", "none"],
        help="which processes of this machine write to the console; by default the first",
    )
    _flag(parser, "-v", "--verbose", action="store_true", help="show the messages of torch's agent")
    parser.add_argument("target", metavar="SCRIPT", help="a Python script")
    parser.add_argument(
        "arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="the script's arguments"
    )


def _flag(parser: Any, *flags: str, **settings: Any) -> None:
    """Add an option, spelled with "_" or "-", that is absent unless given."""
    spellings = [s for flag in flags for s in dict.fromkeys((flag, _with_hyphens(flag)))]
    parser.add_argument(*spellings, default=argparse.SUPPRESS, **settings)


def _with_hyphens(flag: str) -> str:
    return flag if len(flag) == 2 else f"--{flag[2:].replace('_', '-')}"


def _run(options: argparse.Namespace) -> int:
    if quiet := "verbose" not in options and _CPP_LOG not in os.environ:
        os.environ[_CPP_LOG] = "FATAL"
    from composable.launch.launch import launch
    from composable.launch.options import Launch, LaunchError

    if quiet:
        del os.environ[_CPP_LOG]  # the processes of the run have their messages
    names = {field.name for field in attrs.fields(Launch)}
    given = {name: value for name, value in vars(options).items() if name in names}
    try:
        return launch(Launch(**given | {"arguments": tuple(given["arguments"])}))
    except LaunchError as error:
        print(f"composable launch: {error}", file=sys.stderr)
        return 2
