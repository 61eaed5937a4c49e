"""What a Trainer shows of its run."""

from typing import TYPE_CHECKING

from composable.core.state import State
from composable.plan.plan import Plan

if TYPE_CHECKING:
    from composable.loggers.in_memory import InMemoryLogger
    from composable.plan.timeline import Timeline
    from composable.resume.best import Best
    from composable.trainer.checkpoints import Checkpoints
    from composable.trainer.run import Run
    from composable.trainer.session import Session

__all__ = ["RunView"]


class RunView:
    """The properties of a run that can be read at any time."""

    _run: "Run"
    _session: "Session"
    _checkpoints: "Checkpoints"

    @property
    def plan(self) -> Plan:
        """The plan of a run that starts now, global callbacks included."""
        return self._session.plan.with_remarks(self.state)

    @property
    def state(self) -> State:
        """The state after the last finished batch."""
        return self._run.state

    @property
    def history(self) -> "InMemoryLogger":
        """Everything that was logged, also before a resume: the first `InMemoryLogger` of the run.

        Raises:
            AttributeError: The run has none.
        """
        for one in self._session.own_plan.destinations:
            if one.keeps_history:
                return one  # type: ignore[return-value]
        raise AttributeError(
            "this run keeps no history; pass loggers=InMemoryLogger() to the Trainer."
        )

    @property
    def best(self) -> "Best | None":
        """The best result so far and its checkpoint; None without `save_best`, or before it."""
        return self._checkpoints.best

    def timeline(self) -> "Timeline":
        """Return when each algorithm is active over the run: see `Plan.timeline`."""
        return self.plan.timeline(self.state.max_duration, self.state.epoch_length)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        state, algorithms = self.state, ", ".join(one.name for one in self.plan.algorithms)
        now = state.timestamp
        return (
            f"<Trainer of {type(state.model).__name__}: epoch {now.epoch}, batch {now.batch}, "
            f"max_duration {state.max_duration}, algorithms [{algorithms}]>"
        )

    def _repr_html_(self) -> str:
        from composable.core._facts import state_facts  # in notebooks
        from composable.core._html import details, panel, table

        state, plan = self.state, self.plan
        rows = [
            *state_facts(state),
            ("callbacks", ", ".join(c.name for c in plan.callbacks) or "none"),
        ]
        if self.best is not None:
            best = self.best
            rows.append(("best", f"{best.metric} {best.value:.4g}, {best.checkpoint}"))
        return panel(
            f"Trainer of {type(state.model).__name__}",
            table(rows),
            details(f"plan: {len(plan.algorithms)} algorithms", plan._repr_html_()),
        )
