"""The plan of a Trainer, and the calls that run it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from composable.callbacks._results import declare_modes
from composable.core._warnings import warn_user
from composable.core.callback import Callback, closing
from composable.core.logger import Logger
from composable.plan.dispatch import Dispatcher
from composable.plan.global_callbacks import global_callbacks
from composable.plan.plan import Plan
from composable.trainer.options import TrainerOptions

__all__ = ["Session", "SharedGeneratorWarning", "overridden_runs", "run_overrides"]


_running: dict[int, int] = {}  # the thread of each session with a call in progress


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


class SharedGeneratorWarning(UserWarning):
    """Several threads draw from the same global generators."""


class Session:
    """The plan, its dispatcher and logger, and whether a call is in progress."""

    def __init__(self, options: TrainerOptions) -> None:
        self.options = options
        self._override = _override.get()
        self.own_plan = options.plan()
        declare_modes(self.own_plan.callbacks, options.evaluators)
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
        self._check_threads()
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
            _running.pop(id(self), None)

    def _check_threads(self) -> None:
        """Warn if another Trainer runs in another thread: they share the global generators."""
        thread = threading.get_ident()
        if any(other != thread for other in list(_running.values())):
            warn_user(
                "Trainers run at the same time in several threads. They share the global random "
                "generators, so their results cannot be reproduced; run each in its own process.",
                SharedGeneratorWarning,
            )
        _running[id(self)] = thread

    def _set_plan(self, plan: Plan) -> None:
        if plan is not self.dispatcher.plan:
            self.dispatcher.set_plan(plan)
            self.logger.destinations = plan.destinations
