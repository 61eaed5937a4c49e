"""The plan of a Trainer, the calls that run it, and the states of its callbacks."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from composable.core.callback import Callback, closing
from composable.core.logger import Logger
from composable.core.result_names import declare_modes
from composable.plan.dispatch import Dispatcher
from composable.plan.global_callbacks import global_callbacks
from composable.plan.plan import Plan
from composable.resume.changes import entry
from composable.trainer.description import settings_of
from composable.trainer.options import TrainerOptions
from composable.trainer.undo import Undo, undone_on_error

_override: ContextVar[Callable[[TrainerOptions], TrainerOptions] | None] = ContextVar(
    "composable_run_override", default=None
)


def run_overrides(options: TrainerOptions) -> TrainerOptions:
    """Return the options as changed by the tool, such as a replay, that runs this code."""
    override = _override.get()
    return options if override is None else override(options)


@contextmanager
def overridden_runs(override: Callable[[TrainerOptions], TrainerOptions]) -> Iterator[None]:
    """Change the options of every `Trainer` that is built in the block."""
    token = _override.set(override)
    try:
        yield
    finally:
        _override.reset(token)


class Session:
    """The plan, its dispatcher and logger, and whether a call is in progress."""

    def __init__(self, options: TrainerOptions) -> None:
        self.options = options
        self._override = _override.get()
        self.own_plan = options.plan()
        declare_modes(self.own_plan.callbacks, options.evaluators)
        for callback in self.own_plan.callbacks if options.autoresume else ():
            if hasattr(callback, "check_resumable"):
                callback.check_resumable()
        self.logger = Logger(self.own_plan.destinations)
        self.dispatcher = Dispatcher(
            self.own_plan, self.logger, check_effects=options.check_effects
        )
        self.in_call = False
        self.compose: Callable[[], None] | None = None
        """Composes the step of the run for the plan of a call."""

    @property
    def plan(self) -> Plan:
        """The plan of a call that starts now, global callbacks included."""
        return self.own_plan.with_global_callbacks(map(self.options.adopt, global_callbacks()))

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """The callbacks that are saved with the run: all but the global ones."""
        return (*self.own_plan.builtin_callbacks, *self.own_plan.user_callbacks)

    def check_override(self) -> None:
        """Check that the tool that runs this code, such as a replay, has seen the options.

        Raises:
            RuntimeError: The Trainer was built before.
        """
        active = _override.get()
        if active is not None and active is not self._override:
            raise RuntimeError(
                "a Trainer that was built before a replay was called during it, and would write "
                "to its files; build the Trainer in the function that is replayed."
            )

    def add(self, callback: Callback) -> None:
        """Add a callback to the plan of later calls."""
        self.own_plan = self.own_plan.with_callback(self.options.adopt(callback))

    @contextmanager
    def running(self, *, close_at_the_end: bool = True) -> Iterator[None]:
        """Run with the current callbacks, and close them afterwards."""
        with (
            self.with_plan() as plan,
            closing(plan.callbacks if plan else (), at_the_end=close_at_the_end),
        ):
            yield

    @contextmanager
    def with_plan(self) -> Iterator[Plan | None]:
        """Use the current plan for the length of a call.

        A call of the Trainer by a callback belongs to the call in progress, and uses its plan.
        """
        if self.in_call:
            yield None
            return
        self.check_override()
        self.in_call = True
        plan = self.plan
        declare_modes(plan.callbacks, self.options.evaluators)
        self._set_plan(plan)
        if self.compose is not None:
            self.compose()
        try:
            with self.options.precision.backend_settings():
                yield plan
        finally:
            self._set_plan(self.own_plan)
            self.in_call = False

    @contextmanager
    def without_observers(self) -> Iterator[None]:
        """Run with the algorithms alone, without callbacks and loggers."""
        with self.with_plan():
            self._set_plan(Plan(self.own_plan.algorithms))
            yield

    def _set_plan(self, plan: Plan) -> None:
        if plan is not self.dispatcher.plan:
            self.dispatcher.set_plan(plan)
            self.logger.destinations = plan.destinations


# --- the states of callbacks ---


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

    def follow(self, path: Path, description: Mapping[str, Any], states: Mapping[str, Any]) -> None:
        """Expect the states of a saved run.

        Args:
            path: The checkpoint.
            description: The description of the run, with the settings of its callbacks.
            states: What `state_dict` returned.
        """
        settings = description.get("callbacks")
        self.path, self._settings = path, settings if isinstance(settings, dict) else {}
        self._waiting = dict(states)

    def state_dict(self) -> dict[str, Any]:
        """Return the states by the names of the callbacks."""
        named = named_callbacks(self.session.callbacks)
        return {name: callback.state_dict() for name, callback in named.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            MismatchError: A state does not fit its callback.
        """
        self._waiting = dict(state)
        self._load_waiting()

    def load_waiting(self) -> None:
        """Restore the states of callbacks that have none yet: all of them, or none.

        Raises:
            MismatchError: A state does not fit its callback.
        """
        with undone_on_error(self.undo()), entry(f"{self.path}: state"), entry("callbacks"):
            self._load_waiting()

    def undo(self) -> list[Undo]:
        """Return functions that restore the callbacks for which a state is waiting.

        A callback is restored by its `load_state_dict`; one that then fails may have changed.
        """
        return [partial(_load_again, one, one.state_dict()) for one, _ in self._match()]

    def _load_waiting(self) -> None:
        pairs = self._match()
        for callback, key in pairs:
            with entry(key):
                callback.load_state_dict(self._waiting[key])
        loaded = {key for _, key in pairs}
        self._waiting = {key: value for key, value in self._waiting.items() if key not in loaded}

    def _match(self) -> list[tuple[Callback, str]]:
        """Return the callbacks for which a state is waiting, each with the name of the state.

        Several callbacks of one class are matched by their settings, and then by their order.
        """
        pairs: dict[str, str] = {}
        named = named_callbacks(self.session.callbacks) if self._waiting else {}
        for by_settings in (True, False):
            for name, callback in named.items():
                own = re.compile(rf"{re.escape(callback.name)}( [0-9]+)?")
                keys = [k for k in self._waiting if own.fullmatch(k) and k not in pairs.values()]
                if by_settings:
                    settings = settings_of(callback)
                    keys = [key for key in keys if self._settings.get(key) == settings]
                if keys and name not in pairs:
                    pairs[name] = keys[0]
        return [(named[name], key) for name, key in pairs.items()]


def _load_again(callback: Callback, state: Mapping[str, Any]) -> None:
    with suppress(Exception):  # it may be the one that fails
        callback.load_state_dict(state)
