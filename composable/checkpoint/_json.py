"""The JSON of checkpoints and records: an invalid one is a damaged checkpoint."""

from composable.checkpoint.errors import DamagedCheckpointError
from composable.core import _json
from composable.core._json import JSON, MAX_INTEGER, dump, is_text

__all__ = ["JSON", "MAX_INTEGER", "dump", "is_text", "load"]


def load(raw: str | bytes | bytearray, where: str) -> JSON:
    """Decode JSON.

    Args:
        raw: The text, in UTF-8 if it is bytes.
        where: The file name for error messages.

    Raises:
        DamagedCheckpointError: See `composable.core._json.load`.
    """
    try:
        return _json.load(raw, where)
    except _json.InvalidJSONError as error:
        raise DamagedCheckpointError(str(error)) from None
