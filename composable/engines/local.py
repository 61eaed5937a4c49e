"""The engine of one process: what PyTorch does by itself."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor, nn

from composable.checkpoint.errors import MismatchError
from composable.core.batch_spec import BatchSpec
from composable.core.event import Event
from composable.core.key import Key
from composable.core.state import State
from composable.data.grouping import grouped
from composable.data.sharding import IndexShards, numbered_batches
from composable.distributed.processes import Processes
from composable.distributed.shards import Shards
from composable.distributed.signals import Signals
from composable.distributed.strategies import Strategy
from composable.engines.forward import ForwardPass
from composable.engines.initialization import Initialization, is_unset, replace_parameters
from composable.engines.modules import modules_of, trained_parameters
from composable.engines.protocol import Engine, Setup, Sums
from composable.engines.scaled import LossScaler
from composable.engines.shares import LossShares, StepShares
from composable.metrics import Averages
from composable.optim.stepping import OptimizerSteps
from composable.plan.dispatch import Dispatcher

__all__ = ["ENGINE", "Local", "LocalSums"]

ENGINE = "engine"
"""What an engine adds to a checkpoint."""


@attrs.define(eq=False)
class Local:
    """The engine of a run on one process, with one shard; other engines replace methods.

    See `Engine` for the methods.
    """

    strategy: Strategy | None = None
    shards: Shards = attrs.field(factory=lambda: Shards(1, Processes()))
    signals: Signals = attrs.field(factory=Signals)
    is_local: bool = False
    forward: ForwardPass = attrs.field(init=False, factory=ForwardPass)
    scaler: LossScaler = attrs.field(init=False)
    shares: LossShares = attrs.field(init=False)
    _initializations: list[tuple[nn.Module, Initialization]] = attrs.field(init=False, factory=list)

    mean_gradients: ClassVar[bool] = False
    reads_parts: ClassVar[bool] = False
    loads_parts: ClassVar[bool] = False
    has_shards: ClassVar[bool] = False

    @property
    def processes(self) -> Processes:
        """The processes of the run."""
        return self.shards.processes

    def prepare(self, state: State, setup: Setup) -> State:
        """Compile the forward pass if requested, in the precision of the state; place the model.

        Raises:
            ValueError: The model was built on the meta device, and nothing sets a tensor.
        """
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
        for module in modules_of(state):
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
        """Check that all weights have values: initial ones, or those of a checkpoint.

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
        """Computes the gradients of a loss, which is scaled if needed, or of outputs."""
        return self.scaler.backward if self.scaler.enabled else torch.autograd.backward

    @property
    def step(self) -> Callable[[State], State]:
        """Steps the optimizers, and returns the state."""
        return OptimizerSteps()

    def sums(self, state: State) -> Sums:
        """Return sums over microbatches."""
        return LocalSums(self.shares)

    def equal_parts(self, count: int) -> int:
        """Return `count`."""
        return count

    def agree_on_calls(self, flag: bool) -> bool:
        """Return `flag`."""
        return flag

    # --- the data of a step ---

    def index_shards(self, loader: Any) -> IndexShards | None:
        """Return None: a batch is not split."""

    def steps(
        self, batches: Iterator[Any], parts: IndexShards | None, spec: BatchSpec, count: int
    ) -> Iterator[Any]:
        """Group `count` batches at a time, if that is more than one."""
        return grouped(batches, count) if count > 1 else batches

    def announced(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Return the steps."""
        return steps

    def loaded(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Return the steps."""
        return steps

    def seconds_since(self, started: float) -> float:
        """Return how long a batch took."""
        return time.perf_counter() - started

    def begin(self, description: Mapping[str, Any], dispatcher: Dispatcher) -> None:
        """Do nothing."""

    def join_requests(self, event: Event, dispatcher: Dispatcher) -> None:
        """Do nothing."""

    def joining(self, dispatcher: Dispatcher) -> Callable[[Event, State], State]:
        """Return what fires an event."""
        return dispatcher.fire

    def failing_together(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    # --- evaluation and prediction ---

    def evaluating(self, averages: Averages) -> Processes:
        """Return this process."""
        return Processes()

    def evaluation_batches(
        self, loader: Any, key: Key, processes: Processes, spec: BatchSpec
    ) -> Iterator[tuple[int, Any, bool]]:
        """Iterate over whole batches, in turn with the other processes."""
        return numbered_batches(loader, key, processes)

    def prediction_batches(self, loader: Any, key: Key) -> Iterator[tuple[int, Any, bool]]:
        """Iterate over whole batches; each process gets at least one."""
        return numbered_batches(loader, key, self.processes, at_least_one=True)

    def check_whole(self, message: str) -> None:
        """Do nothing: this process has all parameters."""

    # --- checkpoints ---

    @property
    def why_withdrawn(self) -> str | None:
        """None: the given model can be used between calls."""
        return None

    def whole(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def captured(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return the contents as they are."""
        return dict(tree)

    def writes_together(self, weights_only: bool) -> bool:
        """Return False: rank 0 writes."""
        return False

    @contextmanager
    def restoring(self, tree: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
        """Yield a checkpoint as it is.

        Raises:
            MismatchError: It was saved with DeepSpeed.
        """
        if ENGINE in tree:
            raise MismatchError(
                f"{path} was saved with deepspeed_config, and this run has none; "
                "load_weights_only=True starts a new run from its weights."
            )
        yield dict(tree)


class LocalSums:
    """The sums over the microbatches of one process, which PyTorch adds in `.grad`."""

    def __init__(self, run: LossShares) -> None:
        self._run = run
        self.shares: StepShares | None = None

    def begin(self, state: State) -> None:
        """Forget the shares of microbatches of another size."""
        self.shares = None

    def split(self, state: State, first: Any, count: int) -> None:
        """Find the shares of microbatches."""
        if self.shares is None:
            self.shares = StepShares(self._run, state, first, count)

    def begin_part(self, last: bool) -> None:
        """Do nothing."""

    def joined(self, loss: Tensor, value: Tensor) -> Tensor:
        """Return the loss."""
        return loss

    def add(self, state: State) -> None:
        """Do nothing."""

    def reduce(self, state: State) -> Tensor:
        """Let the gradients be those of the whole batch, and return its loss."""
        loss: Tensor = state.loss  # type: ignore[assignment]  # a step has computed it
        if self.shares is None:
            return loss
        return self.shares.finish(lambda: trained_parameters(state), loss, self.shares.seen)

    def end(self) -> None:
        """Do nothing."""


_: type[Engine] = Local
