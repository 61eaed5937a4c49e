"""JSON, strictly: what is not plain JSON of a modest size is refused and never guessed at."""

import json
import math
from typing import Any, TypeAlias

from composable.checkpoint.errors import DamagedCheckpointError

__all__ = ["JSON", "MAX_INTEGER", "dump", "is_text", "load"]

JSON: TypeAlias = Any
"""None, bool, int, float, str, and lists and dictionaries of these."""

MAX_INTEGER = 2**64
"""Integers beyond it are not written as JSON numbers: few readers would keep them."""

_MAX_DIGITS = len(str(MAX_INTEGER)) + 1


def dump(value: JSON, indent: int | None = None) -> bytes:
    """The one way in which a value is written: the order of keys is kept."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
    return text.encode()


def load(raw: bytes | bytearray, where: str) -> JSON:
    """Read JSON.

    Args:
        raw: UTF-8.
        where: The file, for messages.

    Raises:
        DamagedCheckpointError: It isn't JSON, has a key twice, NaN or infinity, a number of too
            many digits, or is nested too deeply.
    """
    try:
        return json.loads(
            raw.decode(),
            object_pairs_hook=_as_dict,
            parse_int=_as_int,
            parse_float=_as_float,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise DamagedCheckpointError(
            f"{where} is nested too deeply to be a checkpoint's."
        ) from None
    except ValueError as error:  # also of UTF-8 and of JSON itself
        raise DamagedCheckpointError(
            f"{where} is not the JSON that was written: {error}."
        ) from None


def is_text(string: str) -> bool:
    """Whether a string can be written: half of a surrogate pair can't."""
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_dict(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"it has the key {twice[:80]!r} twice")
    return found


def _as_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"it has an integer of {len(digits)} digits")
    return int(digits)


def _as_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"it has the number {digits[:40]}, which is out of range")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it has {name}, which is no JSON")
