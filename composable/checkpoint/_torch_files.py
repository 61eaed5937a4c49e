"""Read the files of `torch.save` that have tensors and plain containers only.

`torch.load(weights_only=True)` creates nothing else, but a file of a few bytes can still make it
run for hours, take all memory, or overflow the stack: by a key whose parts are shared, by keys of
one hash, by the length of a bytearray, or by the name of a slow codec. So its pickle is checked
first.
"""

import re
import zipfile
from pathlib import Path
from typing import Any

import attrs
import torch

from composable.checkpoint._pickle import Made, Name, PickleReader, RefusedPickleError
from composable.checkpoint.errors import CheckpointError, DamagedCheckpointError

_LONGEST_KEY = 8
_MOST_TUPLES = 10_000
_LARGEST_KEY = 2**60  # smaller integers have different hashes
_KEYS = (str, bytes, float, bool, type(None))
_CODEC = "latin1"
_TENSOR = re.compile(r"torch\.(\w+\.)?\w*Tensor")
_LEGACY_PICKLES = 5  # before the tensors: two numbers, the system, the tree and the storages


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
        RefusedPickleError: Its pickle does not: see `_Check`.
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
                _Check().read(archive.read(one))
    else:
        file.seek(0)
        for _ in range(_LEGACY_PICKLES):
            _Check().read(_Bounded(file, size))
    file.seek(0)


@attrs.frozen
class _Bounded:
    """A file of which no read allocates more than the size of the file."""

    file: Any
    size: int

    def read(self, count: int) -> bytes:
        return bytes(self.file.read(min(count, self.size)))

    def readline(self) -> bytes:
        return bytes(self.file.readline())


@attrs.define
class _Check(PickleReader):
    """Refuses a pickle that takes more time and memory than its size suggests.

    It builds no dictionary and no set, and so computes no hash. An invalid pickle raises any error.
    """

    num_tuples: int = 0
    """The number of keys that are tuples: of these, many can have one hash."""

    def named(self, module: Any, name: Any) -> Name:
        """Return the name, unless it creates a bytearray."""
        if name == "bytearray":
            raise RefusedPickleError(
                "a bytearray, whose length may have any value; save bytes or a tensor in its place"
            )
        return super().named(module, name)

    def created(self, callee: Any, arguments: Any) -> Made:
        """Check the arguments of a call."""
        made = super().created(callee, arguments)
        name = made.by.rpartition(".")[2]
        if name in ("set", "Counter", "OrderedDict"):
            self.check_items(name, arguments)
        elif name == "encode" and arguments[1:] != (_CODEC,):
            raise RefusedPickleError("bytes in a codec other than latin1")
        elif name == "_rebuild_from_type_v2" and not (
            isinstance(arguments[0], Name) and "._rebuild_" in arguments[0].path
        ):
            raise RefusedPickleError("a tensor that is created by another function")
        elif _TENSOR.fullmatch(made.by) and any(type(one) in (list, tuple) for one in arguments):
            raise RefusedPickleError("a tensor that is created from a list")
        return made

    def check_items(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Check the items with which a container is created."""
        for items in arguments:
            if not isinstance(items, (list, tuple)):
                if not isinstance(items, dict):
                    raise RefusedPickleError(
                        f"the items of a container, of type {type(items).__name__}"
                    )
                continue
            for item in items:
                self.check_key(item[0] if name == "OrderedDict" else item)

    def stored(self, place: Any) -> Made:
        """Check the place of a storage, whose parts are looked up."""
        for part in place if isinstance(place, tuple) else (place,):
            self.check_key(part)
        return Made("storage")

    def set_item(self, container: Any, key: Any, value: Any) -> None:
        """Check the key; the item is not set."""
        self.check_key(key)

    def check_key(self, key: Any) -> None:
        """Check a value of which a hash is computed."""
        parts = key if isinstance(key, tuple) else (key,)
        if parts is key:
            self.num_tuples += 1
            if self.num_tuples > _MOST_TUPLES or len(key) > _LONGEST_KEY:
                raise RefusedPickleError(
                    f"more than {_MOST_TUPLES} keys that are tuples, or one with more than "
                    f"{_LONGEST_KEY} entries"
                )
        for part in parts:
            if type(part) is int:
                if abs(part) >= _LARGEST_KEY:
                    raise RefusedPickleError("a key that is an integer of more than 60 bits")
            # The hash of a `torch.Size` is that of a tuple.
            elif not isinstance(part, (*_KEYS, Name, Made)) or (
                isinstance(part, Made) and part.by.endswith(".Size")
            ):
                raise RefusedPickleError(f"a key with a part of type {type(part).__name__}")
