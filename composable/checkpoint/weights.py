"""The weights of a model from a file: ours, or a foreign one."""

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.checkpoint._safetensors import read_header, read_tensors
from composable.checkpoint.errors import (
    CheckpointError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    UnreadableCheckpointError,
)
from composable.checkpoint.files import read
from composable.checkpoint.tree import identity_of, listed, unpack

__all__ = ["LoadedWeights", "load_weights"]

_OURS = "state/model/weights"


@attrs.frozen
class LoadedWeights:
    """What `load_weights` did, by names."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    """In the model and not in the file, and not ignored."""
    unexpected: tuple[str, ...]
    """In the file and not in the model, and not ignored."""


def load_weights(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    ignore: Sequence[str] = (),
    key: str | None = None,
) -> LoadedWeights:
    """Load the parameters and buffers of a model: all of them, or none after an error.

    Names, shapes and dtypes are compared before the first number is copied. Floating-point numbers
    are converted to the model's dtype; nothing else is. Where two names are one tensor in the
    model, either will do.

    Args:
        model: What to load into, in place.
        path: A checkpoint of ours (a folder), a `.safetensors` file, or a file that
            `torch.load(weights_only=True)` reads. Nothing in it is executed.
        strict: Refuse missing and unexpected names. A name in both with another shape is refused
            in any case.
        ignore: Patterns of names that are left as they are in the model, such as "head.*".
        key: Where in the file the weights are: "state_dict", or "state/model" with a slash for
            each level. By default the whole of a foreign file, and the model of a checkpoint.

    Returns:
        The names that were loaded, missing and unexpected.

    Raises:
        MismatchError: The weights do not fit the model; the message lists what doesn't.
        DamagedCheckpointError: The file is damaged, or holds more than tensors and containers.
        MissingCheckpointError: There is no such file.

    Example:
        >>> import pathlib, tempfile
        >>> from composable.checkpoint import load_weights
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "weights.pt"
        >>> torch.save({"net": torch.nn.Linear(2, 1).state_dict()}, path)
        >>> load_weights(torch.nn.Linear(2, 1), path, key="net").loaded
        ('weight', 'bias')
    """
    path = Path(path)
    patterns = [ignore] if isinstance(ignore, str) else list(ignore)
    weights = {
        name: value
        for name, value in _read_weights(path, key).items()
        if not _matches(name, patterns)
    }
    own = {n: v for n, v in model.state_dict().items() if not _matches(n, patterns)}
    unexpected = [name for name in weights if name not in own]
    found = {name: value for name, value in weights.items() if name in own}
    tied = _tied(own)
    missing = [name for name in own if not any(other in found for other in tied[name])]
    faults = [f"{name}: {fault}" for name in found if (fault := _fault(own[name], found[name]))]
    faults += _contradictions(found, tied)
    if strict and missing:
        faults.append(f"missing in the file: {listed(missing)}")
    if strict and unexpected:
        faults.append(f"not in the model: {listed(unexpected)}")
    if faults:
        raise MismatchError(
            f"{path} does not fit the model, which is as it was:\n  "
            + "\n  ".join(faults[:20])
            + "\nTo leave some as they are, name them in ignore=, such as ignore=['head.*']."
        )
    model.load_state_dict(found, strict=False)
    return LoadedWeights(tuple(found), tuple(missing), tuple(unexpected))


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _tied(own: Mapping[str, Any]) -> dict[str, list[str]]:
    """For each name, all names of the same tensor."""
    groups: dict[Any, list[str]] = {}
    of: dict[str, list[str]] = {}
    for name, value in own.items():
        lazy = not isinstance(value, Tensor) or nn.parameter.is_lazy(value) or not value.numel()
        of[name] = groups.setdefault(name if lazy else identity_of(value), [])
        of[name].append(name)
    return of


def _contradictions(found: Mapping[str, Any], tied: Mapping[str, list[str]]) -> list[str]:
    """Names of one tensor of the model for which the file has different numbers."""
    faults = []
    for name in found:
        first = next(other for other in tied[name] if other in found)
        one, two = found[first], found[name]
        if isinstance(one, Tensor) and isinstance(two, Tensor) and not _same(one, two):
            faults.append(f"{name}: it is one tensor with {first}, and the file has two")
    return faults


def _same(one: Tensor, two: Tensor) -> bool:
    if one is two or one.shape != two.shape:
        return True  # another shape is reported by itself
    return bool(((one == two) | ((one != one) & (two != two))).all())


def _fault(own: Any, value: Any) -> str | None:
    """Why a value can't take the place of the model's own."""
    if not isinstance(own, Tensor):
        return None  # what a module makes of its extra state is its own affair
    if not isinstance(value, Tensor):
        return f"it is a {type(value).__name__}, not a tensor"
    if not nn.parameter.is_lazy(own) and own.shape != value.shape:
        return f"its shape is {list(value.shape)}, and {list(own.shape)} in the model"
    converts = own.is_floating_point() and value.is_floating_point()
    if own.dtype != value.dtype and not converts:
        return f"its dtype is {value.dtype}, and {own.dtype} in the model"
    return None


# ---------------------------------------------------------------------------------------------
# What is in the file


def _read_weights(path: Path, key: str | None) -> dict[str, Any]:
    if path.is_dir():
        contents = read(path)
        tree, key = unpack(contents.tensors, contents.data), key or _OURS
    else:
        tree = _read_file(path)
    for part in (key or "").split("/") if key else []:
        if not isinstance(tree, Mapping) or part not in tree:
            raise MismatchError(f"{path} has no {key!r}: {_holds(tree)}.")
        tree = tree[part]
    if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
        raise MismatchError(f"{path} holds no weights by name: {_holds(tree)}.")
    if tree and not any(isinstance(value, Tensor) for value in tree.values()):
        raise MismatchError(
            f"{path} holds no tensors by name: {_holds(tree)}. Say where they are with key=."
        )
    return dict(tree)


def _holds(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return f"there is {listed(list(map(str, tree)))}"
    return f"there is a {type(tree).__name__}"


def _read_file(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        with path.open("rb") as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise MissingCheckpointError(f"there is no file {path}.") from None
    except CheckpointError:
        raise
    except OSError as error:
        raise UnreadableCheckpointError(f"{path} can't be read: {error.strerror}.") from error
    except Exception as error:  # torch.load raises all kinds
        raise DamagedCheckpointError(
            f"{path} can't be loaded: it is damaged, or holds more than tensors and plain "
            "containers, which is refused because loading it could run code."
        ) from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        entries = read_header(file.readinto, size, str(path))
        return read_tensors(file.readinto, entries, str(path))
