"""The plan of a run: which algorithms and callbacks run at which event, and in what order."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from composable._support.warn import warn_user
from composable.core.algorithm import Algorithm, Remark, leaves, nested
from composable.core.callback import Callback, callback_id, hooks_of
from composable.core.control import Control
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import HasTime, TimeLike
from composable.plan.compatibility import Caveat, caveats, check_compatibility, check_names
from composable.plan.declarations import (
    OneOrSeveral,
    as_algorithm,
    as_callback,
    as_destination,
    as_list,
)
from composable.plan.hooks import check_hooks
from composable.plan.ordering import topological_sort

if TYPE_CHECKING:
    from composable.plan.explain import PlanStep
    from composable.plan.timeline import Timeline


class IdleAlgorithmWarning(UserWarning):
    """An algorithm can never act: its window is empty, or excludes all of its events."""


@attrs.frozen
class Plan:
    """The algorithms and callbacks of a run, in an order independent of how they are listed.

    Algorithms form a set. They are ordered by stage, then by their declarations `before` and
    `after`, and then by name. At an event that closes a pair (`AFTER_X`, `X_END`), algorithms of
    both events run in reverse order (first in, last out), after the algorithms of the closing event
    only.

    Callbacks run after the algorithms, and can't change the state: first the library's own
    (`builtin_callbacks`), then the user's (`user_callbacks`), then global ones
    (`global_callbacks`), each in list order. Loggers come after all other callbacks, in the same
    order, so that they see all metrics.

    Example:
        >>> from composable import Plan
        >>> from composable.algorithms import LabelSmoothing, MixUp
        >>> plan = Plan.compile([LabelSmoothing(0.1), MixUp()])
        >>> plan == Plan.compile([MixUp(), LabelSmoothing(0.1)])
        True
        >>> for step in plan.steps():
        ...     print(step.event.value, step.who, step.why, sep=" | ")
        before_train_batch | MixUp | alone here
        before_loss | MixUp | first of the stages here
        before_loss | LabelSmoothing | targets comes after mix
    """

    algorithms: tuple[Algorithm, ...] = ()
    builtin_callbacks: tuple[Callback, ...] = ()
    user_callbacks: tuple[Callback, ...] = ()
    global_callbacks: tuple[Callback, ...] = ()
    updates: tuple[Any, ...] = attrs.field(default=(), eq=False, repr=False)
    """The updates of each training step, in their order; none if it has one loss."""
    remarks: tuple[Remark, ...] = attrs.field(default=(), eq=False, repr=False)
    """Which algorithms have little effect in the run of the plan, if it has one."""
    _transforms: dict[Event, tuple[Algorithm, ...]] = attrs.field(
        factory=dict, init=False, eq=False, repr=False
    )

    # --- construction ---

    @classmethod
    def compile(
        cls,
        algorithms: OneOrSeveral[Algorithm | Callable[[Event, State], State]] = (),
        callbacks: OneOrSeveral[Callback | type[Callback] | Callable[..., Control | None]] = (),
        loggers: OneOrSeveral[LoggerDestination | type[LoggerDestination]] = (),
        *,
        builtin_callbacks: Iterable[Callback] = (),
    ) -> "Plan":
        """Order algorithms and callbacks, and check that the algorithms are compatible.

        Args:
            algorithms: Algorithms, or functions `(event, state) -> state`.
            callbacks: Callbacks, classes of callbacks, which are called without arguments, or
                functions `(event, state, logger) -> Control | None`.
            loggers: Destinations of metrics, or their classes.
            builtin_callbacks: The library's own callbacks and loggers, which run first.

        Raises:
            TypeError: An argument contains an object of the wrong kind.
            ValueError: Two algorithms have the same name or cannot be ordered, or a callback is
                listed twice.
            IncompatibleAlgorithmsError: Two incompatible algorithms may act on the same batch.
        """
        ordered = topological_sort(as_algorithm(algorithm) for algorithm in as_list(algorithms))
        check_names(ordered)
        check_compatibility(ordered)
        for algorithm in ordered:
            if reason := algorithm.idle_reason():
                _warn_idle(algorithm.name, reason)
        for caveat in caveats(ordered):
            warn_user(str(caveat), caveat.kind)
        observers = [as_callback(callback) for callback in as_list(callbacks)]
        destinations = [as_destination(logger) for logger in as_list(loggers)]
        plan = cls(tuple(ordered), builtin_callbacks=tuple(as_list(builtin_callbacks)))
        for callback in (*observers, *destinations):
            plan = plan.with_callback(callback)
        return plan

    def with_callback(self, callback: Callback) -> "Plan":
        """Return this plan with one more user callback or logger.

        Raises:
            ValueError: The plan already contains the callback.
        """
        if callback_id(callback) in _ids(self.builtin_callbacks, self.user_callbacks):
            raise ValueError(
                f"callback {callback.name} was given twice, the same instance: drop one of them, "
                "or create a second instance."
            )
        check_hooks(callback)
        return attrs.evolve(self, user_callbacks=(*self.user_callbacks, callback))

    def with_global_callbacks(self, callbacks: Iterable[Callback]) -> "Plan":
        """Return this plan with other global callbacks; duplicates of its callbacks are skipped."""
        present = _ids(self.builtin_callbacks, self.user_callbacks)
        new = tuple(callback for callback in callbacks if callback_id(callback) not in present)
        return attrs.evolve(self, global_callbacks=new) if new or self.global_callbacks else self

    def with_remarks(self, state: State) -> "Plan":
        """Return this plan with the remarks of its algorithms on a run from a state."""
        given = (leaf.remark(state) for each in self.algorithms for leaf in leaves(each))
        remarks = tuple(remark for remark in given if remark is not None)
        return self if remarks == self.remarks else attrs.evolve(self, remarks=remarks)

    # --- contents ---

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """All callbacks and loggers, in the order in which they run."""
        every = (*self.builtin_callbacks, *self.user_callbacks, *self.global_callbacks)
        return tuple(sorted(every, key=lambda one: isinstance(one, LoggerDestination)))

    @property
    def destinations(self) -> tuple[LoggerDestination, ...]:
        """The callbacks that are loggers."""
        return tuple(c for c in self.callbacks if isinstance(c, LoggerDestination))

    @property
    def caveats(self) -> list[Caveat]:
        """The caveats that `compile` warned about."""
        return caveats(self.algorithms)

    def transforms(self, event: Event) -> tuple[Algorithm, ...]:
        """Return the algorithms that listen to an event, in the order in which they run."""
        if event not in self._transforms:
            self._transforms[event] = nested(self.algorithms, event)
        return self._transforms[event]

    def observers(self, event: Event) -> tuple[Callback, ...]:
        """Return the callbacks that listen to an event, in the order in which they run."""
        return tuple(callback for callback in self.callbacks if event in hooks_of(callback))

    # --- descriptions ---

    def steps(self) -> "list[PlanStep]":
        """Return the steps of the plan, in the order of the events."""
        from composable.plan.explain import steps_of  # on use

        return steps_of(self)

    def explain(self, *, observers: bool = False, width: int | None = None) -> str:
        """Format the plan as a table of its steps, followed by its caveats and remarks.

        Args:
            observers: Whether to list the events of callbacks, too, and not only their names.
            width: The width of a line, in characters; of the terminal by default.
        """
        from composable.plan.explain import format_plan  # on use

        return format_plan(self, observers=observers, width=width)

    def timeline(self, max_duration: TimeLike, epoch_length: int | None = None) -> "Timeline":
        """Compute when each algorithm is active over a run.

        Args:
            max_duration: The duration of the run.
            epoch_length: Batches in an epoch, if known.

        Raises:
            ValueError: `max_duration` is zero, or a fraction of itself.

        Example:
            >>> from composable import Plan, during
            >>> from composable.algorithms import EMA, MixUp
            >>> plan = Plan.compile([during("0ep", "8ep", MixUp()), EMA(ema_start="0.5dur")])
            >>> print(plan.timeline("10ep"))
            MixUp  mix      from 0ep to 8ep
            EMA    average  from 5ep to 10ep
        """
        from composable.plan.timeline import Timeline  # on use: it is slow to import

        return Timeline.of(self.algorithms, max_duration, epoch_length)

    def report_idle(self, run: HasTime, absent: Mapping[Event, str]) -> None:
        """Warn about algorithms that can never act in this run, though they could in another.

        Args:
            run: The run; its duration matters.
            absent: The events that don't occur in it, with reasons.
        """
        # `compile` has warned about the others.
        able = [algorithm for algorithm in self.algorithms if algorithm.idle_reason() is None]
        for algorithm in able:
            for leaf in leaves(algorithm):
                if all(event in absent for event in leaf.events):
                    events = ", ".join(event.value for event in Event if event in leaf.events)
                    reasons = ", ".join(dict.fromkeys(absent[event] for event in leaf.events))
                    _warn_idle(leaf.name, f"it acts only at {events}, and {reasons}")
        if run.max_duration is None or not able:
            return
        from composable.plan.timeline import Timeline  # on use: it is slow to import

        for row in Timeline.of(able, run.max_duration, run.epoch_length).rows:
            if not row.spans:
                _warn_idle(row.name, f"its window lies outside of a run of {run.max_duration}")

    def report_undeclared_model(self) -> None:
        """Warn if only functions can have replaced the model at the start of an evaluation."""
        found = self.transforms(Event.EVAL_START)
        functions = [getattr(algorithm, "function", None) for algorithm in found]
        if not any("model" in getattr(one, "writes", ()) for one in (*found, *functions)):
            names = ", ".join(sorted({algorithm.name for algorithm in found}))
            warn_user(
                f"{names} replaced the model at EVAL_START and does not declare it, so the model "
                "has other weights after fit and in checkpoints than those that are evaluated; "
                "write an Algorithm with writes = {'model'}.",
                UserWarning,
            )


def _ids(*groups: Iterable[Callback]) -> set[int]:
    return {callback_id(callback) for group in groups for callback in group}


def _warn_idle(name: str, reason: str) -> None:
    warn_user(f"{name} can never act: {reason}. Drop it, or change that.", IdleAlgorithmWarning)
