"""Exchange checkpoints with `torch.distributed.checkpoint` (DCP)."""

import io
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composable.checkpoint import _json
from composable.checkpoint._atomic import sync_folder
from composable.checkpoint._dcp_metadata import METADATA, Entry, Piece, parse_metadata
from composable.checkpoint._reader import check_json, check_sizes, reading
from composable.checkpoint._regions import fetcher, read_headers, read_regions
from composable.checkpoint._safetensors import fill, write_tensors
from composable.checkpoint._writer import Request, dump_state, writable, write_whole
from composable.checkpoint.errors import (
    CheckpointExistsError,
    DamagedCheckpointError,
    MissingCheckpointError,
    UnreadableCheckpointError,
    UnsavableError,
)
from composable.checkpoint.layout import Region
from composable.checkpoint.manifest import MAX_STATE, STATE, as_target, check_info
from composable.checkpoint.tree import pack
from composable.checkpoint.weights import as_patterns, load_plain, matches, read_weights
from composable.core._paths import open_regular
from composable.functional._checks import check_flag

__all__ = ["export_dcp", "import_dcp"]

# Names that begin with "__" are not those of tensors of a checkpoint.
_STATE, _INFO = "__composable__/state", "__composable__/info"


def export_dcp(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    key: str | None = None,
    prefix: str = "",
) -> Path:
    """Copy a checkpoint into one that `torch.distributed.checkpoint.load` reads.

    Args:
        folder: The checkpoint, sharded or not. All of it is verified.
        out: The folder to write. It must not exist, and its parent folder must.
        key: The path of the weights to export, such as "state/model/weights". Default: all tensors,
            with their names in the checkpoint, and the rest of the state as bytes, from which
            `import_dcp` restores the checkpoint.
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
    if key is not None:
        weights = {prefix + name: value for name, value in read_weights(source, key).items()}
        if odd := [name for name, value in weights.items() if not isinstance(value, Tensor)]:
            raise UnsavableError(f"{source}: {odd[0]!r} is not a tensor, so it cannot be exported.")
        return _save(target, weights, weights.__getitem__)
    with reading(source) as inputs:
        manifest = check_sizes(inputs)
        state = check_json(inputs, STATE)
        headers = read_headers(inputs)
        read_regions(inputs, headers, {}, everything=True)
        fetch = fetcher(inputs.files, headers)
        rest = {_STATE: _as_tensor(state), _INFO: _as_tensor(_json.dump(dict(manifest.info)))}
        stand_ins = {
            name: _stand_in(stored.dtype, stored.shape) for name, stored in headers.tensors.items()
        }
        return _save(
            target,
            {**stand_ins, **rest},
            lambda name: rest[name] if name in rest else fetch(name),
        )


def _as_tensor(raw: bytes | bytearray) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _stand_in(dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return a tensor that has the memory of one element."""
    return torch.empty((), dtype=dtype).expand(shape)


def _save(target: Path, tensors: Mapping[str, Tensor], fetch: Callable[[str], Tensor]) -> Path:
    """Write a distributed checkpoint, one tensor at a time, and rename its folder at the end."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class Planner(DefaultSavePlanner):
        def lookup_object(self, index: Any) -> Any:
            return fetch(index.fqn)

    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    with writable(target):
        os.mkdir(partial)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
                save(
                    dict(tensors),
                    storage_writer=FileSystemWriter(partial),
                    planner=Planner(),
                    no_dist=True,
                )
            sync_folder(partial)
            if os.path.lexists(target):
                raise CheckpointExistsError(f"{target} exists: use another folder.")
            os.rename(partial, target)
            sync_folder(target.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return target


def import_dcp(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    ignore: Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Copy a checkpoint of `torch.distributed.checkpoint` into one of this library.

    No code from the files is executed: the metadata, a pickle, are interpreted without calling
    anything that they name, and the rest is loaded with `weights_only=True`. Such checkpoints have
    no hashes, so damage that leaves their structure intact is not detected.

    Args:
        folder: A folder that `torch.distributed.checkpoint.save` wrote, from any number of
            processes.
        out: The checkpoint to write. Its parent folder must exist.
        ignore: Patterns of names of entries to omit, such as "optim.*".
        overwrite: Replace an existing checkpoint.

    Returns:
        The absolute path of the new checkpoint. Its state is the one that was saved, or, of a
        folder from `export_dcp`, the original checkpoint.

    Raises:
        MissingCheckpointError: There is no distributed checkpoint at this path.
        DamagedCheckpointError: A file is damaged, or contains objects other than tensors and plain
            values.
        UnsavableError: See `pack`.
        CheckpointExistsError: See `write`.
    """
    source, target = as_target("folder", folder), as_target("out", out)
    check_flag("overwrite", overwrite)
    patterns = as_patterns(ignore)
    metadata = source / METADATA
    entries = parse_metadata(_read(metadata), metadata)
    own = _STATE in entries and _INFO in entries
    if own and patterns:
        raise ValueError(
            f"ignore={ignore!r} must be empty: {source} is the export of a checkpoint, which is "
            "restored whole."
        )
    entries = {name: each for name, each in entries.items() if not matches(name, patterns)}
    with ExitStack() as stack:
        files = _Files(source, stack)
        take = _own if own else _foreign
        tensors, fetch, state, info = take(entries, files)
        request = Request(target, {}, state, overwrite, check_info(info))
        return write_whole(request, lambda out: write_tensors(out, tensors, fetch))


_Parts = tuple[Mapping[str, Tensor], Callable[[str], Tensor], bytes, dict[str, Any]]
"""Tensors without values, a function that reads one, and the state and info of a checkpoint."""


def _own(entries: dict[str, Entry], files: "_Files") -> _Parts:
    """Return the parts of a checkpoint that was exported by this library."""
    state = bytes(files.tensor(entries[_STATE]).tolist())
    info = bytearray(files.tensor(entries[_INFO]).tolist())
    tensors = {
        name: _stand_in(entry.dtype, entry.shape)
        for name, entry in entries.items()
        if name not in (_STATE, _INFO) and entry.dtype is not None
    }
    return tensors, lambda name: files.tensor(entries[name]), state, _json.load(info, _INFO)


def _foreign(entries: dict[str, Entry], files: "_Files") -> _Parts:
    """Return the parts of a checkpoint with the state that a distributed checkpoint has."""
    leaves: list[tuple[tuple[str | int, ...], Any]] = []
    names: dict[int, str] = {}
    for name, entry in entries.items():
        if entry.dtype is None:
            leaves.append((entry.path, files.value(entry)))
        else:
            stand_in = _stand_in(entry.dtype, entry.shape)
            leaves.append((entry.path, stand_in))
            names[stand_in.untyped_storage().data_ptr()] = name
    tensors, data = pack(nested(leaves))

    def fetch(name: str) -> Tensor:
        stand_in = tensors[name]
        tensor = files.tensor(entries[names[stand_in.untyped_storage().data_ptr()]])
        return tensor if tensor.dtype == stand_in.dtype else torch.view_as_real(tensor)

    return tensors, fetch, dump_state(data), {}


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_STATE:
                raise DamagedCheckpointError(f"{path} has more than {MAX_STATE} bytes.")
            return bytes(file.readall())
    except (FileNotFoundError, NotADirectoryError):
        raise MissingCheckpointError(
            f"no distributed checkpoint at {path.parent}: it has no file {path.name}."
        ) from None
    except OSError as error:
        raise UnreadableCheckpointError(f"{path} cannot be read: {error.strerror}.") from error


class _Files:
    """The data files of a distributed checkpoint, which are opened on use.

    Args:
        folder: The checkpoint.
        stack: Closes them.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.files: dict[str, Any] = {}

    def tensor(self, entry: Entry) -> Tensor:
        """Read a tensor from its pieces."""
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

    def value(self, entry: Entry) -> Any:
        """Read an object that is not a tensor."""
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
        try:
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
        except FileNotFoundError:
            raise DamagedCheckpointError(f"{path} is missing: incomplete checkpoint.") from None
        except OSError as error:
            raise UnreadableCheckpointError(f"{path} cannot be read: {error.strerror}.") from error
        return load_plain(io.BytesIO(raw), path, piece.length)


def _is_block(part: Any, entry: Entry, region: Region) -> bool:
    return (
        isinstance(part, Tensor)
        and part.layout is torch.strided
        and part.dtype == entry.dtype
        and part.shape == region.sizes
    )


def nested(leaves: Iterable[tuple[tuple[str | int, ...], Any]]) -> Any:
    """Build a tree from its leaves by path: keys of dictionaries, and indices of lists.

    Example:
        >>> from composable.checkpoint.dcp import nested
        >>> nested([(("a", 0), 1), (("a", 1), 2), (("b",), 3)])
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
