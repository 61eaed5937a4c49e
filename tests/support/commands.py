"""The command `composable` in a process that is forked with torch imported.

Importing torch takes longer than most commands.
"""

import os
import sys
import tempfile
from pathlib import Path

from composable.cli import main
from tests.support.processes import forked
from tests.support.signals import set_signals


class Command:
    """A command that runs, with the signals of a terminal; it is used like `subprocess.Popen`."""

    def __init__(self, folder: Path, arguments: list[str], environment: dict[str, str]) -> None:
        written = Path(tempfile.mkdtemp(dir=folder, prefix=".output"))
        self._output = [written / name for name in ("stdout", "stderr")]
        self._process = forked(_main, folder, arguments, environment, self._output)
        self.pid, self.kill = self._process.pid, self._process.kill
        self.terminate = self._process.terminate

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def output(self) -> list[str]:
        """Return what has been written to the standard output, and to the standard error."""
        return [path.read_text() if path.exists() else "" for path in self._output]

    def finish(self, seconds: float) -> tuple[int, str, str]:
        """Wait for the end; return the exit status and the output."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.kill()
            raise TimeoutError(f"after {seconds} s, it has not ended: {self.output()}")
        return (self._process.exitcode, *self.output())


def _main(
    folder: Path, arguments: list[str], environment: dict[str, str], output: list[Path]
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(output, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    set_signals()
    sys.exit(main(arguments))
