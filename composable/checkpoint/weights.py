"""Load the weights of a model from a checkpoint, a safetensors file or a `torch.save` file."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor, nn

from composable._support.checks import check_flag, check_module
from composable._support.dtensors import is_sharded
from composable._support.hub import HubPlace
from composable._support.object_stores import as_local
from composable._support.paths import open_regular
from composable._support.strict_json import load
from composable.checkpoint._torch_files import load_plain
from composable.checkpoint.errors import (
    DamagedCheckpointError,
    MismatchError,
    MissingCheckpointError,
)
from composable.checkpoint.files import read
from composable.checkpoint.filters import check_patterns, matches
from composable.checkpoint.reader import Input, TensorFiles, readable, reading, reading_from_store
from composable.checkpoint.shards import Region, is_dtensor, local_of, region_of
from composable.checkpoint.tree import identity_of, listed, unpack
from composable.distributed.processes import Processes

_OF_FUNCTION = "Set their path with key="
_OF_TRAINER = (
    "Drop load_path, and load them into the model before you build the Trainer, by "
    "composable.checkpoint.load_weights(model, path, key=...)"
)
_OURS = "state/model/weights"
_EXTRA = "_extra_state"
_ONE, _INDEX, _SUFFIX = "model.safetensors", "model.safetensors.index.json", ".safetensors"
_PICKLED = "pytorch_model.bin"
_MAX_INDEX = 100_000_000
"""The size of an index in bytes above which it is refused."""
Read = Callable[..., Any]


@attrs.frozen
class LoadedWeights:
    """The names of the weights that `load_weights` loaded, and of weights that differ."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    """Names in the model that are not in the file, without ignored ones."""
    unexpected: tuple[str, ...]
    """Names in the file that are not in the model, without ignored ones."""
    source: str = ""
    """The URL on the Hugging Face Hub, with the commit; empty for other places."""


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
        path: A checkpoint of this library (a folder), a `.safetensors` file, a folder with the
            `model.safetensors` or `pytorch_model.bin` of Transformers, or a file that
            `torch.load(weights_only=True)` reads; or the URL of one, such as
            "hf://user/model@<commit>" for a repository of the Hugging Face Hub, whose files are
            compared with their hashes there. Loading it never executes code.
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
    place = HubPlace.parse(path)
    with reading_from_store():
        path = as_local("path", path)
    check_module("model", model)
    check_flag("strict", strict)
    patterns = check_patterns("ignore", ignore, "head.*")
    if key is not None and not isinstance(key, str):
        raise TypeError(f"key={key!r} must be the path of the weights in the file, or None.")
    with _open_weights(path, sharded=is_sharded(model)) as source:
        weights = _weights_in(source, key, path, _OF_FUNCTION)
        found = _load_weights(model, weights, source.read, path, patterns, strict, "ignore")
    return found if place is None else attrs.evolve(found, source=place.pinned(path))


def load_path_weights(model: nn.Module, path: Path, ignore: Sequence[str]) -> LoadedWeights:
    """Load the weights of `load_path`, as `load_weights` does; errors name those arguments.

    A prefix of all names in the file is dropped if the rest are the names of the model.
    """
    with _open_weights(path, sharded=is_sharded(model), stand_ins=True) as source:
        weights = _weights_in(source, key_of_weights(source.tree), path, _OF_TRAINER)
        weights, _ = without_prefix(weights, model.state_dict(), ignore)
        return _load_weights(model, weights, source.read, path, ignore, True, "load_ignore_keys")


def key_of_weights(tree: Any) -> str | None:
    """Return the path of the weights in a file of Lightning or Composer; None for another file."""
    if not isinstance(tree, Mapping):
        return None
    if "pytorch-lightning_version" in tree:
        return "state_dict"
    return "state/model" if {"state", "rng"} <= tree.keys() else None


def without_prefix(
    weights: Mapping[str, Any], own: Mapping[str, Any], ignore: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Drop the prefix of all names if the rest are the names of a model.

    Args:
        weights: The weights by name: "model.0.weight".
        own: The model's state dict.
        ignore: Patterns of names of the model that may differ.

    Returns:
        The weights by their new names, and the prefix: ("model.", or "" if none fits).
    """
    tied = _tied(own)
    parts = next(iter(weights), "").split(".")
    for prefix in ("".join(f"{part}." for part in parts[:end]) for end in range(len(parts))):
        if not all(name.startswith(prefix) for name in weights):
            break
        found = {name[len(prefix) :]: value for name, value in weights.items()}
        absent = (name for name in own if not any(other in found for other in tied[name]))
        differ = {*absent, *(found.keys() - own.keys())}
        if all(matches((name,), ignore) for name in differ):
            return found, prefix
    return dict(weights), ""


def read_weights(path: Path, key: str | None) -> dict[str, Any]:
    """Return the weights of a file by name: see `load_weights`."""
    with _open_weights(path) as source:
        weights = _weights_in(source, key, path, _OF_FUNCTION)
        return {name: source.read(weight) for name, weight in weights.items()}


def _load_weights(
    model: nn.Module,
    weights: Mapping[str, Any],
    read: Read,
    path: Path,
    patterns: Sequence[str],
    strict: bool,
    argument: str,
) -> LoadedWeights:
    """Load weights by name; `argument` is that with the patterns, for errors."""
    own = model.state_dict()
    loaded = match_weights(own, weights, read, path, patterns, strict, argument)
    found = {name: weights[name] for name in loaded.loaded}
    extra = {name: read(one) for name, one in found.items() if name.split(".")[-1] == _EXTRA}
    _load_extra(model, extra, path)
    rest = {name: value for name, value in found.items() if name not in extra}
    for name in filter(lambda name: is_dtensor(own[name]), rest):
        region = region_of(own[name])
        if region is not None:
            local_of(own[name]).copy_(read(rest[name], region))
    whole = {name: read(value) for name, value in rest.items() if not is_dtensor(own[name])}
    model.load_state_dict(whole, strict=False)
    return loaded


def match_weights(
    own: Mapping[str, Any],
    weights: Mapping[str, Any],
    read: Read,
    path: Path,
    patterns: Sequence[str],
    strict: bool,
    argument: str,
) -> LoadedWeights:
    """Compare weights with the state dict of a model: see `load_weights`."""
    weights = {name: value for name, value in weights.items() if not matches((name,), patterns)}
    own = {n: v for n, v in own.items() if not matches((n,), patterns)}
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
    return LoadedWeights(tuple(found), tuple(missing), tuple(unexpected))


def _load_extra(model: nn.Module, extra: Mapping[str, Any], path: Path) -> None:
    """Load extra states, which may raise: all or none."""
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
    """Return why a value cannot replace the model's, or None."""
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


# --- the contents of files


@attrs.frozen(eq=False)
class _Source:
    """The contents of files of weights."""

    tree: Any
    """What the files have; tensors may be on the meta device."""
    read: Read
    """Returns the values of a tensor of the tree, or of a region of it; anything else as it is."""
    of_run: bool = False
    """Whether it is a checkpoint of this library."""
    lazy: bool = False
    """Whether the tensors of the tree have no values yet."""

    @classmethod
    def unread(cls, tree: Any, files: TensorFiles, *, of_run: bool = False) -> "_Source":
        """Return the source of a tree of the tensors of open files."""
        names = {id(tensor): name for name, tensor in files.tensors.items()}

        def fetch(value: Any, region: Region | None = None) -> Any:
            return files.fetch(names[id(value)], region) if id(value) in names else value

        return cls(tree, fetch, of_run, lazy=True)


@contextmanager
def _open_weights(
    path: Path, *, sharded: bool = False, stand_ins: bool = False
) -> Iterator[_Source]:
    """Open a checkpoint, a folder of a model of Transformers, or a file of weights.

    Args:
        path: The folder or the file.
        sharded: Whether each process needs a part of the tensors; all of them call this together,
            and each verifies some files of a checkpoint.
        stand_ins: See `load_plain`.

    Raises:
        CheckpointError: A file is missing or damaged, or has more than tensors and containers.
    """
    with ExitStack() as stack:
        if files := _files_of(path):
            inputs = {str(one): _open(stack, one) for one in files}
            with readable(path):
                opened = TensorFiles(inputs)
            yield _Source.unread(opened.tensors, opened)
        elif not path.is_dir() or (path / _PICKLED).is_file():
            path = path / _PICKLED if path.is_dir() else path
            with readable(path, MissingCheckpointError(f"no file {path}.")):
                file = stack.enter_context(open_regular(path))
                size = os.fstat(file.fileno()).st_size
                tree = load_plain(file, path, size, stand_ins=stand_ins)
            yield _Source(tree, _part_of)
        elif sharded:
            processes, checkpoint = Processes.current(), stack.enter_context(reading(path))
            data, opened = checkpoint.contents()
            own = checkpoint.manifest.share(processes)
            processes.together(lambda: opened.read({}, verify=own))
            yield _Source.unread(unpack(opened.tensors, data), opened, of_run=True)
        else:
            contents = read(path)
            yield _Source(unpack(contents.tensors, contents.data), _part_of, of_run=True)


def _part_of(value: Any, region: Region | None = None) -> Any:
    return value if region is None else value[region.within(Region.whole(value.shape))]


def read_file(path: Path, *, stand_ins: bool = False) -> Any:
    """Return the contents of a safetensors file, or of one that `torch.save` wrote.

    Raises:
        CheckpointError: The file is missing, damaged, or has more than tensors and containers.
    """
    with _open_weights(path, stand_ins=stand_ins) as source:
        tree = source.tree
        return {n: source.read(value) for n, value in tree.items()} if source.lazy else tree


def _files_of(path: Path) -> list[Path]:
    """Return a file of safetensors, or those that `save_pretrained` of Transformers wrote.

    Returns:
        The files; none if it is neither.

    Raises:
        DamagedCheckpointError: Its index does not name files of the folder.
    """
    if path.suffix == _SUFFIX and not path.is_dir():
        return [path]
    if (path / _ONE).is_file():
        return [path / _ONE]
    if not (path / _INDEX).is_file():
        return []
    with readable(path / _INDEX), open_regular(path / _INDEX) as file:
        index = load(file.read(_MAX_INDEX), str(path / _INDEX))
    named = index.get("weight_map") if isinstance(index, dict) else None
    names = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
    if not names or any(Path(name).name != name for name in names):
        raise DamagedCheckpointError(
            f"{path / _INDEX} must map the names of tensors to files of its folder."
        )
    return [path / name for name in names]


def _open(stack: ExitStack, path: Path) -> Input:
    """Open a file until the end of a stack."""
    with readable(path, MissingCheckpointError(f"no file {path}.")):
        file = stack.enter_context(open_regular(path))
        return Input(str(path), file.fileno(), os.fstat(file.fileno()).st_size)


def _weights_in(source: _Source, key: str | None, path: Path, advice: str) -> dict[str, Any]:
    tree, key = source.tree, key or (_OURS if source.of_run else "")
    for part in key.split("/") if key else ():
        if not isinstance(tree, Mapping) or part not in tree:
            raise MismatchError(f"{path} has no entry {key!r}: {_contents(tree)}.")
        tree = tree[part]
    if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
        raise MismatchError(f"{path} contains no mapping of weights: {_contents(tree)}.")
    if tree and not any(isinstance(value, Tensor) for value in tree.values()):
        raise MismatchError(
            f"{path} contains no mapping of tensors: {_contents(tree)}. {advice}{_such_as(tree)}."
        )
    if not source.lazy and (empty := [n for n, v in tree.items() if getattr(v, "is_meta", False)]):
        raise MismatchError(
            f"{path}: {empty[0]} is on the meta device in the file, without values."
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
