"""What a run asks of an engine, whatever computes its outputs, gradients and steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import attrs
from torch import Tensor, nn

from composable.core.algorithm import Algorithm
from composable.core.batch_spec import BatchSpec
from composable.core.event import Event
from composable.core.key import Key
from composable.core.state import State
from composable.data.sharding import IndexShards
from composable.distributed.processes import Processes
from composable.distributed.shards import Shards
from composable.engines.forward import ForwardPass
from composable.engines.scaled import LossScaler
from composable.engines.shares import LossShares, StepShares
from composable.metrics import Averages
from composable.plan.dispatch import Dispatcher

__all__ = ["Engine", "Setup", "Sums"]


@attrs.frozen(kw_only=True)
class Setup:
    """The run for which an engine is prepared."""

    given: nn.Module
    """The model that the user holds."""
    algorithms: Sequence[Algorithm]
    compile: bool | Mapping[str, Any] = False
    """What `check_compile` returned."""
    resumes: bool = False
    """Whether weights will be restored from a checkpoint."""
    load: Callable[[State], None] | None = None
    """What loads the weights of a file when the model was placed."""
    fits_memory: bool = False
    """Whether a process computes its shards again in smaller parts if memory is short."""
    batch_size: int | None = None
    """The examples of a global batch, if known."""
    grad_accum: int = 1
    """The microbatches of a global batch."""


class Sums(Protocol):
    """The gradients, losses and buffers of one pass over a batch, summed over its parts."""

    @property
    def shares(self) -> StepShares | None:
        """The shares of the parts in the loss; None for the only part."""

    def begin(self, state: State) -> None:
        """Begin with the first part of this process; again, if memory was short."""

    def split(self, state: State, first: Any, count: int) -> None:
        """Learn that a batch has several microbatches.

        Args:
            state: The state with the batch.
            first: The first microbatch.
            count: Number of microbatches.
        """

    def begin_part(self, last: bool) -> None:
        """Prepare the forward and the backward pass of a part.

        Args:
            last: Whether it is the last one of this process, after which gradients are reduced.
        """

    def joined(self, loss: Tensor, value: Tensor) -> Tensor:
        """Return the loss of a part of which gradients are computed, between the two passes.

        Args:
            loss: The loss, or one of the outputs where these have gradients.
            value: The value of the loss, 0 for a part with the weight 0.
        """

    def add(self, state: State) -> None:
        """Add a shard: its gradients, which are in `.grad`, its loss and its buffers."""

    def reduce(self, state: State) -> Tensor:
        """Reduce over the processes: set `.grad` and buffers, and return the loss of the batch.

        The shares of the parts act here at the latest.
        """

    def end(self) -> None:
        """Remove what `begin_part` has added, after an error too."""


class Engine(Protocol):
    """How a run computes: `Local` is the engine of one process, and other engines replace parts.

    A strategy names its engine (`Strategy.engine`), a class that is called with the strategy, the
    shards of a batch, the signals of the process, and whether its loader has its own part only.
    """

    shards: Shards
    """The parts of a global batch, and the processes that compute them."""
    is_local: bool
    """Whether the loader yields the part of this process only."""
    shares: LossShares
    """The shares of the parts of all steps in their losses."""
    mean_gradients: ClassVar[bool] = False
    """Whether gradients are reduced to means over the processes, and not to sums."""
    reads_parts: ClassVar[bool] = False
    """Whether each process reads its part of the tensors of a checkpoint only."""
    loads_parts: ClassVar[bool] = False
    """Whether each process loads its part of the weights of a file, when the model was placed."""

    @property
    def processes(self) -> Processes:
        """The processes of the run."""

    @property
    def forward(self) -> ForwardPass:
        """Computes outputs and losses, in training, evaluation and prediction."""

    @property
    def scaler(self) -> LossScaler:
        """Scales losses, if the precision needs it."""

    def prepare(self, state: State, setup: Setup) -> State:
        """Prepare for a run, after all surgery: compile, copy, shard; and return the state."""

    def check_weights(self, state: State) -> None:
        """Check that all weights have values, once they were loaded."""

    # --- a step ---

    @property
    def backward(self) -> Callable[..., Any]:
        """Computes the gradients of a loss; given outputs and the gradients of these, of both.

        `backward(loss)`, or `backward(outputs, gradients)` with two sequences of tensors: a
        vector-Jacobian product. Gradients of a loss are scaled where the precision needs it, and
        those of outputs, which came from such a loss, are not scaled again.
        """

    @property
    def step(self) -> Callable[[State], State]:
        """Steps the optimizers, and returns the state."""

    @property
    def has_shards(self) -> bool:
        """Whether the batch of a step is a `ShardedBatch`: no process repeats its step alone."""

    def sums(self, state: State) -> Sums:
        """Return the sums of a pass over the batch of a state."""

    def equal_parts(self, count: int) -> int:
        """Return how many microbatches each process computes, of which this one has `count`."""

    def agree_on_calls(self, flag: bool) -> bool:
        """Return whether processes that call the model alike call it, if this one would."""

    # --- the data of a step, and what processes exchange with it ---

    def index_shards(self, loader: Any) -> IndexShards | None:
        """Return what splits the indices of a batch before examples are fetched, if possible."""

    def steps(
        self, batches: Iterator[Any], parts: IndexShards | None, spec: BatchSpec, count: int
    ) -> Iterator[Any]:
        """Join the batches of a loader, `count` at a time, into those of the steps."""

    def announced(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Iterate over steps as they are fetched, maybe ahead, and announce each to all processes.

        Args:
            steps: Batches, with their numbers of examples and tokens.
        """

    def loaded(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Iterate over steps that are due, with the numbers of all processes."""

    def seconds_since(self, started: float) -> float:
        """Return how long a batch took: the same on every process."""

    def begin(self, description: Mapping[str, Any], dispatcher: Dispatcher) -> None:
        """Check that the processes train the same run, and start the clock."""

    def join_requests(self, event: Event, dispatcher: Dispatcher) -> None:
        """Let the requests of callbacks at an event be the same on all processes."""

    def joining(self, dispatcher: Dispatcher) -> Callable[[Event, State], State]:
        """Return what fires an event, and then joins the requests of callbacks."""

    def failing_together(self) -> AbstractContextManager[None]:
        """Return a context in which the failure of one process ends all of them."""

    # --- evaluation and prediction ---

    def evaluating(self, averages: Averages) -> Processes:
        """Return the processes that share an evaluation: this one alone if each computes all."""

    def evaluation_batches(
        self, loader: Any, key: Key, processes: Processes, spec: BatchSpec
    ) -> Iterator[tuple[int, Any, bool]]:
        """Iterate over the batches of this process, their numbers, and whether each counts."""

    def prediction_batches(self, loader: Any, key: Key) -> Iterator[tuple[int, Any, bool]]:
        """Iterate over the batches of a prediction in the same way."""

    def check_whole(self, message: str) -> None:
        """Raise a ValueError with a message if each process has a part of the parameters."""

    # --- checkpoints ---

    @property
    def why_withdrawn(self) -> str | None:
        """Why the given model can't be used between calls; None if it can."""

    def whole(self) -> AbstractContextManager[None]:
        """Return a context in which the model has whole weights, or a `DTensor` for each."""

    def captured(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Add what the engine saves to the contents of a checkpoint, inside `whole`."""

    def writes_together(self, weights_only: bool) -> bool:
        """Return whether a checkpoint has parts of several processes."""

    def restoring(
        self, tree: Mapping[str, Any], path: str
    ) -> AbstractContextManager[dict[str, Any]]:
        """Return a context for restoring a checkpoint, with what this process restores of it.

        Raises:
            MismatchError: It does not fit the engine.
        """
