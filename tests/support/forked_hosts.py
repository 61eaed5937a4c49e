"""Hosts whose commands start in processes that are forked with torch imported."""

import ctypes
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composable.cli import main
from tests.support.processes import forkserver, start_workers_as_usual, wait_until
from tests.support.signals import set_signals
from tools.hosts.network import Hosts

SPACES = ("net", "uts", "mnt")


class ForkedHosts(Hosts):
    """Each host has a process, which does nothing: others enter its namespaces."""

    def __enter__(self) -> "ForkedHosts":
        super().__enter__()
        idle = [self.command(host, ["sleep", "infinity"]) for host in range(self.count)]
        self.idle = [subprocess.Popen(one) for one in idle]
        for one in self.idle:
            wait_until(lambda at=Path(f"/proc/{one.pid}/comm"): at.read_text() == "sleep\n")
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # it kills them
        for one in self.idle:
            one.wait()

    def start(self, host: int, command: Sequence[object], log: Path, **variables: str) -> Any:
        name, *given = map(str, command)
        while name == "env" or "=" in name:
            variables |= dict([name.split("=")]) if "=" in name else {}
            name, *given = given
        return Forked(self.idle[host].pid, given, log, {**self.variables, **variables})


class Forked(forkserver.Process):
    """A command in the namespaces of a process, as a `subprocess.Popen` that has started."""

    def __init__(self, pid: int, command: list[str], log: Path, variables: dict[str, str]) -> None:
        super().__init__()
        self.given = pid, command, log, {**os.environ, **variables}
        self.start()

    def poll(self) -> int | None:
        """Return the status, if it has ended."""
        return self.exitcode

    returncode = property(poll)

    def run(self) -> None:
        """Run the command, in the process."""
        pid, command, log, variables = self.given
        os.setsid()
        for space in SPACES:
            with Path(f"/proc/{pid}/ns/{space}").open() as file:
                assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0, space
        os.environ.update(variables)
        for number in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        set_signals()
        start_workers_as_usual()
        sys.argv = command
        if sys.argv[:2] == ["-m", "composable"]:
            sys.exit(main(sys.argv[2:]))
        runpy.run_path(sys.argv[0], run_name="__main__")
