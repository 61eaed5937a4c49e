"""The files of the ranks of a launch."""

import tempfile
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest

from composable._support.paths import check_no_link
from composable.launch.options import PLACEHOLDERS, Launch


class RankLogs(DefaultLogsSpecs):
    """Choose the files to which ranks write, for the elastic agent of torch.

    Args:
        options: The options of the launch.
        machine: The number of this machine.
    """

    def __init__(self, options: Launch, machine: int) -> None:
        self.folder = options.log_dir or tempfile.mkdtemp(prefix="composable-launch-")
        super().__init__(log_dir=self.folder)
        self._options, self._machine = options, machine
        self._stderr: dict[int, str] = {}

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of the local ranks; the agent calls this at each start."""
        files = super().reify(envs)
        console = self._options.console
        for local_rank, variables in envs.items():
            if local_rank == 0 and console != "none":
                continue  # it inherits the console, with its width and its colors
            stdout, stderr = (self._open(stream, variables) for stream in ("stdout", "stderr"))
            files.stdouts[local_rank] = stdout
            files.stderrs[local_rank] = self._stderr[local_rank] = stderr
            if console == "all":
                files.tee_stdouts[local_rank] = stdout
                files.tee_stderrs[local_rank] = stderr
        return files

    def stderr_of(self, local_rank: int) -> str | None:
        """Return the file of the standard error of a local rank, or None if it is the console."""
        return self._stderr.get(local_rank)

    def _open(self, stream: str, variables: dict[str, str]) -> str:
        """Return the path of a file, whose folder exists. Each restart has separate files."""
        template = getattr(self._options, stream)
        values = {name: variables[name.upper()] for name in PLACEHOLDERS if name != "node_rank"}
        if template is None:
            path = Path(self.folder, f"rank{values['rank']}.{stream}.log")
        else:
            path = Path(template.format(**values, node_rank=self._machine))
        restart = variables["TORCHELASTIC_RESTART_COUNT"]
        if restart != "0":
            path = path.with_name(f"{path.name}.{restart}")
        path.parent.mkdir(parents=True, exist_ok=True)
        check_no_link(path)
        return str(path)
