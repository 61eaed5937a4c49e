"""The command `composable`, or a script, in a process that is forked with torch imported.

Importing torch takes longer than most commands.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composable.cli import main
from tests.support.processes import forkserver, start_workers_as_usual
from tests.support.signals import set_signals

ROOT = Path(__file__).parents[2]
LIMIT = 90  # seconds, after which a command counts as hanging

# The modules that it imports are those of torch, so that a script sees what it imports itself.
_SERVER = """
import json, os, signal, sys
import torch
for line in sys.stdin:
    script, *paths = json.loads(line)
    if not os.fork():
        signal.alarm(600)  # seconds
        for number, path in enumerate(paths, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    sys.exit()
exec(compile(script, "script", "exec"), {"__name__": "__main__"})
"""


def run_script(script: str, status: int = 0) -> tuple[str, str]:
    """Run a script like `run_python`, in a process that has imported torch and nothing else."""
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        written = [Path(folder, name) for name in ("stdout", "stderr")]
        print(json.dumps([script, *map(str, written)]), file=server.stdin, flush=True)
        ended = int(server.stdout.readline())
        output, error = (one.read_text() for one in written)
    assert ended == status, output + error
    return output, error


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the process that forks those of scripts, with another order of sets than here."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    options = {"cwd": ROOT, "env": {**os.environ, "PYTHONHASHSEED": seed}}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, "-c", _SERVER], text=True, **options, **pipes)
    atexit.register(server.communicate)
    return server


def run_python(*arguments: object, status: int = 0, **options: Any) -> tuple[str, str]:
    """Run an interpreter of its own; return what it writes to standard output and error."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


class Command(forkserver.Process):
    """A command that runs in a folder, with the signals of a terminal.

    Args:
        folder: Where it runs.
        arguments: Those of the command, or the text of a script to run in its place.
        variables: Its environment.
    """

    def __init__(
        self,
        folder: Path,
        arguments: list[str] | str,
        variables: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__()
        self.given = folder, arguments, dict(variables)
        self.written = Path(tempfile.mkdtemp(dir=folder, prefix=".output"))
        self.start()

    def run(self) -> None:
        """Run the command, in the process."""
        folder, arguments, variables = self.given
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        for number in (1, 2):
            os.dup2(os.open(self.written / str(number), os.O_WRONLY | os.O_CREAT), number)
        set_signals()
        start_workers_as_usual()
        if isinstance(arguments, str):
            exec(compile(arguments, "script", "exec"), {"__name__": "__main__"})
        else:
            sys.exit(main(arguments))

    def output(self, number: int) -> str:
        """Return what it has written to the standard output, 1, or to the standard error, 2."""
        path = self.written / str(number)
        return path.read_text() if path.exists() else ""

    def finish(self, seconds: float = LIMIT) -> tuple[int | None, str, str]:
        """Wait for the end; return the exit status and the output."""
        self.join(seconds)
        if self.is_alive():
            self.kill()
            raise TimeoutError(f"after {seconds} s, it has not ended: {self.output(2)}")
        return self.exitcode, self.output(1), self.output(2)
