"""Check a pickle before `torch.load(weights_only=True)` reads it.

That reader creates only tensors and plain containers, but a file of a few bytes can still make it
run for hours, take all memory, or overflow the stack: by a key whose parts are shared, by keys of
one hash, by the length of a bytearray, or by the name of a slow codec.
"""

import re
from collections.abc import Iterable
from typing import Any

import attrs

from composable.checkpoint._pickle import PickleReader

__all__ = ["RefusedPickleError", "check_pickle"]

_LONGEST_KEY = 8
_MOST_TUPLES = 10_000
_LARGEST_KEY = 2**60  # smaller integers have different hashes
_KEYS = (str, bytes, float, bool, type(None))
_CODEC = "latin1"
_TENSOR = re.compile(r"torch\.(\w+\.)?\w*Tensor")


class RefusedPickleError(ValueError):
    """A pickle contains what could take any time or memory; the message says what."""


def check_pickle(source: Any) -> None:
    """Check that a pickle takes time and memory in proportion to its size.

    Args:
        source: The pickle: bytes, or a file at its start, which is read to its end.

    Raises:
        RefusedPickleError: It does not.
        Exception: The pickle is invalid; of any type.
    """
    _Check().read(source)


@attrs.frozen
class _Name:
    """A class or a function."""

    path: str


@attrs.frozen(eq=False)
class _Made:
    """What a class or a function returned."""

    by: str


@attrs.define
class _Check(PickleReader):
    """Builds no dictionary and no set, and so computes no hash."""

    num_tuples: int = 0
    """The number of keys that are tuples: of these, many can have one hash."""

    def named(self, module: Any, name: Any) -> _Name:
        """Return the name, unless it creates a bytearray."""
        if name == "bytearray":
            raise RefusedPickleError(
                "a bytearray, whose length may have any value; save bytes or a tensor in its place"
            )
        return _Name(f"{module}.{name}")

    def created(self, callee: Any, arguments: Any) -> _Made:
        """Check the arguments of a call."""
        if not (isinstance(callee, _Name) and isinstance(arguments, tuple)):
            # The error of torch would print the value, which may have exponentially many parts.
            raise RefusedPickleError("a call of a value that is not a function")
        name = callee.path.rpartition(".")[2]
        if name in ("set", "Counter", "OrderedDict"):
            self.check_items(name, arguments)
        elif name == "encode" and arguments[1:] != (_CODEC,):
            raise RefusedPickleError("bytes in a codec other than latin1")
        elif name == "_rebuild_from_type_v2" and not (
            isinstance(arguments[0], _Name) and "._rebuild_" in arguments[0].path
        ):
            raise RefusedPickleError("a tensor that is created by another function")
        elif _TENSOR.fullmatch(callee.path) and any(
            type(one) in (list, tuple) for one in arguments
        ):
            raise RefusedPickleError("a tensor that is created from a list")
        return _Made(name)

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

    def build(self, value: Any, state: Any) -> None:
        """Accept any state."""

    def stored(self, place: Any) -> _Made:
        """Check the place of a storage, whose parts are looked up."""
        for part in place if isinstance(place, tuple) else (place,):
            self.check_key(part)
        return _Made("storage")

    def set_item(self, container: Any, key: Any, value: Any) -> None:
        """Check the key; the item is not set."""
        self.check_key(key)

    def check_key(self, key: Any) -> None:
        """Check a value of which a hash is computed."""
        if isinstance(key, tuple):
            self.num_tuples += 1
            if self.num_tuples > _MOST_TUPLES or len(key) > _LONGEST_KEY:
                raise RefusedPickleError(
                    f"more than {_MOST_TUPLES} keys that are tuples, or one with more than "
                    f"{_LONGEST_KEY} entries"
                )
        self.check_parts(key if isinstance(key, tuple) else (key,))

    def check_parts(self, parts: Iterable[Any]) -> None:
        """Check that values are plain, and integers are not too large."""
        for part in parts:
            if type(part) is int:
                if abs(part) >= _LARGEST_KEY:
                    raise RefusedPickleError("a key that is an integer of more than 60 bits")
            elif not (
                isinstance(part, (*_KEYS, _Name)) or (isinstance(part, _Made) and part.by != "Size")
            ):
                raise RefusedPickleError(f"a key with a part of type {type(part).__name__}")
