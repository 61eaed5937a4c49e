"""Comparison of two recorded runs: the first step, metric and tensor that differ."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from composable._support.printable import printable
from composable.checkpoint import files
from composable.checkpoint.compare import describe_difference, mismatched
from composable.checkpoint.errors import CheckpointError
from composable.runs import records as run_records
from composable.runs.records import Steps, format_hex
from composable.storage.copies import local

_MOST_SHOWN = 5


@attrs.frozen
class Difference:
    """A step at which two runs differ."""

    batch: int
    what: str
    """`loss`, `lr`, `weights/0.weight`, `eval/accuracy`, or `batch` if one run has no such step."""
    first: Any
    """The value recorded in the first run; numbers are hexadecimal floats."""
    second: Any

    def describe(self, first: str, second: str) -> str:
        """Describe the step and both values, given the names of the runs."""
        what = f"{self.what}: {first} {format_hex(self.first)}, {second} {format_hex(self.second)}"
        if self.what == "batch":
            what = f"{first if self.first is None else second} has no such step"
        return f"first divergence: batch {self.batch}: {what}"


@attrs.frozen
class RunDifference:
    """The first differences between two runs."""

    runs: tuple[str | Path, str | Path]
    changes: tuple[str, ...]
    """The differences in their configuration, which alone don't count as a difference."""
    step: Difference | None
    """The first step that differs."""
    tensor: str | None
    """The first tensor that is known to differ."""
    skipped: tuple[str, ...]
    """The checkpoints that could not be read."""

    @property
    def same(self) -> bool:
        """Whether every step, metric and tensor is the same to the last bit."""
        return self.step is None and self.tensor is None

    def __str__(self) -> str:
        lines = [f"{letter}: {run}" for letter, run in zip("AB", self.runs, strict=True)]
        if self.changes:
            lines += ["configuration (A -> B):", *(f"  {change}" for change in self.changes)]
        lines += [f"skipped: {one}" for one in self.skipped]
        if self.same:
            return "\n".join(map(printable, [*lines, "the same to the last bit"]))
        if self.step is None:
            lines.append("no step differs, but the checkpoints do")
        else:
            lines.append(self.step.describe("A", "B"))
        lines.append(f"first tensor known to differ: {self.tensor or 'none'}")
        return "\n".join(map(printable, lines))


def diff_runs(first: str | Path, second: str | Path) -> RunDifference:
    """Find the first step, metric and tensor that differ between two recorded runs.

    Args:
        first: A run folder: the `save_folder` of a Trainer.
        second: Another run folder.

    Raises:
        CheckpointError: A folder is not a run folder, or its record cannot be read. Checkpoints
            that cannot be read are skipped.

    Example:
        >>> import tempfile
        >>> from functools import partial
        >>> import torch
        >>> from composable import Trainer
        >>> from composable.runs.diff import diff_runs
        >>> data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(4)]
        >>> folders = [tempfile.mkdtemp() for _ in range(2)]
        >>> for seed, folder in enumerate(folders):
        ...     trainer = Trainer(
        ...         torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)),
        ...         train_dataloader=data,
        ...         max_duration="1ep",
        ...         loss_fn=torch.nn.functional.cross_entropy,
        ...         optimizers=partial(torch.optim.SGD, lr=0.1),
        ...         save_folder=folder,
        ...         seed=seed,
        ...         progress_bar=False,
        ...     )
        ...     state = trainer.fit()
        >>> diff_runs(*folders).step.batch
        0
    """
    runs = local("first", first), local("second", second)
    records = [run_records.read_records(run)[-1] for run in runs]
    steps = [run_records.read_steps(run) for run in runs]
    step = _first_step(*steps)
    skipped: list[str] = []
    tensor = _first_digest(*steps) or _first_tensor(*runs, skipped)
    return RunDifference((first, second), tuple(changes(*records)), step, tensor, tuple(skipped))


# --- steps ---


def first_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Find the first name whose values differ between two lines of `steps.jsonl`.

    Digests are compared only if both lines have them.
    """
    own = [_weights(line) for line in (first, second)]
    ignored = set() if all(own) else own[0].keys() | own[1].keys()
    names = (name for name in {**first, **second} if name not in ignored)
    return next((name for name in names if first.get(name) != second.get(name)), None)


def first_weight(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Find the first tensor whose digests differ between two lines of `steps.jsonl`."""
    return first_difference(_weights(first), _weights(second))


def _weights(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name.startswith("weights/")}


def _first_step(first: Steps, second: Steps) -> Difference | None:
    for batch in sorted(first.trained.keys() | second.trained.keys()):
        ours, theirs = first.trained.get(batch), second.trained.get(batch)
        if ours is None or theirs is None:
            return Difference(batch, "batch", ours and ours["loss"], theirs and theirs["loss"])
        results = first.evaluated.get(batch, {}), second.evaluated.get(batch, {})
        both = results[0].keys() & results[1].keys()  # how often to evaluate makes no difference
        for a, b in (ours, theirs), ({n: result[n] for n in both} for result in results):
            if (what := first_difference(a, b)) is not None:
                return Difference(batch, what, a.get(what), b.get(what))
    return None


def _first_digest(first: Steps, second: Steps) -> str | None:
    for batch in sorted(first.trained.keys() & second.trained.keys()):
        if (name := first_weight(first.trained[batch], second.trained[batch])) is not None:
            return f"{name} after batch {batch}"
    return None


# --- checkpoints ---


def _first_tensor(first: Path, second: Path, skipped: list[str]) -> str | None:
    """Describe the tensors that differ in the first pair of checkpoints of one time that do."""
    ours, theirs = _by_time(first, skipped), _by_time(second, skipped)
    for time in sorted(ours.keys() & theirs.keys()):
        try:
            a, b = files.read(ours[time]).tensors, files.read(theirs[time]).tensors
        except CheckpointError as error:
            skipped.append(str(error))
            continue
        names = list(mismatched(a, b))
        if names:
            gaps = [f"{name} ({describe_difference(a.get(name), b.get(name))})" for name in names]
            more = f"; and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
            return f"{'; '.join(gaps[:_MOST_SHOWN])}{more}; at checkpoint {ours[time].name}"
    return None


def _by_time(run: Path, skipped: list[str]) -> dict[tuple[int, int, bool], Path]:
    """Find the checkpoints of a run folder, by batch, epoch and whether training is complete."""
    whole, broken = files.find(run)
    skipped += [str(one.error) for one in broken]
    facts = ((one.path, one.manifest.batch, one.manifest.info) for one in whole)
    return {
        (batch, info["epoch"], info.get("complete") is True): path
        for path, batch, info in facts
        if type(info.get("epoch")) is int
    }


# --- configurations ---


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describe the differences between two configurations, a line each, in what both contain."""
    a, b = _flat(before), _flat(now)
    for name in [name for name in {**a, **b} if name.split("/")[0] not in _IGNORED]:
        known = name.split("/")[0] in before and name.split("/")[0] in now
        if known and a.get(name) != b.get(name):
            yield f"{name}: {a.get(name)} -> {b.get(name)}"[:400]


def configuration(record: Mapping[str, Any], names: Iterable[str] = ()) -> dict[str, Any]:
    """Return the values in a record that `changes` compares, by their paths.

    Args:
        record: The description of a run.
        names: The names of further values to return.
    """
    ignored = _IGNORED - set(names)
    return {n: value for n, value in _flat(record).items() if n.split("/")[0] not in ignored}


_IGNORED = {
    *("id", "time", "batch", "command", "callbacks", "max_duration", "cwd", "save_folder"),
    *("script", "executable", "metrics_files", "metrics_paths", "plan"),
}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
