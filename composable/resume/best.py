"""The best checkpoint of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from composable.checkpoint.errors import MissingCheckpointError
from composable.core.results import LOGGED
from composable.resume.manager import CheckpointManager
from composable.resume.select import looks_like_checkpoint
from composable.storage.folders import address


class NoBestCheckpointWarning(UserWarning):
    """No result selected a best checkpoint, so the model keeps its last weights."""


@attrs.frozen
class Best:
    """The best result of a run so far, and the checkpoint that has its weights."""

    metric: str
    """The name under which the result is logged: "metrics/eval/accuracy"."""
    mode: str
    """Whether the "max" or the "min" is best."""
    value: float
    checkpoint: Path


def find_best(managers: Sequence[CheckpointManager], loaded: Path | None) -> Best | None:
    """Return the best checkpoint of the first manager that selects one.

    Args:
        managers: What writes the checkpoints of the run.
        loaded: The checkpoint from which the run was resumed, beside which the best one may be.
    """
    for manager in managers:
        metric, mode = manager.settings.metric, manager.settings.mode
        if manager.best is None or metric is None or mode is None:
            continue
        name, value = manager.best
        path = manager.settings.folder / name
        if (
            loaded is not None
            and not looks_like_checkpoint(path)
            and looks_like_checkpoint(loaded.parent / name)
        ):
            path = loaded.parent / name
        return Best(f"{LOGGED}{metric}", mode, value, path)
    return None


def check_determined(
    managers: Sequence[CheckpointManager], evaluators: Sequence[Any], *, trains_loss: bool
) -> None:
    """Check that an evaluation during training determines the best checkpoint.

    Args:
        managers: What writes the checkpoints of the run.
        evaluators: The evaluators of the run.
        trains_loss: Whether the loss has parameters, which the best checkpoint must have.

    Raises:
        ValueError: None does, or a checkpoint excludes the parameters of the loss.
    """
    names = [manager.settings.metric for manager in managers if manager.settings.metric is not None]
    if not names:
        raise ValueError(
            "load_best_at_end=True needs the result that determines the best checkpoint; pass "
            "save_folder=... and save_best=..., such as 'metrics/eval/loss'."
        )
    due = [e for e in evaluators if names[0].startswith(f"{e.label}/") and e.eval_interval]
    if not due:
        raise ValueError(
            f"load_best_at_end=True needs evaluations during training, and eval_interval=None "
            f"for the evaluator of {names[0]!r}; pass an interval such as '1ep'."
        )
    partial = any(one.settings.metric is not None and one.settings.weights_only for one in managers)
    if partial and trains_loss:
        raise ValueError(
            "save_weights_only=True with load_best_at_end=True: evaluations depend on loss_fn, "
            "which such a checkpoint does not have; drop one of them."
        )


def check_best(best: Best | None) -> None:
    """Check that the best checkpoint exists, when a run resumes.

    Raises:
        MissingCheckpointError: It does not.
    """
    if best is not None and not looks_like_checkpoint(best.checkpoint):
        raise MissingCheckpointError(
            f"load_best_at_end=True needs the best checkpoint of the run so far, and there is no "
            f"{address(best.checkpoint)}; copy it there from the folder of the run, or pass "
            "load_best_at_end=False."
        )
