"""Strict JSON: duplicate keys, NaN, oversized numbers and deep nesting are errors.

All JSON from files is read here, so that no file takes more time or memory than its size suggests.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, TypeAlias

from composable._support.paths import open_regular

JSON: TypeAlias = Any
"""None, bool, int, float, str, and lists and dictionaries of these."""

MAX_INTEGER = 2**64
"""Larger integers are not written as JSON numbers, because few readers keep their value."""

MAX_DEPTH = 200
"""Deeper than any tree that `pack` returns, and shallow enough for functions that recurse."""

MAX_BYTES = 1 << 28
"""The largest file that is read by default."""

_MAX_DIGITS = 1000
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
"""Strings, and the brackets outside of them."""


class InvalidJSONError(ValueError):
    """A text is not JSON, or exceeds a limit of the reader."""


def dump(value: JSON, indent: int | None = None) -> bytes:
    """Encode a value as UTF-8; the order of the keys is kept."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
    return text.encode()


def load(raw: str | bytes | bytearray, where: str, *, nan: bool = False) -> JSON:
    """Decode JSON.

    Args:
        raw: The text, in UTF-8 if it is bytes.
        where: The file name for error messages.
        nan: Accept NaN and Infinity, which other packages write.

    Raises:
        InvalidJSONError: The text is not JSON, has a duplicate key, NaN or infinity, a number with
            too many digits, or is nested too deeply.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        if not _is_shallow(text):
            raise InvalidJSONError(f"{where} is nested too deeply: more than {MAX_DEPTH} levels.")
        return json.loads(
            text,
            object_pairs_hook=_as_dict,
            parse_int=_as_int,
            parse_float=_as_float,
            parse_constant=float if nan else _refuse_constant,
        )
    except InvalidJSONError:
        raise
    except RecursionError:  # the caller left too little of the stack
        raise InvalidJSONError(f"{where} is nested too deeply.") from None
    except ValueError as error:  # raised for invalid UTF-8 and invalid JSON too
        raise InvalidJSONError(f"{where} is damaged, invalid JSON: {error}.") from None


def load_file(path: Path, max_bytes: int = MAX_BYTES) -> JSON:
    """Decode the JSON of a file.

    Args:
        path: The file.
        max_bytes: The most bytes that it may have.

    Raises:
        InvalidJSONError: See `load`; or the file is too large.
        OSError: The file cannot be read, or is a pipe or a device.
    """
    with open_regular(path) as file:
        raw = bytearray()
        while len(raw) <= max_bytes and (chunk := file.read(max_bytes + 1 - len(raw))):
            raw += chunk
    if len(raw) > max_bytes:
        raise InvalidJSONError(f"{path} has more than the maximum of {max_bytes} bytes.")
    return load(raw, str(path))


def as_finite(value: JSON) -> JSON:
    """Return a value, or the string "NaN", "Infinity" or "-Infinity" for what JSON has no numbers.

    Example:
        >>> from composable._support.strict_json import as_finite
        >>> as_finite(0.5), as_finite(float("-inf"))
        (0.5, '-Infinity')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def is_text(string: str) -> bool:
    """Return whether a string can be encoded as UTF-8: a lone surrogate cannot."""
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_shallow(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return True
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return False
        elif token[0] in "]}":
            depth -= 1
    return True


def _as_dict(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {key[:80]!r}")
            seen.add(key)
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
