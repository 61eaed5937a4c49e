"""Load the weights of a model from a checkpoint, a safetensors file or a `torch.save` file."""

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.checkpoint._safetensors import read_header, read_tensors
from composable.checkpoint._weights_pickle import RefusedPickleError, check_pickle
from composable.checkpoint.errors import (
    CheckpointError,
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
    UnreadableCheckpointError,
)
from composable.checkpoint.files import read
from composable.checkpoint.layout import Region
from composable.checkpoint.shards import is_dtensor, local_of, region_of
from composable.checkpoint.tree import identity_of, listed, unpack
from composable.checkpoint.weight_files import files_of_model, open_checkpoint, open_files
from composable.core._paths import open_regular
from composable.functional._checks import as_path, check_flag, check_module

__all__ = [
    "LoadedWeights",
    "as_patterns",
    "load_path_weights",
    "load_plain",
    "load_weights",
    "matches",
    "read_file",
    "read_weights",
]

_OF_FUNCTION = "Set their path with key="
_OF_TRAINER = (
    "Drop load_path, and load them into the model before you build the Trainer, by "
    "composable.checkpoint.load_weights(model, path, key=...)"
)
_OURS = "state/model/weights"
_EXTRA = "_extra_state"
_SAFETENSORS = ".safetensors"
Read = Callable[..., Tensor]


@attrs.frozen
class LoadedWeights:
    """The names of the weights that `load_weights` loaded, and of those that differ."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    """Names in the model that are not in the file, without ignored ones."""
    unexpected: tuple[str, ...]
    """Names in the file that are not in the model, without ignored ones."""


def load_weights(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    ignore: Sequence[str] = (),
    key: str | None = None,
) -> LoadedWeights:
    """Load the parameters and buffers of a model: all of them, or none after an error.

    Names, shapes and dtypes are compared before any value is copied. Only floating-point values are
    converted to the model's dtype. If two names refer to the same tensor of the model (tied
    weights), the file may contain either. If the parameters of the model are divided among
    processes, as a `DTensor`, every process calls this function, and loads its part of the file.

    Args:
        model: The model, modified in place.
        path: A checkpoint of this library (a folder), a `.safetensors` file, a folder that
            `save_pretrained` of Transformers wrote, or a file that `torch.load(weights_only=True)`
            reads. Loading it never executes code.
        strict: Raise if names are missing or unexpected. A wrong shape always raises.
        ignore: Patterns of names to leave unchanged in the model, such as "head.*".
        key: The path of the weights in the file: "state_dict", or "state/model" with a slash for
            each level. Default: the model of a checkpoint, or the whole of any other file.

    Returns:
        The names that were loaded, missing and unexpected.

    Raises:
        MismatchError: The weights do not match the model; the message lists the differences.
        DamagedCheckpointError: The file is damaged, or contains more than tensors and containers.
        MissingCheckpointError: The file does not exist.

    Example:
        >>> import pathlib, tempfile
        >>> from composable.checkpoint import load_weights
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "weights.pt"
        >>> torch.save({"net": torch.nn.Linear(2, 1).state_dict()}, path)
        >>> load_weights(torch.nn.Linear(2, 1), path, key="net").loaded
        ('weight', 'bias')
    """
    path = as_path("path", path)
    check_module("model", model)
    check_flag("strict", strict)
    patterns = as_patterns(ignore)
    if key is not None and not isinstance(key, str):
        raise TypeError(f"key={key!r} must be the path of the weights in the file, or None.")
    with _opened(model, path, key, _OF_FUNCTION) as (weights, read):
        return _load_weights(model, weights, read, path, patterns, strict=strict, argument="ignore")


def load_path_weights(model: nn.Module, path: Path, ignore: Sequence[str]) -> LoadedWeights:
    """Load the weights of `load_path`, as `load_weights` does; errors name those arguments."""
    patterns, argument = as_patterns(ignore), "load_ignore_keys"
    with _opened(model, path, None, _OF_TRAINER) as (weights, read):
        return _load_weights(model, weights, read, path, patterns, strict=True, argument=argument)


@contextmanager
def _opened(
    model: nn.Module, path: Path, key: str | None, advice: str
) -> Iterator[tuple[dict[str, Any], Read]]:
    """Yield the weights of a file, and what reads a region of one.

    Those for a model that is sharded have no values yet: each process reads its part.
    """
    if any(map(is_dtensor, model.parameters())):
        files = [path] if path.suffix == _SAFETENSORS else files_of_model(path)
        if files or path.is_dir():
            with open_files(files) if files else open_checkpoint(path) as source:
                at = key if files else key or _OURS
                yield _weights_in(source.tree, at, path, advice), source.read
                return
    yield read_weights(path, key, advice), _part_of


def _part_of(value: Tensor, region: Region | None = None) -> Tensor:
    return value if region is None else value[region.within(Region.whole(value.shape))]


def _load_weights(
    model: nn.Module,
    weights: Mapping[str, Any],
    read: Read,
    path: Path,
    patterns: list[str],
    *,
    strict: bool,
    argument: str,
) -> LoadedWeights:
    """Load weights by name; `argument` is that with the patterns, for errors."""
    weights = {name: value for name, value in weights.items() if not matches(name, patterns)}
    own = {n: v for n, v in model.state_dict().items() if not matches(n, patterns)}
    unexpected = [name for name in weights if name not in own]
    found = {name: value for name, value in weights.items() if name in own}
    tied = _tied(own)
    missing = [name for name in own if not any(other in found for other in tied[name])]
    faults = [f"{name}: {fault}" for name in found if (fault := _fault(own[name], found[name]))]
    faults += _contradictions(found, tied, read)
    if strict and missing:
        faults.append(f"missing in the file: {listed(missing)}")
    if strict and unexpected:
        faults.append(f"not in the model: {listed(unexpected)}")
    if faults:
        raise MismatchError(
            f"{path} does not match the model, which is unchanged:\n  "
            + "\n  ".join(faults[:20])
            + f"\nTo leave weights unchanged, list them in {argument}, such as "
            f"{argument}=['head.*']."
        )
    if any(map(is_dtensor, own.values())):
        _load_parts(model, own, found, read, path)
    else:
        _load(model, found, path)
    return LoadedWeights(tuple(found), tuple(missing), tuple(unexpected))


def _load_parts(
    model: nn.Module, own: Mapping[str, Any], found: Mapping[str, Any], read: Read, path: Path
) -> None:
    """Load the parts of this process, one tensor after another."""
    _load(model, {n: value for n, value in found.items() if not isinstance(own[n], Tensor)}, path)
    with torch.no_grad():
        for name, value in found.items():
            target = own[name]
            if is_dtensor(target):
                region = region_of(target)
                if region is not None:
                    local_of(target).copy_(read(value, region))
            elif isinstance(target, Tensor):
                target.copy_(read(value))


def as_patterns(ignore: Any) -> list[str]:
    """Return patterns of names as a list, after checking their type."""
    if isinstance(ignore, str):
        return [ignore]
    if not isinstance(ignore, (list, tuple, set)) or not all(isinstance(p, str) for p in ignore):
        raise TypeError(f"ignore={ignore!r} must be a list of patterns of names.")
    return list(ignore)


def _load(model: nn.Module, found: Mapping[str, Any], path: Path) -> None:
    """Load extra states, which may raise, and then tensors, which were checked."""
    extra = {name: value for name, value in found.items() if name.split(".")[-1] == _EXTRA}
    before: list[tuple[nn.Module, Any]] = []
    for name, value in extra.items():
        module = model.get_submodule(name.removesuffix(_EXTRA).removesuffix("."))
        before.append((module, module.get_extra_state()))
        try:
            module.set_extra_state(value)
        except Exception as error:  # a module may raise anything
            for changed, own in reversed(before):
                with suppress(Exception):
                    changed.set_extra_state(own)
            raise MismatchError(
                f"{path}: {name} does not match the model, whose tensors are unchanged: "
                f"set_extra_state raised {type(error).__name__}: {error}"
            ) from error
    tensors = {name: value for name, value in found.items() if name not in extra}
    model.load_state_dict(tensors, strict=False)


def matches(name: str, patterns: list[str]) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _tied(own: Mapping[str, Any]) -> dict[str, list[str]]:
    """Map each name to all names of the same tensor."""
    groups: dict[Any, list[str]] = {}
    of: dict[str, list[str]] = {}
    for name, value in own.items():
        lazy = not isinstance(value, Tensor) or nn.parameter.is_lazy(value) or not value.numel()
        of[name] = groups.setdefault(name if lazy else identity_of(value), [])
        of[name].append(name)
    return of


def _contradictions(
    found: Mapping[str, Any], tied: Mapping[str, list[str]], read: Read
) -> list[str]:
    """List the tied weights of the model whose values differ in the file."""
    faults = []
    for name in found:
        first = next(other for other in tied[name] if other in found)
        one, two = found[first], found[name]
        both = isinstance(one, Tensor) and isinstance(two, Tensor)
        if both and one is not two and not _same(read(one), read(two)):
            faults.append(f"{name}: tied to {first} in the model, but different in the file")
    return faults


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return True  # a wrong shape is reported separately
    return bool(((one == two) | ((one != one) & (two != two))).all())


def _fault(own: Any, value: Any) -> str | None:
    """Return why a value cannot replace the model's own, or None."""
    if not isinstance(own, Tensor):
        return None  # a module checks its own extra state
    if not isinstance(value, Tensor):
        return f"expected a tensor, got {type(value).__name__}"
    if own.is_meta and not nn.parameter.is_lazy(own):
        return "on the meta device in the model, without memory: call model.to_empty(device=...)"
    if own.layout is not value.layout:
        return f"layout {value.layout} in the file, {own.layout} in the model"
    if not nn.parameter.is_lazy(own) and own.shape != value.shape:
        return f"shape {list(value.shape)} in the file, {list(own.shape)} in the model"
    converts = own.is_floating_point() and value.is_floating_point()
    if own.dtype != value.dtype and not converts:
        return f"dtype {value.dtype} in the file, {own.dtype} in the model"
    return None


# ---------------------------------------------------------------------------------------------
# The contents of the file


def read_weights(path: Path, key: str | None, advice: str = _OF_FUNCTION) -> dict[str, Any]:
    """Return the weights of a file by name: see `load_weights`."""
    tree: Any
    if files := files_of_model(path):
        tree = {name: value for file in files for name, value in read_file(file).items()}
    elif path.is_dir():
        contents = read(path)
        tree, key = unpack(contents.tensors, contents.data), key or _OURS
    else:
        tree = read_file(path)
    weights = _weights_in(tree, key, path, advice)
    if missing := [
        name for name, one in weights.items() if isinstance(one, Tensor) and one.is_meta
    ]:
        raise MismatchError(
            f"{path}: {missing[0]} is on the meta device in the file, without values."
        )
    return weights


def _weights_in(tree: Any, key: str | None, path: Path, advice: str) -> dict[str, Any]:
    """Return the weights that a tree has at a path."""
    for part in (key or "").split("/") if key else []:
        if not isinstance(tree, Mapping) or part not in tree:
            raise MismatchError(f"{path} has no entry {key!r}: {_contents(tree)}.")
        tree = tree[part]
    if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
        raise MismatchError(f"{path} contains no mapping of weights: {_contents(tree)}.")
    if tree and not any(isinstance(value, Tensor) for value in tree.values()):
        raise MismatchError(
            f"{path} contains no mapping of tensors: {_contents(tree)}. {advice}{_such_as(tree)}."
        )
    return dict(tree)


def _such_as(tree: Mapping[str, Any], path: str = "") -> str:
    """Return an example of the key of weights in a tree, if there are some."""
    for name, value in tree.items():
        if isinstance(name, str) and isinstance(value, Mapping) and value:
            if all(isinstance(one, Tensor) for one in value.values()):
                return f", such as key={path + name!r}"
            if "/" not in path and (found := _such_as(value, f"{path}{name}/")):
                return found
    return ""


def _contents(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return f"it contains {listed(list(map(str, tree)))}"
    return f"it contains an object of type {type(tree).__name__}"


def read_file(path: Path) -> Any:
    """Return the contents of a safetensors file, or of one that `torch.save` wrote.

    Raises:
        CheckpointError: The file is missing, damaged, or has more than tensors and containers.
    """
    try:
        with open_regular(path) as file:
            if path.suffix == _SAFETENSORS:
                return _read_safetensors(file, path)
            return load_plain(file, path, os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        raise MissingCheckpointError(f"no file {path}.") from None
    except CheckpointError:
        raise
    except OSError as error:
        raise UnreadableCheckpointError(f"{path} cannot be read: {error.strerror}.") from error


def load_plain(file: Any, path: Path, size: int) -> Any:
    """Load what `torch.save` wrote, if it is tensors and plain containers.

    Args:
        file: The open file.
        path: Its name for error messages.
        size: Its size in bytes.

    Raises:
        DamagedCheckpointError: It is damaged, or contains other objects.
    """
    try:
        _check_archive(file, path, size)
        return torch.load(file, map_location="cpu", weights_only=True)
    except (CheckpointError, OSError):
        raise
    except RefusedPickleError as error:
        raise DamagedCheckpointError(f"{path} contains {error}.") from error
    except Exception as error:  # torch.load raises many types
        raise DamagedCheckpointError(
            f"{path} cannot be loaded: it is damaged, or contains objects other than tensors and "
            "plain containers, which are rejected because loading them could execute code."
        ) from error


def _check_archive(file: Any, path: Path, size: int) -> None:
    """Check that a file of `torch.save` takes time and memory in proportion to its size.

    Raises:
        DamagedCheckpointError: It is compressed, or its members overlap.
        RefusedPickleError: Its pickle does not: see `check_pickle`.
    """
    if zipfile.is_zipfile(file):
        archive = zipfile.ZipFile(file)
        members = archive.infolist()
        packed = any(one.compress_type != zipfile.ZIP_STORED for one in members)
        if packed or sum(one.file_size for one in members) > size:
            raise DamagedCheckpointError(
                f"{path} is compressed, which could expand to any size; save it with torch.save."
            )
        for one in members:
            if one.filename.endswith("data.pkl"):
                check_pickle(archive.read(one))
    else:
        file.seek(0)
        for _ in range(_LEGACY_PICKLES):
            check_pickle(_Bounded(file, size))
    file.seek(0)


_LEGACY_PICKLES = 5  # before the tensors: two numbers, the system, the tree and the storages


@attrs.frozen
class _Bounded:
    """A file of which no read allocates more than the size of the file."""

    file: Any
    size: int

    def read(self, count: int) -> bytes:
        """Read at most `count` bytes."""
        data: bytes = self.file.read(min(count, self.size))
        return data

    def readline(self) -> bytes:
        """Read a line."""
        line: bytes = self.file.readline()
        return line


def _read_safetensors(file: Any, path: Path) -> dict[str, Tensor]:
    size = os.fstat(file.fileno()).st_size
    entries = read_header(file.readinto, size, str(path))
    return read_tensors(file.readinto, entries, str(path))
