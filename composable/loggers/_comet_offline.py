"""What offline experiments of Comet have on disk.

A process writes messages to a file in a temporary folder, and packs the folder into an archive when
the experiment ends. The folder of a process that was killed stays.
"""

import json
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from composable._support import strict_json
from composable._support.paths import open_regular, replacing

_MESSAGES, _ABOUT = "messages.json", "experiment.json"


class Messages:
    """The messages of a running experiment, which another thread writes.

    Args:
        folder: The temporary folder of the experiment.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _MESSAGES
        self._at = 0
        self._steps: dict[str, int] = {}

    def read_new(self) -> dict[str, int]:
        """Return the last step of each name; only what was added since the last call is read."""
        with open_regular(self._path) as file:
            file.seek(self._at)
            raw = file.readall()
        raw = raw[: raw.rfind(b"\n") + 1]
        self._at += len(raw)
        _add_steps(self._steps, raw.splitlines())
        return self._steps


def archived_steps(path: Path) -> dict[str, int]:
    """Return the last step of each metric in an archive; of a broken one, none."""
    steps: dict[str, int] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            _add_steps(steps, archive.read(_MESSAGES).splitlines())
    except (zipfile.BadZipFile, KeyError, ValueError):  # its process ended while it was written
        pass
    return steps


def _add_steps(steps: dict[str, int], lines: Iterable[bytes]) -> None:
    for line in lines:
        message = strict_json.load(line, _MESSAGES, nan=True)
        metric = message.get("payload", {}).get("metric") or {}
        if metric.get("step") is not None:
            name = metric["metricName"]
            steps[name] = max(metric["step"], steps.get(name, -1))


def is_left_over(folder: Path) -> bool:
    """Return whether a path is the temporary folder of an experiment that wrote no archive."""
    return folder.parent == Path(tempfile.gettempdir()) and (folder / _MESSAGES).is_file()


def archive(folder: Path, target: Path, about: Mapping[str, Any]) -> None:
    """Pack the folder of a killed process as the package does, without an incomplete last message.

    Args:
        folder: The temporary folder; it is kept.
        target: The archive to write.
        about: The identity of the experiment.
    """
    now = int(time.time() * 1000)
    whole = {**about, "start_time": now, "stop_time": now, "resume_strategy": "get_or_create"}
    messages = (folder / _MESSAGES).read_bytes()
    with replacing(target) as partial, zipfile.ZipFile(partial, "w") as packed:
        packed.writestr(_MESSAGES, messages[: messages.rfind(b"\n") + 1])
        packed.writestr(_ABOUT, json.dumps(whole))
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name not in (_MESSAGES, _ABOUT):
                packed.write(path, path.name)
