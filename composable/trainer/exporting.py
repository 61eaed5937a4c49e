"""Export the model of a run, with a card that is written from the record of the run."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from composable._support.checks import is_url
from composable._support.hub import HubPlace
from composable._support.paths import write_atomically
from composable.checkpoint.export import CARD, CARD_MARK, export_weights
from composable.storage.copies import uploading
from composable.trainer.records import Records


def export_run(
    records: Records, path: str | Path, part: str, overwrite: bool, tokenizer: Any
) -> str | Path:
    """Write the weights of a run: see `Trainer.export_weights`."""
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise TypeError(f"tokenizer={tokenizer!r} must be a tokenizer of Transformers.")
    run, place = records.run, HubPlace.parse(path)
    named: dict[Any, Any] = dict(run.state.model.named_modules())
    if part not in named:
        raise ValueError(f"part={part!r} must be the name of a module: one of {[*named][1:]}.")
    write = partial(
        export_weights,
        named[part],
        processes=records.options.processes,
        overwrite=overwrite,
        describe=partial(write_card, records, tokenizer),
    )
    with run.engine.whole():
        if place is not None:
            from composable.storage.hub import publish  # on use

            return publish("path", place, partial(write, beside=True))
        with uploading("path", path, overwrite=overwrite) as target:
            found = write(target)
    return path if is_url(path) else found


def write_card(records: Records, tokenizer: Any, folder: Path, library: str) -> None:
    """Write the tokenizer of a model, and its card: its data, methods, results and versions.

    Args:
        records: The records of the run.
        tokenizer: The tokenizer, or None.
        folder: Where to write.
        library: The library that reads the model.
    """
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    state = records.run.state
    run = records.describe(state)
    now, evaluators = state.timestamp, run["evaluators"].items()
    methods = ("algorithms", "optimizers", "schedulers", "loss_fn", "seed")
    sections: dict[str, dict[str, Any]] = {
        "Data": {"train": run["data"], **{label: one["data"] for label, one in evaluators}},
        "Methods": {
            **{name: run[name] for name in methods},
            **run["hyperparameters"],
            "precision": run["options"]["precision"],
            "trained": {"epochs": now.epoch, "batches": now.batch, "examples": now.sample},
        },
        "Results": {label: dict(found) for label, found in state.metrics.items()},
        "Versions": {**run["versions"], "commit": run["commit"]},
    }
    text = [
        f"---\nlibrary_name: {library}\ntags:\n- composable\n---\n{CARD_MARK}\n\n# {run['model']}"
    ]
    for title, values in sections.items():
        shown = [f"| {n} | {_cell(one)} |" for n, one in _rows("", values) if one is not None]
        if shown:
            text.append("\n".join([f"## {title}\n\n| | |\n|---|---|", *shown]))
    write_atomically(folder / CARD, ("\n\n".join(text) + "\n").encode())


def _rows(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested containers, named like paths."""
    if not isinstance(value, (Mapping, list)):
        yield name[1:], value
        return
    for key, one in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _rows(f"{name}/{key}", one)


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
