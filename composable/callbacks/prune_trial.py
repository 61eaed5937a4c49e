"""Report an evaluation result to a trial of Optuna, which may prune the run."""

from collections.abc import Mapping
from typing import Any, ClassVar

from composable._support.warn import warn_user
from composable.callbacks._watched_result import WatchedResult
from composable.core.result_names import known_mode
from composable.core.state import State
from composable.distributed import Processes

_MODES = {"MINIMIZE": "min", "MAXIMIZE": "max"}


class PruneTrial(WatchedResult):
    """Reports an evaluation result to a trial of Optuna, and raises `TrialPruned` if it is pruned.

    The step of a report is the number of the evaluation in the run, from 0. The error ends `fit`,
    and the objective, so that Optuna counts the trial as pruned.

    A run that is killed and resumed reports each evaluation once: what the trial has is not
    reported again, and what a retried trial lacks is, before the pruner decides.

    Args:
        trial: The trial. Of several processes, only rank 0 needs it; the others pass None.
        monitor: The name of the result: "accuracy", or with the label of its evaluator,
            "eval/accuracy".

    Raises:
        TypeError: `trial` is not a trial.
        ValueError: The evaluator has no result of that name, a checkpoint is of another trial, or
            the run has `autoresume=True` and the study no storage.

    Example:
        >>> import optuna
        >>> from composable.callbacks import PruneTrial
        >>> trial = optuna.create_study(direction="maximize").ask()
        >>> PruneTrial(trial, "accuracy").number
        0
    """

    _saved_attributes: ClassVar = {"_trial_name": str | None, "_reported": list[float]}

    def __init__(self, trial: Any, monitor: str) -> None:
        if trial is not None and not hasattr(trial, "should_prune"):
            raise TypeError(
                f"trial={trial!r} must be the trial that Optuna passes to the objective, or None "
                "on a process whose rank is not 0."
            )
        self._trial = trial
        study = self._study = getattr(trial, "study", None)  # a FixedTrial has none
        direction = None if study is None else _MODES.get(study.direction.name)
        super().__init__(monitor, None, direction)
        self._trial_name = None if study is None else f"{study.study_name}/{self.number}"
        self._reported: list[float] = []

    @property
    def number(self) -> int | None:
        """The number of the trial, or of the first one that it retries: it names the folder."""
        saved = self._saved_trial()
        return saved.system_attrs.get("failed_trial", saved.number) if saved else None

    def check_resumable(self) -> None:
        """Raise a ValueError if the study ends with the process."""
        if self._study is None:
            return
        from optuna.storages import InMemoryStorage  # an extra

        if isinstance(self._trial.storage, InMemoryStorage):
            raise ValueError(
                "autoresume=True needs a study that outlives the process, and this one is in "
                "memory: pass storage='sqlite:///study.db' and load_if_exists=True to "
                "optuna.create_study, or drop autoresume."
            )

    def declare_modes(self, modes: Mapping[str, str]) -> None:
        """Warn if the study prefers the results that the metric calls worse."""
        name = self.watched_result[1] or ""
        expected = modes.get(name) or known_mode(name, None)
        if self._given_mode and expected not in (None, self._given_mode):
            warn_user(
                f"the study prefers the {self._given_mode} of {name}, for which {expected} is "
                f"better: pass direction='{expected}imize' to optuna.create_study."
            )
        super().declare_modes(modes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the reported results.

        Raises:
            ValueError: They are of another trial.
        """
        own = self._trial_name
        super().load_state_dict(state)
        saved, self._trial_name = self._trial_name, own
        if own is not None and saved != own:
            raise ValueError(
                f"the checkpoint is of trial {saved}, and this is {own}: pass another "
                "save_folder to each trial, such as f'runs/{callback.number}'."
            )

    def _is_over(self, state: State, mode: str, value: float) -> bool:
        self._reported.append(float(value))
        if Processes.current().on_main(self._report):
            from optuna import TrialPruned  # an extra

            pruned = TrialPruned(
                f"{self.watched_result[1]} was {value:g} after batch {state.timestamp.batch}."
            )
            pruned.raised_by_all = True  # the processes train the next trial
            raise pruned
        return False

    def _report(self) -> bool:
        """Report what the trial does not have, and return whether it is pruned."""
        saved, last = self._saved_trial(), len(self._reported) - 1
        known = saved.intermediate_values if saved else range(last)
        for step, value in enumerate(self._reported):
            if step not in known:
                self._trial.report(value, step)
        return bool(self._trial.should_prune())

    def _saved_trial(self) -> Any:
        """Return the trial as the study has it, or None without a study."""
        return self._study and self._study.get_trials(deepcopy=False)[self._trial.number]
