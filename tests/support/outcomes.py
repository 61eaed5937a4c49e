"""What a run leaves behind, compared to the bit, and a run in two parts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from composable import State, Trainer
from tests.support.runs import Problem

COUNTS = ("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch")


def outcome(problem: Problem, algorithms: Any = (), **options: Any) -> dict[str, Any]:
    """Return the outcome of a run with an evaluation; effects have laws of their own."""
    defaults = {"eval_dataloader": problem.batches(), "check_effects": False}
    return left_by(problem.trainer(algorithms=algorithms, **{**defaults, **options}).fit())


def left_by(state: State) -> dict[str, Any]:
    """Weights, memory, metrics, and what was counted; but for the time on the clock."""
    return {
        "weights": {name: t.detach().clone() for name, t in state.model.state_dict().items()},
        "memory": state.memory,
        "averages": state.averages,
        "metrics": state.metrics,
        "counts": {name: getattr(state.timestamp, name) for name in COUNTS},
    }


Equal = Callable[[Any, Any], bool]


def to_the_bit(one: Any, other: Any) -> bool:
    """Return whether two values are bit-identical; NaN equals itself."""
    if not isinstance(one, Tensor):
        return bool(one == other or (one != one and other != other))
    like = (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    return like and bool(((one == other) | ((one != one) & (other != other))).all())


def differences(
    one: Any, other: Any, equal: Equal = to_the_bit, path: str = "outcome"
) -> list[str]:
    """Return the paths to the differences between two outcomes."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found = [f"{path}[{key!r}]" for key in one.keys() ^ other.keys()]
        shared = [(f"{path}[{key!r}]", one[key], other[key]) for key in one if key in other]
    elif isinstance(one, Sequence) and not isinstance(one, str) and len(one) == len(other):
        found = []
        pairs = zip(one, other, strict=True)
        shared = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(pairs)]
    else:
        same_kind = isinstance(one, Tensor) is isinstance(other, Tensor)
        return [] if same_kind and equal(one, other) else [path]
    return found + [p for where, a, b in shared for p in differences(a, b, equal, where)]


def resumed(build: Callable[[], Trainer], *durations: str) -> State:
    """Return the last state of a run that is interrupted after each duration but the last.

    This is the one place that says how a run is taken up again. `build` makes a Trainer of the
    run, without `max_duration`.
    """
    trainer = build()
    for duration in durations:
        state = trainer.fit(duration=duration)
    return state


def resumes_exactly(
    run: Callable[..., State], folder: Path, batch: int = 2, **changes: Any
) -> tuple[State, State]:
    """Check that a run that is resumed from a checkpoint ends as the whole one, to the bit.

    Args:
        run: Trains, with options of the Trainer, and returns the last state.
        folder: Where the whole run saves its checkpoints.
        batch: The number of batches before the checkpoint, in the midst of an epoch.
        changes: Options of the resumed run alone.

    Returns:
        The last states of the whole run and of the resumed one.
    """
    whole = run(save_folder=folder, save_interval="1ba")
    (point,) = folder.glob(f"*-ba{batch}")
    resumed = run(load_path=point, **changes)
    for part in (left_by, _optimizers):
        assert not differences(part(whole), part(resumed))
    return whole, resumed


def _optimizers(state: State) -> list[dict[str, Any]]:
    return [optimizer.state_dict() for optimizer in state.optimizers]
