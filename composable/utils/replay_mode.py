"""Whether this code runs as a replay of a recorded run: then nothing is written."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["current", "replaying"]

_current: ContextVar[Any] = ContextVar("composable_replay", default=None)


def current() -> Any:
    """The `composable.replay.Replay` at hand; None outside of one."""
    return _current.get()


@contextmanager
def replaying(replay: Any) -> Iterator[None]:
    """Run what is in the block as this replay."""
    token = _current.set(replay)
    try:
        yield
    finally:
        _current.reset(token)
