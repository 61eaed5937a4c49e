"""What can go wrong in a run, and what is done about it: losses, memory, signals, workers."""

import logging
import math
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.core._notes import add_note

__all__ = [
    "NonFiniteGuard",
    "NonFiniteLossError",
    "NonFiniteLossWarning",
    "Preempted",
    "heed_signals",
]

log = logging.getLogger("composable")

POLICIES = ("raise", "skip", "rollback", "ignore")
_MOST_IN_A_ROW = 10
_MOST_HELD = 64


class NonFiniteLossError(RuntimeError):
    """The loss of a batch was NaN or infinite."""

    def __init__(self, message: str, batch: int) -> None:
        super().__init__(message)
        self.batch = batch


class NonFiniteLossWarning(UserWarning):
    """A batch whose loss was NaN or infinite was not trained on."""


class Preempted(SystemExit):
    """A run was ended by SIGTERM, after its last batch was saved. The exit code is 143."""


@attrs.define(eq=False)
class NonFiniteGuard:
    """Looks for losses that are NaN or infinite.

    Args:
        policy: "raise", "skip", "rollback" or "ignore".
        at_once: Look at each loss before the optimizer steps. On a GPU that makes the host wait, so
            for "raise" losses are looked at there some batches later, and before every save.
    """

    policy: str
    at_once: bool
    skipped: int = 0
    """How many batches were not trained on."""
    rolled_back: int = 0
    """How often the run went back to a checkpoint."""
    avoided: set[int] = attrs.field(factory=set)
    """Batches that will not be trained on, since their losses were not finite before."""
    _in_a_row: int = 0
    _held: list[tuple[int, Tensor]] = attrs.field(factory=list)

    def passes(self, loss: Tensor, batch: int) -> bool:
        """Whether the optimizer may step.

        Raises:
            NonFiniteLossError: It may not, and the run can't go on by skipping this batch.
        """
        if self.policy == "ignore":
            return True
        if not self.at_once:
            self._held.append((batch, loss))
            if len(self._held) >= _MOST_HELD:
                self.look()
            return True
        value = loss.item()
        if math.isfinite(value):
            self._in_a_row = 0
            return True
        if self.policy != "skip":
            raise _error(value, batch)
        self.skip(value, batch)
        return False

    def look(self) -> None:
        """Look at the losses that were held back.

        Raises:
            NonFiniteLossError: One was not finite. It has the first of these batches.
        """
        held, self._held = self._held, []
        if not held:
            return
        values = torch.stack([loss.detach().reshape(()).float() for _, loss in held]).tolist()
        for (batch, _), value in zip(held, values, strict=True):
            if not math.isfinite(value):
                raise _error(value, batch)

    def skip(self, value: float, batch: int) -> None:
        """Count a batch that is skipped."""
        self.skipped += 1
        self._in_a_row += 1
        if self._in_a_row >= _MOST_IN_A_ROW:
            raise NonFiniteLossError(
                f"the losses of {_MOST_IN_A_ROW} batches in a row were not finite, up to batch "
                f"{batch}: skipping more won't help. Lower the learning rate, clip gradients, or "
                "go back to an earlier checkpoint.",
                batch,
            )
        warnings.warn(
            f"the loss of batch {batch} was {value}: the batch is not trained on "
            f"({self.skipped} so far).",
            NonFiniteLossWarning,
            stacklevel=2,
        )

    def roll_back(self, error: NonFiniteLossError) -> None:
        """Count a batch that will be avoided after the run has gone back.

        Raises:
            NonFiniteLossError: The run went back too often.
        """
        self.rolled_back += 1
        if self.rolled_back > _MOST_IN_A_ROW:
            raise error
        self.avoided.add(error.batch)
        self._held.clear()

    def state_dict(self) -> dict[str, Any]:
        """What it must remember."""
        return {
            "skipped": self.skipped,
            "rolled_back": self.rolled_back,
            "avoided": sorted(self.avoided),
            "in_a_row": self._in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.skipped, self.rolled_back = state["skipped"], state["rolled_back"]
        self.avoided, self._in_a_row = set(state["avoided"]), state["in_a_row"]


def _error(value: float, batch: int) -> NonFiniteLossError:
    return NonFiniteLossError(
        f"the loss of batch {batch} was {value}. Look at that batch (the run repeats it from the "
        "checkpoint before), lower the learning rate or clip gradients; nonfinite_loss='skip' "
        "leaves such batches out, and 'rollback' goes back to the last checkpoint too.",
        batch,
    )


# --- memory ---


@attrs.frozen(eq=False)
class Buffers:
    """The buffers of a model as they were before a forward pass that may come to nothing."""

    copies: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, model: nn.Module) -> "Buffers":
        """Copies of the buffers."""
        return cls([(buffer, buffer.clone()) for buffer in model.buffers()])

    def put_back(self) -> None:
        """Write the copies back."""
        with torch.no_grad():
            for buffer, copy in self.copies:
                buffer.copy_(copy)


def halved(size: int, error: torch.OutOfMemoryError) -> int:
    """Half the size of a microbatch that was too large for the memory.

    Raises:
        torch.OutOfMemoryError: It has one example.
    """
    if size <= 1:
        add_note(error, "a microbatch of one example is too large for the memory.")
        raise error
    smaller = (size + 1) // 2
    log.warning("out of memory with microbatches of %d examples: trying %d", size, smaller)
    return smaller


# --- signals ---


@contextmanager
def heed_signals(note: Callable[[int], None]) -> Iterator[None]:
    """Tell of the first SIGTERM or SIGINT, and end at once at the second.

    Only in the main thread, where Python handles signals; handlers come back as they were. A
    signal that is ignored stays so.

    Args:
        note: Called with the number of the first signal, between two lines of Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker of a DataLoader, which was forked with this handler
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if seen:
            raise interruption(number)
        seen.append(number)
        log.warning(
            "%s: the batch at hand is finished and saved; once more ends the run at once",
            signal.Signals(number).name,
        )
        note(number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    ours = [n for n, old in before.items() if old not in (signal.SIG_IGN, None)]
    try:
        for number in ours:
            signal.signal(number, handle)
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def interruption(number: int) -> BaseException:
    """What ends a run after a signal: a KeyboardInterrupt, or an exit with 128 + the signal."""
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return Preempted(128 + number)


# --- workers ---


def explain_dead_worker(error: Exception, loader: object) -> None:
    """Say what to do about a DataLoader whose worker died.

    A worker that dies while it hands over a batch ends the connection: PyTorch says no more.
    """
    cut = isinstance(error, (ConnectionError, EOFError)) and bool(getattr(loader, "num_workers", 0))
    if cut or "DataLoader worker" in str(error):
        add_note(
            error,
            "a worker process of the loader died: most often the memory (or the shared memory of "
            "a container) is full. Use fewer workers or smaller batches; num_workers=0 shows an "
            "error of the dataset itself. The run goes on from its last checkpoint.",
        )
