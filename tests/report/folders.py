"""Run folders of any content, written without training."""

import json
from pathlib import Path
from typing import Any

from composable.runs import records
from composable.runs.events import EVENTS

CONFIGURATION = {
    "id": "0",
    "batch": 0,
    "seed": 1,
    "max_duration": "100ba",
    "epoch_length": 10,
    "algorithms": {"MixUp": "MixUp(alpha=0.2)"},
    "optimizers": ["SGD"],
    "hyperparameters": {"optimizers/0/param_groups/0": {"lr": 0.1}},
    "torch": "2.13.0",
    "device": "cpu",
    "versions": {"python": "3.12.1"},
}


def write_run(
    folder: Path,
    losses: Any = (),
    *,
    results: Any = (),
    events: Any = (),
    metrics: Any = (),
    **changes: Any,
) -> Path:
    """Write a run folder.

    Args:
        folder: The folder, which is created.
        losses: The loss of each batch.
        results: Pairs of a batch and evaluation results.
        events: The lines of `events.jsonl`.
        metrics: The lines of `metrics.jsonl`.
        changes: Changes of the configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records.add_record(folder, {**CONFIGURATION, **changes})
    lines = [records.write_line(i, i // 10, {"loss": x, "lr": 0.1}) for i, x in enumerate(losses)]
    lines += [records.write_line(batch, 0, found) for batch, found in results]
    (folder / records.STEPS).write_bytes(b"".join(lines))
    write_lines(folder / EVENTS, events)
    write_lines(folder / "metrics.jsonl", metrics)
    return folder


def write_lines(path: Path, lines: Any) -> None:
    """Write JSON lines; text is written as it is."""
    if lines:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def ended(batch: int, seconds: float, error: str | None = None) -> list[dict[str, Any]]:
    """Return the events of a run of batches of 8 samples."""
    fields = {"epoch": 0, "token": 0, "time": 1e9}
    start = {"event": "start", "batch": 0, "sample": 0, "seconds": 0.0, **fields}
    times = [
        {"event": "time", "batch": b, "sample": 8 * b, "seconds": seconds * b / batch, **fields}
        for b in range(1, batch + 1, max(1, batch // 20))
    ]
    end = {"event": "end", "batch": batch, "sample": 8 * batch, "seconds": seconds, "error": error}
    return [start, *times, {**end, **fields}]
