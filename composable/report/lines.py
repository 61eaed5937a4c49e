"""Values from files that may be broken: read, checked, and shown as text."""

import io
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from composable._support import strict_json
from composable._support.paths import open_regular
from composable._support.printable import format_duration
from composable.core.stateful import is_count

EMPTY = "—"
_LONGEST = 1 << 24
_TEXT = 400


def read_lines(path: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    """Iterate over the objects in a file; lines that cannot be read are skipped.

    An incomplete last line, as a running or killed process leaves it, is skipped silently.

    Args:
        path: The file; nothing is read if it does not exist.
        problems: Receives a sentence if something cannot be read.
    """
    first, skipped, number = "", 0, 0
    try:
        with io.BufferedReader(open_regular(path)) as file:
            while raw := file.readline(_LONGEST):
                if not raw.endswith(b"\n") and len(raw) < _LONGEST:
                    break
                number += 1
                line = _load(raw)
                if line is not None:
                    yield line
                elif raw.strip():
                    first, skipped = first or f"{path.name}, line {number}", skipped + 1
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}.")
    if skipped:
        lines = "1 line is" if skipped == 1 else f"{skipped} lines are"
        problems.append(f"{first}: invalid; {lines} skipped.")


def _load(raw: bytes) -> dict[str, Any] | None:
    try:
        line = strict_json.load(raw, "a line")
    except strict_json.InvalidJSONError:
        return None
    return line if isinstance(line, dict) else None


def as_number(value: Any) -> float | None:
    """Return a recorded number, or None if the value is not a number.

    Example:
        >>> from composable.report.lines import as_number
        >>> [as_number(value) for value in (2, "0x1.8p-1", "NaN", "face", True, None)]
        [2.0, 0.75, nan, None, None, None]
    """
    try:
        if type(value) in (int, float):
            return float(value)
        number = float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        return None
    is_hex = value.startswith(("0x", "-0x"))  # and not the digits of something else
    return number if is_hex or not math.isfinite(number) else None


def as_batch(value: Any) -> int | None:
    """Return a number of batches, or None if the value is not one."""
    return value if is_count(value) else None


def list_or_empty(values: Any) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return values if isinstance(values, list) else []


def as_dicts(values: Any) -> list[dict[str, Any]]:
    """Return the dictionaries in a list; an empty one for anything else."""
    return [one for one in list_or_empty(values) if isinstance(one, dict)]


# --- as text ---


def format_number(value: float | None, digits: int = 4) -> str:
    """Format a number for a table.

    Example:
        >>> from composable.report.lines import format_number
        >>> [format_number(value) for value in (0.123456, 3.0, 12345.6, float("nan"), None)]
        ['0.1235', '3', '12,346', 'nan', '—']
    """
    if value is None:
        return EMPTY
    if math.isfinite(value) and abs(value) < 1e15 and (value == int(value) or abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def format_span(seconds: float | None) -> str:
    """Format seconds for a table, of which a file may have any value."""
    return EMPTY if seconds is None or not math.isfinite(seconds) else format_duration(seconds)


def short_text(value: Any) -> str:
    """Return a short text for a value that may be anything."""
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


def visible(text: str) -> str:
    r"""Replace characters that cannot be seen, such as controls and changes of direction.

    Example:
        >>> from composable.report.lines import visible
        >>> visible("a\x1b[2Jb") == "a\ufffd[2Jb"
        True
    """
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def folder_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of folders: their paths from the folder that all of them are in."""
    folders = [folder.absolute() for folder in folders]
    if len(folders) == 1:
        return (folders[0].name or str(folders[0]),)
    try:
        common = os.path.commonpath([folder.parent for folder in folders])
    except ValueError:  # on several drives
        return tuple(map(str, folders))
    return tuple(os.path.relpath(folder, common) for folder in folders)


def in_order(name: str) -> list[Any]:
    """Return a key that sorts the numbers in names by value.

    Example:
        >>> from composable.report.lines import in_order
        >>> sorted(["run-10", "run-2"], key=in_order)
        ['run-2', 'run-10']
    """
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]
