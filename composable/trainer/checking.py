"""One batch of everything that a run does: what it takes, and what would fail."""

import copy
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from composable._support.devices import memory_statistics
from composable._support.tree import tensors_of
from composable.core.state import State
from composable.core.time import TimeUnit
from composable.data.fetching import without_workers
from composable.data.grouping import batches_of
from composable.losses.loss import check_loss
from composable.optim.multi import base_optimizers
from composable.trainer.guards import NonFiniteLossError
from composable.trainer.session import CallbackStates
from composable.trainer.trial import TrialRun

if TYPE_CHECKING:
    from composable.trainer.checkpoints import Checkpoints


_ROUNDING = 1e-5
"""The relative difference of two losses that a device may make."""
_STEPS = 3  # of which the first one is slower than the others
_KEPT = ("guard", "progress", "data")
"""Parts that are compared with the checkpoint alone: a trial does not undo what restores them."""
_CURES = {
    "data": "look at the dataset and collate_fn of train_dataloader, of which check reads the "
    "first batches",
    "model": "call the model on the inputs of one batch yourself; input_key= selects them",
    "loss": "loss_fn is called with the outputs and the targets: compare their shapes and dtypes; "
    "target_key= selects the targets",
    "step": "the backward pass, an algorithm or an optimizer raised it; try without algorithms=",
    "evaluation": "look at the loader and the metrics of this evaluator",
    "save": "save_folder must be on a disk that can be written and has room",
    "state": "let the module call self.register_buffer(name, tensor) in its constructor, and write "
    "to this buffer: checkpoints hold buffers",
    "resume": "load_state_dict of each part must accept what its state_dict returned",
}
_MEMORY_CURE = "lower the batch size, raise grad_accum=, or use a precision= of 16 bits"


class CheckError(RuntimeError):
    """A part of a run failed in a check.

    Args:
        part: "data", "model", "loss", "step", "evaluation", "save", "resume" or "state".
        error: The error that it raised.
    """

    def __init__(self, part: str, error: Exception) -> None:
        self.part = part
        cure = _MEMORY_CURE if isinstance(error, torch.OutOfMemoryError) else _CURES[part]
        lines = getattr(error, "__notes__", None) or [f"{cure}."]
        super().__init__("\n".join([f"{part}: {type(error).__name__}: {error}", *lines]))


@attrs.frozen
class CheckReport:
    """What one batch of everything took.

    Args:
        seconds: The durations by part: the first batch, a step, evaluators by label, a save and a
            resume.
        memory: Bytes of the parameters, gradients, states of optimizers, and of a checkpoint; on a
            GPU also the peak.
        fit_seconds: An estimate for the steps of a whole `fit`, or None if their number is unknown.
    """

    seconds: dict[str, float]
    memory: dict[str, int]
    fit_seconds: float | None

    def __str__(self) -> str:
        lines = ["check passed"]
        lines += [f"  {name:28} {value:10.4f} s" for name, value in self.seconds.items()]
        lines += [f"  {name:28} {value / 2**20:10.3g} MiB" for name, value in self.memory.items()]
        if self.fit_seconds is not None:
            lines.append(f"  {'fit, without evaluation':28} {self.fit_seconds:10.1f} s")
        return "\n".join(lines)

    __repr__ = __str__


def check_run(
    trial: TrialRun, checkpoints: "Checkpoints", batches: Iterable[Any] | None
) -> CheckReport:
    """Run one batch of everything, within a trial, which undoes the steps.

    Args:
        trial: The trial.
        checkpoints: What saves the run.
        batches: The batches, by default those that the run trains on next.

    Raises:
        CheckError: A part failed.
    """
    run, seconds = trial.run, dict[str, float]()
    raises = checkpoints.options.nonfinite_loss == "raise"
    with _part("data", seconds, "first batch"):
        source = trial.batches(batches)
        first = next(source)
    for number in range(_STEPS):
        checked = nullcontext() if number else _checking_effects(trial)  # the last step is measured
        with _part(lambda: _stage(trial, first), seconds, "step"), checked:
            loss = float(trial.step(first, number))
            if raises and not math.isfinite(loss):
                raise NonFiniteLossError(f"the loss of step {number} was {loss}.", number)
    memory = _memory(run.state)
    for evaluator in run.evaluators:
        with _part("evaluation", seconds, f"evaluation {evaluator.label}"):
            one = attrs.evolve(evaluator, dataloader=_first(evaluator.dataloader))
            run.evaluation.evaluate(run.state, one)
    if not checkpoints.options.dry_run:
        memory["checkpoint"] = _save_and_resume(trial, checkpoints, seconds, first)
    steps = _steps(run.state)
    return CheckReport(seconds, memory, None if steps is None else steps * seconds["step"])


@contextmanager
def _checking_effects(trial: TrialRun) -> Iterator[None]:
    """Check in a block that algorithms write nothing in place, and only what they declare."""
    run = trial.run
    try:
        with run.dispatcher.checking_effects():
            run.compose()
            yield
    finally:
        run.compose()


@contextmanager
def _part(part: str | Callable[[], str], seconds: dict[str, float], name: str) -> Iterator[None]:
    """Measure a part, and name it in its error."""
    began = time.perf_counter()
    try:
        yield
    except CheckError:  # of a part within this one
        raise
    except Exception as error:
        raise CheckError(part if isinstance(part, str) else part(), error) from error
    seconds[name] = time.perf_counter() - began


def _stage(trial: TrialRun, batch: Any) -> str:
    """Return what fails of a step, by repeating its parts; the error of the step is raised."""
    run = trial.run
    if run.updates:
        return "step"
    first, forward = batches_of(batch)[0], run.engine.forward
    state = run.state.evolve_unchecked(batch=first, outputs=None)
    try:
        state = state if run.after_dataloader is None else run.after_dataloader(state)
        outputs = forward.outputs(state)
    except Exception:
        return "model"
    try:
        loss = check_loss(forward.loss(state, outputs))
    except Exception:
        return "loss"
    return "step" if loss.isfinite() else "loss"


def _first(loader: Any) -> list[Any]:
    """Return the first batch of a loader, read in this process, in a list."""
    try:
        return [next(iter(without_workers(loader)))]
    except StopIteration:
        raise ValueError("the loader returned no batch; check the dataset.") from None


def _save_and_resume(
    trial: TrialRun, checkpoints: "Checkpoints", seconds: dict[str, float], batch: Any
) -> int:
    """Write a checkpoint next to the folder of the run, restore it, and return its size.

    A step follows, and is compared with the same step before.
    """
    run, state = checkpoints.run, checkpoints.run.state
    with (
        tempfile.TemporaryDirectory(prefix="composable-check-") as elsewhere,
        _part("save", {}, ""),
        _folder_near(checkpoints.options.save_folder, Path(elsewhere)) as near,
    ):
        with _part("save", seconds, "save"):
            path = checkpoints.write(near / "checkpoint", weights_only=False, overwrite=False)
        with _part("state", {}, ""):
            loss = float(trial.step(batch, _STEPS))
            try:
                with _part("resume", seconds, "resume"):
                    _restore(checkpoints, path)
            finally:
                run.state = state
            _compare_step(trial, batch, loss)
        return sum(file.stat().st_size for file in path.iterdir())


def _compare_step(trial: TrialRun, batch: Any, expected: float) -> None:
    """Check that the step after a resume has the loss of the same step before.

    Raises:
        ValueError: It has another.
    """
    model, attributes = trial.run.state.model, trial.attributes
    names = {module: name for name, module in model.named_modules(prefix="model")}
    changed = [f"{names.get(one, 'loss_fn')}.{name}" for one, name in attributes.changed()[:3]]
    attributes.restore()  # to what a new process has
    loss = float(trial.step(batch, _STEPS))
    if math.isfinite(expected) and not math.isclose(loss, expected, rel_tol=_ROUNDING):
        raise ValueError(
            f"the loss of a step is {expected:.6g}, and {loss:.6g} after a resume: a forward pass "
            f"changed {', '.join(changed) or 'a state outside modules'}, which no checkpoint has."
        )


def _restore(checkpoints: "Checkpoints", path: Path) -> None:
    """Restore a checkpoint of the run as it is."""
    from composable.resume.select import read_point  # on use

    point = read_point(path, checkpoints.options.reader, run=checkpoints.records.run_id)
    restored = copy.copy(checkpoints)
    restored.callbacks = CallbackStates(checkpoints.session)  # callbacks that wait stay so
    with restored.loaded(point.load(checkpoints.run.state).tree, point, but=_KEPT):
        pass


@contextmanager
def _folder_near(folder: Path | None, otherwise: Path) -> Iterator[Path]:
    """Create a temporary folder on the disk of a folder, which need not exist."""
    if folder is None:
        yield otherwise
        return
    parents = [path for path in (folder, *folder.absolute().parents) if os.path.lexists(path)]
    with tempfile.TemporaryDirectory(prefix=".composable-check-", dir=parents[0]) as near:
        yield Path(near)


def _memory(state: State) -> dict[str, int]:
    trained = list(dict.fromkeys(state.model.parameters()))
    held = [tensors_of(list(one.state.values())) for one in base_optimizers(state.optimizers)]
    found = {
        "parameters": _size(trained),
        "gradients": _size([parameter for parameter in trained if parameter.requires_grad]),
        "optimizers": sum(map(_size, held)),
    }
    if used := memory_statistics(state.device):
        found["peak"] = used["allocated_bytes.all.peak"]
    return found


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _steps(state: State) -> int | None:
    """Return the number of steps of a whole fit, if it is known."""
    end = state.max_duration
    if end is None:
        return None
    if end.unit is TimeUnit.BATCH:
        return int(end.value)
    if end.unit is TimeUnit.EPOCH and state.epoch_length is not None:
        return int(end.value * state.epoch_length)
    return None
