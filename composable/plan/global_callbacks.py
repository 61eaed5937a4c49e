"""Global callbacks: observers of every Trainer."""

from collections.abc import Callable

from composable.core.callback import Callback, callback_id, entered_callbacks
from composable.core.control import Control
from composable.plan.declarations import as_observer
from composable.plan.hooks import check_hooks


class GlobalCallbackHandle:
    """A handle that removes a global callback; `register_global_callback` returns it."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def remove(self) -> None:
        """Remove the callback; further calls do nothing."""
        _registered.pop(self, None)


# In the order of registration. Operations of a dictionary are atomic, so that they need no lock.
_registered: dict[GlobalCallbackHandle, Callback] = {}


def register_global_callback(
    callback: Callback | type[Callback] | Callable[..., Control | None],
) -> GlobalCallbackHandle:
    """Add a callback to every run of every Trainer in this process, until it is removed.

    `with callback:` does the same for a block of code, in the current thread only. Both take effect
    at the next call of a Trainer: a run that has already started keeps its callbacks.

    Args:
        callback: A callback, a logger, a class of either, which is called without arguments, or a
            function `(event, state, logger) -> Control | None`.

    Returns:
        A handle, whose `remove()` removes the callback.

    Raises:
        TypeError: It has another type.

    Example:
        >>> from composable import Callback, register_global_callback
        >>> class Announce(Callback):
        ...     def fit_start(self, state, logger):
        ...         print(f"{type(state.model).__name__} trains")
        >>> handle = register_global_callback(Announce())
        >>> handle.remove()
        >>> handle.remove()  # it is already removed
    """
    observer = as_observer(callback)
    check_hooks(observer)
    handle = GlobalCallbackHandle(observer)
    _registered[handle] = observer
    return handle


def global_callbacks() -> tuple[Callback, ...]:
    """Return the active global callbacks: registered ones, then entered ones, each once.

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
    if not _registered and not entered:  # the common case
        return ()
    found = (*_registered.values(), *entered)
    return tuple({callback_id(callback): callback for callback in found}.values())
