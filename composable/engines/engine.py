"""How a run computes outputs, gradients and steps: here in one process, as PyTorch does it.

A strategy names its engine (`Strategy.engine`), a class that is called with the strategy, the
shards of a batch, the signals of the process, and whether its loader has only the process's part.
The engines of several processes are derived from `Engine` and replace methods.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor, nn

from composable.batches.spec import BatchSpec
from composable.checkpoint.errors import MismatchError
from composable.core.algorithm import Algorithm
from composable.core.event import Event
from composable.core.key import Key
from composable.core.state import State
from composable.data.grouping import grouped
from composable.data.sharding import IndexShards, numbered_batches
from composable.distributed.processes import Processes
from composable.distributed.shards import Shards
from composable.distributed.signals import Signals
from composable.distributed.strategies import Strategy
from composable.engines.announcement import Announcement
from composable.engines.forward import ForwardPass
from composable.engines.initialization import Initialization, is_unset, replace_parameters
from composable.engines.modules import WrittenBuffers, check_undivided, trained_parameters
from composable.engines.scaled import LossScaler
from composable.engines.shares import LossShares, StepShares
from composable.metrics import Averages, Evaluator
from composable.optim.stepping import OptimizerSteps
from composable.plan.dispatch import Dispatcher

SAVED_AS = "engine"
"""What an engine adds to a checkpoint."""


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


class Sums:
    """The gradients, losses and buffers of one pass over a batch, summed over its parts.

    The parts are here the microbatches of one process, whose gradients PyTorch adds in `.grad`.
    """

    def __init__(self, run: LossShares) -> None:
        self._run = run
        self.shares: StepShares | None = None
        """The shares of the parts in the loss; None for the only part."""

    def begin(self, state: State) -> None:
        """Begin with the first part of this process; again, if memory was short."""
        self.shares, self._run.factor = None, 1.0

    def split(self, state: State, first: Any, count: int) -> None:
        """Learn that a batch has several microbatches.

        Args:
            state: The state with the batch.
            first: The first microbatch.
            count: Number of microbatches.
        """
        if self.shares is None:
            self.shares = StepShares(self._run, state, first, count)

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
        return loss

    def add(self, state: State) -> None:
        """Add a shard: its gradients, which are in `.grad`, its loss and its buffers."""

    def reduce(self, state: State) -> Tensor:
        """Reduce over the processes: set `.grad` and buffers, and return the loss of the batch.

        The shares of the parts act here at the latest.
        """
        loss: Tensor = state.loss  # type: ignore[assignment]  # a step has computed it
        if self.shares is None:
            return loss
        parameters, seen = partial(trained_parameters, state), self.shares.seen
        return self.shares.finish(parameters, loss, seen, on_cpu=loss.device.type == "cpu")

    def end(self) -> None:
        """Remove what `begin_part` has added, after an error too."""


@attrs.define(eq=False)
class Engine:
    """How a run on one process, with one shard, computes; other engines replace methods."""

    strategy: Strategy | None = None
    shards: Shards = attrs.field(factory=lambda: Shards(1, Processes()))
    """The parts of a global batch, and the processes that compute them."""
    signals: Signals = attrs.field(factory=Signals)
    is_local: bool = False
    """Whether the loader yields the part of this process only."""
    forward: ForwardPass = attrs.field(init=False, factory=ForwardPass)
    """Computes outputs and losses, in training, evaluation and prediction."""
    scaler: LossScaler = attrs.field(init=False)
    """Scales losses, if the precision needs it."""
    shares: LossShares = attrs.field(init=False)
    """The shares of the parts of all steps in their losses."""
    may_omit: bool = attrs.field(init=False, default=True)
    """Whether an algorithm may omit examples of a batch."""
    carries: bool = attrs.field(init=False, default=False)
    """Whether the announcement of the next batch is sent with the sums of a step."""
    announcement: Announcement | None = attrs.field(init=False, default=None)
    """The announcement of the next batch, from its fetch until it is due."""
    seconds: float | None = attrs.field(init=False, default=None)
    """How long the last batch took on rank 0, or None where each process measures its time."""
    buffers: WrittenBuffers = attrs.field(
        init=False, default=attrs.Factory(lambda self: WrittenBuffers(self.processes), True)
    )
    """The buffers that are exchanged in a step."""
    _initializations: list[tuple[nn.Module, Initialization]] = attrs.field(init=False, factory=list)

    mean_gradients: ClassVar[bool] = False
    """Whether gradients are reduced to means over the processes, and not to sums."""
    reads_parts: ClassVar[bool] = False
    """Whether each process reads its part of the tensors of a checkpoint only."""
    loads_parts: ClassVar[bool] = False
    """Whether each process loads its part of the weights of a file, when the model was placed."""
    has_shards: ClassVar[bool] = False
    """Whether the batch of a step is a `ShardedBatch`: no process repeats its step alone."""
    rescales: ClassVar[bool] = True
    """Whether gradients can be multiplied after they were computed."""

    @property
    def processes(self) -> Processes:
        """The processes of the run."""
        return self.shards.processes

    def prepare(self, state: State, setup: Setup) -> State:
        """Prepare for a run, after all surgery: compile if requested, and place the model.

        Raises:
            ValueError: The model was built on the meta device, and nothing sets a tensor; or its
                parameters are divided already.
        """
        check_undivided(state.model)
        outputs: Callable[[State], Any] = State.forward
        if setup.compile:
            from composable.engines.compiled import compile_outputs  # on use

            outputs = compile_outputs(state, setup.compile, setup.algorithms)
        self._prepare_passes(state, outputs, compiled=bool(setup.compile))
        self.place(state, setup)
        if setup.load is not None:
            setup.load(state)
        if not setup.resumes:
            self.check_weights(state)
        return state

    def place(self, state: State, setup: Setup) -> None:
        """Give memory and initial values to what was built on the meta device."""
        for module in state.modules.values():
            replace_parameters(state.optimizers, self.initialization(module, state).fill(module))

    def initialization(
        self, module: nn.Module, state: State, *, reuse: bool = False
    ) -> Initialization:
        """Return what initializes the tensors of the model, or of the loss."""
        function = getattr(self.strategy, "initialize", None)
        initialization = Initialization(module, state.key, state.device, function, reuse=reuse)
        self._initializations.append((module, initialization))
        return initialization

    def check_weights(self, state: State) -> None:
        """Check that all weights have values: initial ones, or a checkpoint's.

        Raises:
            ValueError: One has none.
        """
        pending, self._initializations = self._initializations, []
        for module, initialization in pending:
            held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            unset = [name for name in initialization.unset if name in held]
            if missing := [n for n in unset if self.processes.any(is_unset(held[n]))]:
                raise ValueError(
                    f"the {initialization.kind} was built on the meta device, and nothing sets "
                    f"{', '.join(missing[:5])}: define reset_parameters in "
                    f"{initialization.unset[missing[0]]}, pass parallel=FSDP2(initialize=...), a "
                    "function that sets the tensors of a module, or load all weights with "
                    "load_path."
                )

    def _prepare_passes(
        self, state: State, outputs: Callable[[State], Any], *, compiled: bool = False
    ) -> None:
        forward = ForwardPass(outputs, reads_with_graph=compiled)
        self.forward = forward.in_precision(state.precision, state.device)
        self.scaler = LossScaler(state.precision, state.device, on_all=self.any_process)

    def any_process(self, flag: Tensor) -> Tensor:
        """Return the largest value of a flag of gradients that only this process has."""
        return flag

    # --- a step ---

    @property
    def backward(self) -> Callable[..., Any]:
        """Computes the gradients of a loss; given outputs and the gradients of these, of both.

        `backward(loss)`, or `backward(outputs, gradients)` with two sequences of tensors: a
        vector-Jacobian product. Gradients of a loss are scaled where the precision needs it, and
        gradients of outputs, which came from such a loss, are not scaled again.
        """
        return self.scaler.backward if self.scaler.enabled else torch.autograd.backward

    @property
    def step(self) -> Callable[[State], State]:
        """Steps the optimizers, and returns the state."""
        return OptimizerSteps()

    def sums(self, state: State) -> Sums:
        """Return the sums of a pass over the batch of a state."""
        return Sums(self.shares)

    def equal_parts(self, count: int) -> int:
        """Return how many microbatches each process computes, of which this one has `count`."""
        return count

    def agree_on_calls(self, flag: bool) -> bool:
        """Return whether processes that call the model alike call it, if this one would."""
        return flag

    # --- the data of a step, and what processes exchange with it ---

    def index_shards(self, loader: Any) -> IndexShards | None:
        """Return what splits the indices of a batch before examples are fetched, if possible."""

    def steps(
        self, batches: Iterator[Any], parts: IndexShards | None, spec: BatchSpec, count: int
    ) -> Iterator[Any]:
        """Join the batches of a loader, `count` at a time, into the batches of the steps."""
        return grouped(batches, count) if count > 1 else batches

    def announced(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Iterate over steps as they are fetched, maybe ahead, and announce each to all processes.

        Args:
            steps: Batches, with their numbers of examples and tokens.
        """
        return steps

    def loaded(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Iterate over steps that are due, with the numbers of all processes."""
        return steps

    def begin(self, description: Mapping[str, Any], dispatcher: Dispatcher) -> None:
        """Check that the processes train the same run, and start the clock."""

    def join_requests(self, event: Event, dispatcher: Dispatcher) -> None:
        """Let the requests of callbacks at an event be the same on all processes."""

    def failing_together(self) -> AbstractContextManager[None]:
        """Return a context in which the failure of one process ends all of them."""
        return nullcontext()

    # --- evaluation and prediction ---

    def evaluating(self, averages: Averages) -> Processes:
        """Return the processes that share an evaluation: this one alone if each computes all."""
        return Processes()

    def evaluation_batches(
        self, evaluator: Evaluator, key: Key, processes: Processes, spec: BatchSpec
    ) -> Iterator[tuple[int, Any, bool]]:
        """Iterate over the batches of this process, their numbers, and whether each counts."""
        return numbered_batches(evaluator.dataloader, key, processes, evaluator.batches)

    def prediction_batches(self, loader: Any, key: Key) -> Iterator[tuple[int, Any, bool]]:
        """Iterate over whole batches in the same way; each process gets at least one."""
        return numbered_batches(loader, key, self.processes, at_least_one=True)

    def check_whole(self, message: str) -> None:
        """Raise a ValueError with a message if each process has a part of the parameters."""

    # --- checkpoints ---

    @property
    def can_undo(self) -> bool:
        """Whether a step can be undone by restoring what this process has of the run."""
        return not self.processes.several

    @property
    def why_withdrawn(self) -> str | None:
        """Why the given model can't be used between calls; None if it can."""
        return None

    def whole(self) -> AbstractContextManager[None]:
        """Return a context in which the model has whole weights, or a `DTensor` for each."""
        return nullcontext()

    def captured(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Add what the engine saves to the contents of a checkpoint, inside `whole`."""
        return dict(tree)

    def writes_together(self, weights_only: bool) -> bool:
        """Return whether a checkpoint has parts of several processes."""
        return False

    @contextmanager
    def restoring(self, tree: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
        """Yield what this process restores of a checkpoint.

        Raises:
            MismatchError: It does not fit the engine, such as one that was saved with DeepSpeed.
        """
        if SAVED_AS in tree:
            raise MismatchError(
                f"{path} was saved with deepspeed_config, and this run has none; "
                "load_weights_only=True starts a new run from its weights."
            )
        yield dict(tree)
