"""Read the checkpoints of other trainers: Lightning, Hugging Face's Trainer, Accelerate, Composer.

No code of a file is executed. The structure of a file is checked where it is compared with the run
that continues from it.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from fnmatch import filter as matching
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
from composable.checkpoint.weights import key_of_weights, read_file, read_weights
from composable.core.stateful import Count, Number, check_type, is_number, short
from composable.core.time import Timestamp

_Entries = dict[str, Any]
_TRANSFORMERS = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "training_args.bin")
_ACCELERATE = ("optimizer.bin", "scheduler.bin", "random_states_*.pkl")
_PICKLES = ("*.pt", "*.pth", "*.bin", "*.pkl", "model_*.safetensors")
"""Files that are named if nothing of them is restored."""


class ForeignCheckpointWarning(UserWarning):
    """A run continues from a checkpoint of another trainer, without some of its entries."""


@attrs.frozen(eq=False)
class ForeignPoint:
    """A checkpoint of another trainer, from which a new run continues."""

    path: Path
    library: str
    weights: Mapping[str, Any]
    optimizers: list[Any] | Mapping[str, Any]
    """The state dicts of the optimizers, in their order or by their class."""
    schedulers: list[Any] | Mapping[str, Any]
    """The state dicts of the PyTorch schedulers, in their order or by their class."""
    scaler: Any
    """The state dict of the gradient scaler, if there is one."""
    unread: list[str]
    """The entries that have no place in a run."""
    timestamp: Timestamp | None = None
    """The progress, if it is known."""
    in_batches: bool = False
    """Whether the progress within the epoch counts batches of the loader instead of steps."""
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
            if path.is_dir():
                names = sorted(entry.name for entry in path.iterdir())
                if _matching(names, _TRANSFORMERS):
                    return _read_transformers(path, names)
                return _read_accelerate(path, names) if _matching(names, _ACCELERATE) else None
            if not path.is_file() or path.suffix == ".safetensors":
                return None
            tree = read_file(path, stand_ins=True)
            read = {"state_dict": _read_lightning, "state/model": _read_composer}
            key = key_of_weights(tree)
            return None if key is None else read[key](path, tree, _get(path, tree, key, _Entries))
    except CheckpointError:
        raise
    except Exception as error:  # its entries may be anything
        raise DamagedCheckpointError(f"{path} is damaged: {error!r:.200}") from error


def _read_lightning(path: Path, tree: _Entries, weights: _Entries) -> ForeignPoint:
    optimizers = _get(path, tree, "optimizer_states", list[_Entries])
    schedulers = _get(path, tree, "lr_schedulers", list[_Entries])
    epochs = _get(path, tree, "loops/fit_loop/epoch_progress/current", _Entries)
    batches = _get(path, tree, "loops/fit_loop/epoch_loop.batch_progress", _Entries)
    epoch, ready = (_get(path, epochs, name, Count) for name in ("processed", "ready"))
    if epoch < ready and batches.get("is_last_batch"):
        epoch = ready  # nothing of it is left, and its schedulers have stepped
    within = _get(path, batches, "current/processed", Count) if epoch < ready else 0
    batch = _get(path, tree, "global_step", Count) // max(1, len(optimizers))
    scaler = next((n for n, v in tree.items() if isinstance(v, dict) and "scale" in v), "")
    read = {"state_dict", "optimizer_states", "lr_schedulers", "loops", "epoch", "global_step"}
    unread = _unread(tree, {*read, scaler, "pytorch-lightning_version"})
    now = Timestamp(epoch=epoch, batch=batch, batch_in_epoch=within)
    return ForeignPoint(
        path, "Lightning", weights, optimizers, schedulers, tree.get(scaler), unread, now, True
    )


def _read_composer(path: Path, tree: _Entries, weights: _Entries) -> ForeignPoint:
    state = {"schedulers": {}, "scaler": {}, **_get(path, tree, "state", _Entries)}
    names = ("optimizers", "schedulers", "scaler")
    optimizers, schedulers, scaler = (
        _get(path, state, name, dict[str, _Entries]) for name in names
    )
    saved, times = _get(path, state, "timestamp/Timestamp", _Entries), dict[str, Any]()
    for name, field in attrs.fields_dict(Timestamp).items():
        one = saved.get(name, field.default)
        times[name] = one.total_seconds() if isinstance(one, timedelta) else one
        check_type(times[name], float if name.endswith("_wct") else Count, f"{path}: {name}")
    unread = _unread(state, {*names, "model", "timestamp"}) + _unread(tree, {"state"})
    scale = next(iter(scaler.values()), None)
    now = Timestamp(**times)
    return ForeignPoint(path, "Composer", weights, optimizers, schedulers, scale, unread, now)


def _read_transformers(path: Path, names: list[str]) -> ForeignPoint:
    file_of_state = _file(path, names, "trainer_state.json")
    with open_regular(file_of_state) as file:
        state = load(file.read(MAX_BYTES), str(file_of_state), nan=True)
    found = _read_folder(path, names, ["optimizer.pt"], ["scheduler.pt"])
    found[-1].extend(name for name in ("log_history", "stateful_callbacks") if state.get(name))
    batch, epoch = _get(path, state, "global_step", Count), _get(path, state, "epoch", Number)
    whole = int(epoch)
    # The fraction is one of the batches that were read. Of accumulated ones the last step of an
    # epoch has fewer, so that the fraction of the steps is at most one step larger.
    within = int(batch * (epoch - whole) / epoch + 1e-6) if epoch else 0
    for name, value in {"global_step": batch, "epoch": whole, "global_step in it": within}.items():
        check_type(value, Count, f"{file_of_state}: {name}")
    now = Timestamp(epoch=whole, batch=batch, batch_in_epoch=within)
    return ForeignPoint(path, "Hugging Face's Trainer", *found, now)


def _read_accelerate(path: Path, names: list[str]) -> ForeignPoint:
    patterns = ("optimizer*.bin", "scheduler*.bin")  # the second one is optimizer_1.bin
    optimizers, schedulers = (sorted(matching(names, pattern), key=len) for pattern in patterns)
    found = _read_folder(path, names, optimizers or ["optimizer.bin"], schedulers)
    return ForeignPoint(path, "Accelerate", *found)


def _read_folder(
    path: Path, names: list[str], optimizers: list[str], schedulers: list[str]
) -> tuple[dict[str, Any], list[Any], list[Any], Any, list[str]]:
    """Read the parts of two libraries' folders; the optimizers, which are required, have names."""
    weights = _matching(names, ("model.safetensors*", "pytorch_model.bin"))
    read = {*optimizers, *schedulers, *(weights or [_file(path, names, "model.safetensors").name])}
    return (
        read_weights(path, None),
        [read_file(_file(path, names, name)) for name in optimizers],
        [read_file(path / name) for name in schedulers if name in names],
        read_file(path / "scaler.pt") if "scaler.pt" in names else None,
        [n for n in _matching(names, _PICKLES) if n not in read and n != "scaler.pt"],
    )


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


def check_like(own: Any, saved: Any, where: str) -> None:
    """Check that saved numbers are numbers, and that lists have the lengths of the run's.

    Raises:
        MismatchError: They have not.
    """
    lists = isinstance(own, (list, tuple))
    kind = Mapping if isinstance(own, Mapping) else (list, tuple) if lists else object
    fits = isinstance(saved, kind) and (is_number(saved) or not is_number(own))
    if not fits or (isinstance(saved, Tensor) and saved.is_meta):
        raise MismatchError(f"{where} is {short(saved)}, and {short(own)} in this run.")
    if lists and len(own) not in (0, len(saved)):
        raise MismatchError(f"{where} has {len(saved)} values, and {len(own)} in this run.")
    pairs = {n: (own[n], saved[n]) for n in own.keys() & saved.keys()} if kind is Mapping else {}
    for name, pair in pairs.items() or enumerate(zip(own, saved, strict=False) if lists else ()):
        check_like(*pair, f"{where}/{name}")
