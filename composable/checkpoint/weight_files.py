"""Weights in files of any kind, of which a process may need a part."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from composable.checkpoint._reader import Input, TensorFiles, readable, reading
from composable.checkpoint._torch_files import load_plain
from composable.checkpoint.errors import DamagedCheckpointError, MissingCheckpointError
from composable.checkpoint.files import read
from composable.checkpoint.shards import Region
from composable.checkpoint.tree import unpack
from composable.core._json import load
from composable.core._paths import open_regular
from composable.distributed.processes import Processes

__all__ = ["Source", "open_weights", "read_file"]

_ONE, _INDEX, _SUFFIX = "model.safetensors", "model.safetensors.index.json", ".safetensors"
_MAX_INDEX = 100_000_000
"""The size of an index in bytes above which it is refused."""


@attrs.frozen(eq=False)
class Source:
    """The contents of files of weights."""

    tree: Any
    """What the files have; tensors may be on the meta device."""
    read: Callable[..., Tensor]
    """Returns the values of a tensor of the tree, or of a region of it."""
    of_run: bool = False
    """Whether it is a checkpoint of this library."""
    lazy: bool = False
    """Whether the tensors of the tree have no values yet."""

    @classmethod
    def unread(cls, tree: Any, files: TensorFiles, *, of_run: bool = False) -> "Source":
        """Return the source of a tree of the tensors of open files."""
        names = {id(tensor): name for name, tensor in files.tensors.items()}

        def fetch(tensor: Tensor, region: Region | None = None) -> Tensor:
            return files.fetch(names[id(tensor)], region)

        return cls(tree, fetch, of_run, lazy=True)


@contextmanager
def open_weights(path: Path, *, sharded: bool = False) -> Iterator[Source]:
    """Open a checkpoint, a folder of a model of Transformers, or a file of weights.

    Args:
        path: The folder or the file.
        sharded: Whether each process needs a part of the tensors; all of them call this together,
            and each verifies some files of a checkpoint.

    Raises:
        CheckpointError: A file is missing or damaged, or has more than tensors and containers.
    """
    with ExitStack() as stack:
        if files := _files_of(path):
            inputs = {str(one): _open(stack, one) for one in files}
            with readable(path):
                opened = TensorFiles(inputs)
            yield Source.unread(opened.tensors, opened)
        elif not path.is_dir():
            with readable(path, MissingCheckpointError(f"no file {path}.")):
                file = stack.enter_context(open_regular(path))
                tree = load_plain(file, path, os.fstat(file.fileno()).st_size)
            yield Source(tree, _part_of)
        elif sharded:
            processes, checkpoint = Processes.current(), stack.enter_context(reading(path))
            data, opened = checkpoint.contents()
            own = checkpoint.manifest.share(processes)
            processes.together(lambda: opened.read({}, verify=own))
            yield Source.unread(unpack(opened.tensors, data), opened, of_run=True)
        else:
            contents = read(path)
            yield Source(unpack(contents.tensors, contents.data), _part_of, of_run=True)


def _part_of(value: Tensor, region: Region | None = None) -> Tensor:
    return value if region is None else value[region.within(Region.whole(value.shape))]


def read_file(path: Path) -> Any:
    """Return the contents of a safetensors file, or of one that `torch.save` wrote.

    Raises:
        CheckpointError: The file is missing, damaged, or has more than tensors and containers.
    """
    with open_weights(path) as source:
        if path.suffix != _SUFFIX:
            return source.tree
        return {name: source.read(tensor) for name, tensor in source.tree.items()}


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
