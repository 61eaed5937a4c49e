"""Read the checkpoints of other trainers: Lightning, Hugging Face's Trainer, Accelerate, Composer.

No code of a file is executed. The structure of a file is checked where it is compared with the run
that continues from it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from fnmatch import filter as matching
from itertools import count, takewhile
from pathlib import Path
from typing import Any, ClassVar

import attrs
from torch import Tensor

from composable._support.paths import open_regular
from composable._support.strict_json import MAX_BYTES, load
from composable.checkpoint.errors import (
    CheckpointError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
)
from composable.checkpoint.reader import readable
from composable.checkpoint.weights import (
    COMPOSER,
    LIGHTNING,
    file_of_weights,
    read_file,
    read_weights,
)
from composable.core.stateful import Count, Number, check_type, is_number, short
from composable.core.time import Timestamp

__all__ = ["ForeignCheckpointWarning", "ForeignPoint", "check_like", "read_foreign"]

_ENTRIES = dict[str, Any]
_STATES = dict[str, _ENTRIES]
_OF_TRANSFORMERS = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "training_args.bin")
_OF_ACCELERATE = ("optimizer.bin", "scheduler.bin", "random_states_*.pkl")
_PICKLES = ("*.pt", "*.pth", "*.bin", "*.pkl", "model_*.safetensors")


class ForeignCheckpointWarning(UserWarning):
    """A run continues from a checkpoint of another trainer, without some of its entries."""


@attrs.frozen(eq=False, kw_only=True)
class ForeignPoint:
    """A checkpoint of another trainer, from which a new run continues."""

    path: Path
    library: str
    weights: Mapping[str, Any]
    optimizers: list[Any]
    """The state dicts of the optimizers, by the positions or the names of the parameters."""
    types: list[str] | None = None
    """The classes of the optimizers, if they are known."""
    schedulers: list[Any] | Mapping[str, Any]
    """The state dicts of the PyTorch schedulers, in their order or by their class."""
    timestamp: Timestamp | None
    """The progress, if it is known."""
    in_batches: bool = False
    """Whether the progress within the epoch counts batches of the loader instead of steps."""
    steps: int = 0
    """The steps that the optimizers counted, if the progress is unknown."""
    scheduled: int = 0
    """The steps that the schedulers counted, if the progress is unknown."""
    scaler: Any = None
    """The state dict of the gradient scaler, if there is one."""
    unread: list[str] = attrs.field(factory=list)
    """The entries that have no place in a run."""

    run: ClassVar[None] = None
    seed: ClassVar[None] = None
    num_shards: ClassVar[None] = None


def read_foreign(path: Path) -> ForeignPoint | None:
    """Read a checkpoint of another trainer; return None for anything else.

    Raises:
        MissingCheckpointError: It lacks a part that training needs.
        DamagedCheckpointError: It is damaged, or has an object that is rejected because loading it
            could execute code; the message names its class.
    """
    try:
        with readable(path):
            if not path.is_dir():
                return _read_file(path)
            names = sorted(one.name for one in path.iterdir())
            if _matching(names, _OF_TRANSFORMERS):
                return _read_transformers(path, names)
            return _read_accelerate(path, names) if _matching(names, _OF_ACCELERATE) else None
    except CheckpointError:
        raise
    except Exception as error:  # its entries may be anything
        raise DamagedCheckpointError(
            f"{path} is damaged: {type(error).__name__}: {error}"
        ) from error


def _read_file(path: Path) -> ForeignPoint | None:
    if not path.is_file() or path.suffix == ".safetensors":
        return None
    tree = read_file(path, stand_ins=True)
    names = set(tree) if isinstance(tree, Mapping) else set()
    if LIGHTNING in names:
        return _read_lightning(path, tree)
    return _read_composer(path, tree) if names >= COMPOSER else None


def _read_lightning(path: Path, tree: Mapping[str, Any]) -> ForeignPoint:
    optimizers = _get(path, tree, "optimizer_states", list[_ENTRIES])
    epochs = _get(path, tree, "loops/fit_loop/epoch_progress/current", _ENTRIES)
    batches = _get(path, tree, "loops/fit_loop/epoch_loop.batch_progress", _ENTRIES)
    epoch, ready = (_get(path, epochs, name, Count) for name in ("processed", "ready"))
    if epoch < ready and batches.get("is_last_batch"):
        epoch = ready  # nothing of it is left, and its schedulers have stepped
    within = _get(path, batches, "current/processed", Count) if epoch < ready else 0
    batch = _get(path, tree, "global_step", Count) // max(1, len(optimizers))
    scaler = next((n for n, v in tree.items() if isinstance(v, dict) and "scale" in v), "")
    read = {"state_dict", "optimizer_states", "lr_schedulers", "loops", "epoch", "global_step"}
    return ForeignPoint(
        path=path,
        library="Lightning",
        weights=_get(path, tree, "state_dict", _ENTRIES),
        optimizers=optimizers,
        schedulers=_get(path, tree, "lr_schedulers", list[_ENTRIES]),
        timestamp=Timestamp(epoch=epoch, batch=batch, batch_in_epoch=within),
        in_batches=True,
        scaler=tree.get(scaler),
        unread=_unread(tree, {*read, LIGHTNING, scaler}),
    )


def _read_composer(path: Path, tree: Mapping[str, Any]) -> ForeignPoint:
    state = _get(path, tree, "state", _ENTRIES)
    optimizers = _get(path, state, "optimizers", _STATES)
    now = _get(path, state, "timestamp/Timestamp", _ENTRIES)
    times: dict[str, Any] = {}
    for name, field in attrs.fields_dict(Timestamp).items():
        one = now.get(name, field.default)
        times[name] = one.total_seconds() if isinstance(one, timedelta) else one
        check_type(times[name], float if name.endswith("_wct") else Count, f"{path}: {name}")
    scaler = _get(path, {"scaler": {}, **state}, "scaler", _STATES)
    read = {"model", "optimizers", "schedulers", "timestamp", "scaler"}
    return ForeignPoint(
        path=path,
        library="Composer",
        weights=_get(path, state, "model", _ENTRIES),
        optimizers=list(optimizers.values()),
        types=list(optimizers),
        schedulers=_get(path, {"schedulers": {}, **state}, "schedulers", _STATES),
        timestamp=Timestamp(**times),
        scaler=next(iter(scaler.values()), None),
        unread=[*_unread(state, read), *_unread(tree, {"state"})],
    )


def _read_transformers(path: Path, names: list[str]) -> ForeignPoint:
    file_of_state = _file(path, names, "trainer_state.json")
    with open_regular(file_of_state) as file:
        state = load(file.read(MAX_BYTES), str(file_of_state), nan=True)
    batch = _get(file_of_state, state, "global_step", Count)
    epoch = _get(file_of_state, state, "epoch", Number)
    if not 0 <= epoch <= batch:
        raise DamagedCheckpointError(f"{file_of_state}: epoch is {epoch!r} after {batch} batches.")
    whole = int(epoch)
    # The fraction is one of the batches that were read. Of accumulated ones the last step of an
    # epoch has fewer, so that the fraction of the steps is at most one step larger.
    within = int(batch * (epoch - whole) / epoch + 1e-6) if epoch else 0
    return ForeignPoint(
        path=path,
        library="Hugging Face's Trainer",
        timestamp=Timestamp(epoch=whole, batch=batch, batch_in_epoch=within),
        **_read_folder(path, names, ["optimizer.pt"], ["scheduler.pt"]),
    )


def _read_accelerate(path: Path, names: list[str]) -> ForeignPoint:
    of_optimizers, of_schedulers = (
        list(takewhile(names.__contains__, (f"{stem}_{i}.bin".replace("_0", "") for i in count())))
        for stem in ("optimizer", "scheduler")
    )
    found = _read_folder(path, names, of_optimizers or ["optimizer.bin"], of_schedulers)
    return ForeignPoint(
        path=path,
        library="Accelerate",
        timestamp=None,
        steps=max(_counts(found["optimizers"], "step"), default=0),
        scheduled=max(_counts(found["schedulers"], "last_epoch"), default=0),
        **found,
    )


def _read_folder(
    path: Path, names: list[str], optimizers: list[str], schedulers: list[str]
) -> dict[str, Any]:
    """Return what the formats of two libraries have in common, by the names of files."""
    source = file_of_weights(path)
    if source == path and not _matching(names, ("model.safetensors*",)):
        _file(path, names, "model.safetensors")
    read = {*optimizers, *schedulers, source.name, "scaler.pt"}
    return {
        "weights": read_weights(source, None),
        "optimizers": [read_file(_file(path, names, name)) for name in optimizers],
        "schedulers": [read_file(path / name) for name in schedulers if name in names],
        "scaler": read_file(path / "scaler.pt") if "scaler.pt" in names else None,
        "unread": [name for name in _matching(names, _PICKLES) if name not in read],
    }


# --- entries


def _get(path: Path, tree: Any, name: str, kind: Any) -> Any:
    """Return an entry of a file, by its path.

    Raises:
        MissingCheckpointError: It is missing.
        StructureError: It has another type.
    """
    for part in name.split("/"):
        if not isinstance(tree, Mapping) or part not in tree:
            raise _missing(path, name)
        tree = tree[part]
    check_type(tree, kind, f"{path}: {name}")
    return tree


def _file(path: Path, names: list[str], name: str) -> Path:
    if name not in names:
        raise _missing(path, name)
    return path / name


def _missing(path: Path, name: str) -> MissingCheckpointError:
    return MissingCheckpointError(
        f"{path} has no {name}, which training needs to continue: the save was interrupted, or was "
        "one of weights only. Pass load_weights_only=True to load the weights alone."
    )


def _matching(names: list[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(matching([name], pattern) for pattern in patterns)]


def _unread(tree: Mapping[str, Any], read: set[str]) -> list[str]:
    """Return the names of the entries that nothing reads, without empty ones."""
    kept = {n: v for n, v in tree.items() if n not in read and v is not None}
    return [str(n) for n, v in kept.items() if v or not isinstance(v, (dict, list))]


def _counts(node: Any, name: str, depth: int = 4) -> Iterator[int]:
    """Yield the counts of a name in a tree."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if depth and isinstance(node, dict):
        if name in node and is_number(node[name]):
            yield int(node[name])
        for one in node.values():
            yield from _counts(one, name, depth - 1)


def check_like(own: Any, saved: Any, where: str) -> None:
    """Check that saved numbers are numbers, and that lists have the lengths of the run's.

    Raises:
        MismatchError: They have not.
    """
    fits = is_number(saved) or not is_number(own)
    if isinstance(own, Mapping):
        fits = isinstance(saved, Mapping)
    elif isinstance(own, (list, tuple)):
        fits = isinstance(saved, (list, tuple)) and len(own) in (0, len(saved))
    if not fits or (isinstance(saved, Tensor) and saved.is_meta):
        raise MismatchError(f"{where} is {short(saved)}, and {short(own)} in this run.")
    if isinstance(own, Mapping):
        for name in own.keys() & saved.keys():
            check_like(own[name], saved[name], f"{where}/{name}")
    elif isinstance(own, (list, tuple)):
        for i, (one, value) in enumerate(zip(own, saved, strict=False)):
            check_like(one, value, f"{where}/{i}")
