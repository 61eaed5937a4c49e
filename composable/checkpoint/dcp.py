"""Exchange checkpoints with `torch.distributed.checkpoint` (DCP)."""

import io
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composable._support.checks import check_flag
from composable._support.paths import open_regular
from composable.checkpoint._dcp_metadata import METADATA, DCPEntry, Piece, parse_metadata
from composable.checkpoint._torch_files import load_plain
from composable.checkpoint.atomic import new_folder, writable
from composable.checkpoint.errors import (
    CheckpointExistsError,
    DamagedCheckpointError,
    MissingCheckpointError,
    UnsavableError,
)
from composable.checkpoint.filters import check_patterns, matches
from composable.checkpoint.manifest import MAX_STATE, as_target
from composable.checkpoint.reader import readable
from composable.checkpoint.request import Request, dump_state
from composable.checkpoint.safetensors import fill
from composable.checkpoint.shards import Region
from composable.checkpoint.tree import pack
from composable.checkpoint.weights import read_weights
from composable.checkpoint.writer import write_whole


def export_dcp(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    key: str | None = None,
    prefix: str = "",
) -> Path:
    """Copy the weights of a checkpoint into one that `torch.distributed.checkpoint.load` reads.

    All tensors of a checkpoint are read without a copy by
    `torch.distributed.checkpoint.HuggingFaceStorageReader(folder)`, with their names in it.

    Args:
        folder: The checkpoint, sharded or not. All of it is verified.
        out: The folder to write. It must not exist, and its parent folder must.
        key: The path of the weights in the checkpoint. Default: the model's, in a checkpoint of a
            `Trainer`.
        prefix: What the names of the weights begin with, such as "model." to load them into
            `{"model": model.state_dict()}`.

    Returns:
        The absolute path of the new folder.

    Raises:
        CheckpointExistsError: `out` exists.
        UnsavableError: A weight is not a tensor.
        CheckpointError: See `read`.
    """
    source, target = as_target("folder", folder), as_target("out", out)
    if not isinstance(prefix, str):
        raise TypeError(f"prefix={prefix!r} must be a string, such as 'model.'.")
    if key is not None and not isinstance(key, str):
        raise TypeError(f"key={key!r} must be the path of the weights, or None.")
    if os.path.lexists(target):
        raise CheckpointExistsError(f"{target} exists: use another folder.")
    weights = {prefix + name: value for name, value in read_weights(source, key).items()}
    if odd := [name for name, value in weights.items() if not isinstance(value, Tensor)]:
        raise UnsavableError(f"{source}: {odd[0]!r} is not a tensor, so it cannot be exported.")
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with writable(target), new_folder(target) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        save(weights, storage_writer=FileSystemWriter(partial), no_dist=True)
    return target


def import_dcp(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    ignore: Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Copy a checkpoint of `torch.distributed.checkpoint` into one of this library.

    No code from the files is executed: of the metadata, a pickle, only known names are accepted,
    and their objects keep values only; the rest is loaded with `weights_only=True`. Such
    checkpoints have no hashes, so damage that leaves their structure intact is not detected.

    Args:
        folder: A folder that `torch.distributed.checkpoint.save` wrote, from any number of
            processes.
        out: The checkpoint to write. Its parent folder must exist.
        ignore: Patterns of names of entries to omit, such as "optim.*".
        overwrite: Replace an existing checkpoint.

    Returns:
        The absolute path of the new checkpoint. Its state is the one that was saved.

    Raises:
        MissingCheckpointError: There is no distributed checkpoint at this path.
        DamagedCheckpointError: A file is damaged, or contains objects other than tensors and plain
            values.
        UnsavableError: See `pack`.
        CheckpointExistsError: See `write`.
    """
    source, target = as_target("folder", folder), as_target("out", out)
    check_flag("overwrite", overwrite)
    patterns = check_patterns("ignore", ignore, "optim.*")
    metadata = source / METADATA
    entries = parse_metadata(_read(metadata), metadata)
    entries = {name: each for name, each in entries.items() if not matches((name,), patterns)}
    with ExitStack() as stack:
        tensors, fetch, state = _parts(entries, _Files(source, stack))
        return write_whole(Request(target, tensors, state, overwrite, {}), fetch)


def _parts(
    entries: dict[str, DCPEntry], files: "_Files"
) -> tuple[dict[str, Tensor], Callable[[str], Tensor], bytes]:
    """Return the tensors without values, a function that reads one, and the rest of the state."""
    leaves: list[tuple[tuple[str | int, ...], Any]] = []
    names: dict[int, str] = {}
    for name, entry in entries.items():
        if entry.dtype is None:
            leaves.append((entry.path, files.value(entry)))
        else:
            stand_in = torch.empty((), dtype=entry.dtype).expand(entry.shape)
            leaves.append((entry.path, stand_in))
            names[stand_in.untyped_storage().data_ptr()] = name
    tensors, data = pack(as_tree(leaves))

    def fetch(name: str) -> Tensor:
        stand_in = tensors[name]
        tensor = files.tensor(entries[names[stand_in.untyped_storage().data_ptr()]])
        return tensor if tensor.dtype == stand_in.dtype else torch.view_as_real(tensor)

    return tensors, fetch, dump_state(data)


def _read(path: Path) -> bytes:
    missing = MissingCheckpointError(
        f"no distributed checkpoint at {path.parent}: it has no file {path.name}."
    )
    with readable(path, missing), open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_STATE:
            raise DamagedCheckpointError(f"{path} has more than {MAX_STATE} bytes.")
        return bytes(file.readall())


class _Files:
    """The data files of a distributed checkpoint, which are opened on use.

    Args:
        folder: The checkpoint.
        stack: Closes them.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.files: dict[str, Any] = {}

    def tensor(self, entry: DCPEntry) -> Tensor:
        tensor, whole = torch.empty(entry.shape, dtype=entry.dtype), Region.whole(entry.shape)
        for region, piece in entry.pieces:
            part = self._load(piece)
            if region is None or not _is_block(part, entry, region):
                raise DamagedCheckpointError(
                    f"{self.folder / piece.file}: the bytes from {piece.offset} are not a tensor "
                    f"with the shape and dtype that {METADATA} records."
                )
            tensor[region.within(whole)] = part
        return tensor

    def value(self, entry: DCPEntry) -> Any:
        ((_, piece),) = entry.pieces
        try:
            return self._load(piece)
        except DamagedCheckpointError as error:
            name = ".".join(map(str, entry.path))
            raise DamagedCheckpointError(
                f"entry {name!r}: {error} ignore=[{name!r}] skips it."
            ) from error

    def _load(self, piece: Piece) -> Any:
        path = self.folder / piece.file
        with readable(path, DamagedCheckpointError(f"{path} is missing: incomplete checkpoint.")):
            if piece.file not in self.files:
                self.files[piece.file] = self.stack.enter_context(open_regular(path))
            file = self.files[piece.file]
            size = os.fstat(file.fileno()).st_size
            if piece.offset + piece.length > size:
                raise DamagedCheckpointError(
                    f"{path} has {size} bytes, fewer than {METADATA} records: it is truncated."
                )
            file.seek(piece.offset)
            raw = bytearray(piece.length)
            fill(file.readinto, memoryview(raw), str(path))
        return load_plain(io.BytesIO(raw), path, piece.length)


def _is_block(part: Any, entry: DCPEntry, region: Region) -> bool:
    return (
        isinstance(part, Tensor)
        and part.layout is torch.strided
        and part.dtype == entry.dtype
        and part.shape == region.sizes
    )


def as_tree(leaves: Iterable[tuple[tuple[str | int, ...], Any]]) -> Any:
    """Build a tree from its leaves by path: keys of dictionaries, and indices of lists.

    Example:
        >>> from composable.checkpoint.dcp import as_tree
        >>> as_tree([(("a", 0), 1), (("a", 1), 2), (("b",), 3)])
        {'a': [1, 2], 'b': 3}
    """
    root: dict[str | int, Any] = _Node()
    for path, value in leaves:
        place = root
        for step in path[:-1]:
            place = place.setdefault(step, _Node())
            if not isinstance(place, _Node):
                raise DamagedCheckpointError(f"{path} is the path of two entries.")
        if path[-1] in place:
            raise DamagedCheckpointError(f"{path} is the path of two entries.")
        place[path[-1]] = value
    return _built(root)


class _Node(dict[str | int, Any]):
    """A dictionary or list that is being built, as distinct from one that is a value."""


def _built(node: Any) -> Any:
    if not isinstance(node, _Node):
        return node
    values = {step: _built(value) for step, value in node.items()}
    if all(isinstance(step, str) for step in values):
        return values
    if not all(isinstance(step, int) for step in values):
        raise DamagedCheckpointError(f"{list(values)[:4]} are keys and indices of one container.")
    return [values.get(index) for index in range(max(map(int, values)) + 1)]
