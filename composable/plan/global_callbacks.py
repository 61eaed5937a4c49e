"""Callbacks that watch every Trainer."""

from collections.abc import Callable
from threading import Lock

from composable.core.callback import Callback, callback_id, entered_callbacks
from composable.core.control import Control
from composable.core.logger import LoggerDestination
from composable.plan.plan import as_callback

__all__ = ["GlobalCallbackHandle", "global_callbacks", "register_global_callback"]


class GlobalCallbackHandle:
    """What `register_global_callback` returns."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def remove(self) -> None:
        """Take the callback out again; once it is out, do nothing."""
        global _registered
        with _lock:
            _registered = tuple(handle for handle in _registered if handle is not self)


_lock = Lock()
# A tuple that is replaced as a whole, so that reading needs no lock.
_registered: tuple[GlobalCallbackHandle, ...] = ()


def register_global_callback(
    callback: Callback | Callable[..., Control | None],
) -> GlobalCallbackHandle:
    """Let a callback watch every run of every Trainer in this process, until it is removed.

    `with callback:` does it for a block of code, and for its thread alone. Both are heard from
    the next call of a Trainer on: a run that has begun keeps the callbacks that it began with.

    Args:
        callback: A callback, a logger, or a function `(event, state, logger) -> Control | None`.

    Returns:
        A handle, whose `remove()` ends it.

    Raises:
        TypeError: It is something else.

    Example:
        >>> from composable import Callback, register_global_callback
        >>> class Announce(Callback):
        ...     def fit_start(self, state, logger):
        ...         print(f"{type(state.model).__name__} trains")
        >>> handle = register_global_callback(Announce())
        >>> handle.remove()
        >>> handle.remove()  # it is out already
    """
    global _registered
    if not isinstance(callback, LoggerDestination):
        callback = as_callback(callback, "register_global_callback got")
    handle = GlobalCallbackHandle(callback)
    with _lock:
        _registered = (*_registered, handle)
    return handle


def global_callbacks() -> tuple[Callback, ...]:
    """The global callbacks here and now: registered ones, then entered ones, each once.

    Example:
        >>> from composable import Callback
        >>> from composable.plan.global_callbacks import global_callbacks
        >>> with Callback() as outer, Callback() as inner, outer:
        ...     global_callbacks() == (outer, inner)
        True
        >>> global_callbacks()
        ()
    """
    entered = entered_callbacks()
    if not _registered and not entered:  # nearly always
        return ()
    found = (*(handle.callback for handle in _registered), *entered)
    return tuple({callback_id(callback): callback for callback in found}.values())
