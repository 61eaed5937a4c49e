"""Strict JSON: duplicate keys, NaN and oversized numbers are errors."""

import json
import math
from typing import Any, TypeAlias

from composable.checkpoint.errors import DamagedCheckpointError

__all__ = ["JSON", "MAX_INTEGER", "dump", "is_text", "load"]

JSON: TypeAlias = Any
"""None, bool, int, float, str, and lists and dictionaries of these."""

MAX_INTEGER = 2**64
"""Larger integers are not written as JSON numbers, because few readers keep their value."""

_MAX_DIGITS = len(str(MAX_INTEGER)) + 1


def dump(value: JSON, indent: int | None = None) -> bytes:
    """Encode a value as UTF-8; the order of the keys is kept."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
    return text.encode()


def load(raw: bytes | bytearray, where: str) -> JSON:
    """Decode JSON.

    Args:
        raw: The UTF-8 text.
        where: The file name for error messages.

    Raises:
        DamagedCheckpointError: The text is not JSON, has a duplicate key, NaN or infinity, a number
            with too many digits, or is nested too deeply.
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
        raise DamagedCheckpointError(f"{where} is nested too deeply for a checkpoint.") from None
    except ValueError as error:  # raised for invalid UTF-8 and invalid JSON too
        raise DamagedCheckpointError(f"{where} is damaged, invalid JSON: {error}.") from None


def is_text(string: str) -> bool:
    """Return whether a string can be encoded as UTF-8: a lone surrogate cannot."""
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_dict(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    found: dict[str, JSON] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {key[:80]!r}")
        found[key] = value
    return found


def _as_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)


def _as_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
