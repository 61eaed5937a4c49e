"""The command `composable`, or a script, in a process that is forked with torch imported.

Importing torch takes longer than most commands.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composable.cli import main
from tests.support.processes import forkserver
from tests.support.signals import set_signals

LIMIT = 90  # seconds, after which a command counts as hanging


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
