"""Weights in files that are read tensor by tensor, of which each process needs a part."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from composable.checkpoint import _json
from composable.checkpoint._reader import Input, check_sizes, check_state, reading
from composable.checkpoint._regions import (
    Fetch,
    fetcher,
    hash_files,
    read_headers,
    tensor_inputs,
)
from composable.checkpoint.errors import (
    DamagedCheckpointError,
    MissingCheckpointError,
    UnreadableCheckpointError,
)
from composable.checkpoint.layout import Region
from composable.checkpoint.tree import unpack
from composable.core._paths import open_regular
from composable.distributed.processes import Processes

__all__ = ["TensorFiles", "files_of_model", "open_checkpoint", "open_files"]

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_INDEX = 100_000_000
"""The size of an index in bytes above which it is refused."""


@attrs.frozen(eq=False)
class TensorFiles:
    """The contents of files of tensors, without the values."""

    tree: Any
    """What the files have, with tensors on the meta device."""
    _names: Mapping[int, str]
    _fetch: Fetch

    def read(self, tensor: Tensor, region: Region | None = None) -> Tensor:
        """Read a tensor of the tree, or a region of it."""
        return self._fetch(self._names[id(tensor)], region)


def files_of_model(path: Path) -> list[Path]:
    """Return the files of weights in a folder that `save_pretrained` of Transformers wrote.

    Returns:
        The files; none if it is no such folder.

    Raises:
        DamagedCheckpointError: Its index does not name files of the folder.
    """
    if (path / _ONE).is_file():
        return [path / _ONE]
    if not (path / _INDEX).is_file():
        return []
    with open_regular(path / _INDEX) as file:
        raw = file.read(_MAX_INDEX)
    index = _json.load(raw, str(path / _INDEX))
    named = index.get("weight_map") if isinstance(index, dict) else None
    names = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
    if not names or any(Path(name).name != name for name in names):
        raise DamagedCheckpointError(
            f"{path / _INDEX} must map the names of tensors to files of its folder."
        )
    return [path / name for name in names]


@contextmanager
def open_files(paths: list[Path]) -> Iterator[TensorFiles]:
    """Open files of safetensors.

    Raises:
        CheckpointError: One is missing or damaged, or two have the same tensor.
    """
    with ExitStack() as opened:
        files = {str(path): _open(opened, path) for path in paths}
        headers = read_headers(files)
        names = {id(tensor): name for name, tensor in headers.tensors.items()}
        yield TensorFiles(headers.tensors, names, fetcher(files, headers))


@contextmanager
def open_checkpoint(folder: Path) -> Iterator[TensorFiles]:
    """Open a checkpoint; all processes call this together, and each verifies some of its files.

    Raises:
        CheckpointError: See `read`.
    """
    processes = Processes.current()
    with reading(folder) as inputs:
        manifest = check_sizes(inputs)
        data = check_state(inputs)
        headers = read_headers(tensor_inputs(inputs))
        own = manifest.tensor_files[processes.rank :: processes.size]
        processes.together(lambda: hash_files(inputs, headers, own))
        names = {id(tensor): name for name, tensor in headers.tensors.items()}
        yield TensorFiles(unpack(headers.tensors, data), names, fetcher(inputs.files, headers))


def _open(opened: ExitStack, path: Path) -> Input:
    try:
        file = opened.enter_context(open_regular(path))
    except FileNotFoundError:
        raise MissingCheckpointError(f"no file {path}.") from None
    except OSError as error:
        raise UnreadableCheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    return Input(str(path), file.fileno(), os.fstat(file.fileno()).st_size, hashing=False)
