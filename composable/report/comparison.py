"""What several runs have in common, and where they differ."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from composable.report.lines import folder_names, short_text
from composable.report.recorded_run import RecordedRun
from composable.runs.diff import configuration

# Facts about the machine and the start, in which runs of one configuration may differ.
_SYSTEM = (
    *("versions", "platform", "processor", "gpu", "num_threads", "deterministic", "commit"),
    *("device", "torch", "module", "arguments", "script_sha256"),
)
_TRAINING = ("max_duration", "requested_duration")


@attrs.frozen(eq=False)
class RunComparison:
    """Several runs side by side."""

    runs: tuple[RecordedRun, ...]
    names: tuple[str, ...]
    """The names of the runs: their folders, without the parts that all have in common."""
    settings: Mapping[str, tuple[str, ...]]
    """The hyperparameters by name, with the value in each run; "" if a run has none."""
    system: Mapping[str, tuple[str, ...]]
    """The facts about the machine and the software, likewise."""
    groups: tuple[tuple[int, ...], ...]
    """The indices of runs whose settings are equal except for the seed."""

    @classmethod
    def of(cls, runs: Sequence[RecordedRun]) -> "RunComparison":
        """Compare runs."""
        flat = (configuration(run.configuration, _TRAINING) for run in runs)
        rows = [{name: short_text(value) for name, value in one.items()} for one in flat]
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = {name: tuple(row.get(name, "") for row in rows) for name in names}
        system = {n: values for n, values in table.items() if n.split("/")[0] in _SYSTEM}
        settings = {n: values for n, values in table.items() if n not in system}
        return cls(
            tuple(runs),
            folder_names([run.folder for run in runs]),
            settings,
            system,
            _groups(settings, len(runs)),
        )

    def differing(self, table: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Return the rows of a table whose values differ."""
        return {name: values for name, values in table.items() if len(set(values)) > 1}

    def group_of(self, run: int) -> int:
        """Return the index of the group of a run."""
        return next(index for index, runs in enumerate(self.groups) if run in runs)

    def group_name(self, group: Sequence[int]) -> str:
        """Return the part of their names that the runs of a group share, or all their names."""
        names = [self.names[index] for index in group]
        shared = os.path.commonprefix(names)  # noqa: RUF071 - of letters, not of folders
        if shared not in names:
            shared = shared.rstrip("0123456789").rstrip("-_/=. ")
        return shared or ", ".join(names)


def _groups(settings: Mapping[str, tuple[str, ...]], num_runs: int) -> tuple[tuple[int, ...], ...]:
    groups: dict[Any, list[int]] = {}
    for index in range(num_runs):
        key = tuple(values[index] for name, values in settings.items() if name != "seed")
        groups.setdefault(key if any(key) else index, []).append(index)
    return tuple(map(tuple, groups.values()))
