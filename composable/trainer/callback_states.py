"""The states of callbacks in a checkpoint."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from composable.checkpoint.errors import MismatchError
from composable.core.callback import Callback
from composable.trainer.description import settings_of
from composable.trainer.session import Session

__all__ = ["CallbackStates", "named_callbacks"]


def named_callbacks(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    """Return callbacks by name; the second of a name is `name 2`."""
    named: dict[str, Callback] = {}
    count: Counter[str] = Counter()
    for callback in callbacks:
        count[callback.name] += 1
        number = count[callback.name]
        named[callback.name if number == 1 else f"{callback.name} {number}"] = callback
    return named


class CallbackStates:
    """The callbacks as a part of a run. Those that are added later restore their states then.

    Args:
        session: Has the callbacks of the run.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.path: Path | None = None
        """The checkpoint from which the run was resumed."""
        self._waiting: dict[str, Any] = {}
        """The saved states that no callback has yet."""
        self._settings: Mapping[str, Any] = {}

    def follow(self, path: Path, description: Mapping[str, Any]) -> None:
        """Expect the states of a saved run.

        Args:
            path: The checkpoint.
            description: The description of the run, with the settings of its callbacks.
        """
        settings = description.get("callbacks")
        self.path, self._settings = path, settings if isinstance(settings, dict) else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the states by the names of the callbacks."""
        named = named_callbacks(self.session.callbacks)
        return {name: one.state_dict() for name, one in named.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            MismatchError: A state does not fit its callback.
        """
        self._waiting = dict(state)
        self.load_waiting()

    def load_waiting(self) -> None:
        """Restore the states of callbacks that have none yet: all of them, or none.

        Raises:
            MismatchError: A state does not fit its callback.
        """
        named = named_callbacks(self.session.callbacks)
        pairs = self._match(named)
        before = {name: named[name].state_dict() for name in pairs}
        for name, key in pairs.items():
            try:
                named[name].load_state_dict(self._waiting[key])
            except Exception as error:  # a callback may raise anything
                for other, state in before.items():
                    with suppress(Exception):
                        named[other].load_state_dict(state)
                raise MismatchError(
                    f"{self.path}: state/callbacks/{key} cannot be restored: "
                    f"{type(error).__name__}: {error} load_ignore_keys=['callbacks/{key}'] skips "
                    "it."
                ) from error
        for key in pairs.values():
            del self._waiting[key]

    def _match(self, named: Mapping[str, Callback]) -> dict[str, str]:
        """Return the names of the waiting states of callbacks, by the names of the callbacks.

        Several callbacks of one class are matched by their settings, and then by their order.
        """
        pairs: dict[str, str] = {}
        for by_settings in (True, False):
            for name, callback in named.items():
                own = re.compile(rf"{re.escape(callback.name)}( [0-9]+)?")
                keys = [k for k in self._waiting if own.fullmatch(k) and k not in pairs.values()]
                if by_settings:
                    settings = settings_of(callback)
                    keys = [key for key in keys if self._settings.get(key) == settings]
                if keys and name not in pairs:
                    pairs[name] = keys[0]
        return pairs
