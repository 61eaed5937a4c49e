"""Several processes in a run: what they exchange, and the gradients of their shards."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import chain
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, nn

from composable.core.control import Control
from composable.core.event import Event
from composable.core.loss_mean import ExampleCounter
from composable.core.state import State
from composable.data.grouping import Examples, ShardedBatch, batches_of
from composable.distributed.buckets import (
    OverlappedSum,
    buckets_of,
    flat_gradients,
    write_gradients,
)
from composable.distributed.deepspeed import DeepSpeedEngine
from composable.distributed.processes import ProcessError, Processes
from composable.distributed.reduction import TreeSum, all_reduce, all_reduce_exactly
from composable.distributed.shards import Shards
from composable.metrics import Averages
from composable.plan.dispatch import Dispatcher
from composable.resume.changes import compare
from composable.trainer.guards import LOADER_ERRORS, Buffers
from composable.trainer.loss_shares import LossShares, StepShares
from composable.trainer.microbatches import Microbatches, fit_memory
from composable.trainer.parameters import trained_parameters
from composable.trainer.signals import Signals

__all__ = ["Parallel", "reduce_gradients"]

_END = object()


@attrs.define(eq=False)
class Parallel:
    """The processes of a run, and how they work together.

    Args:
        shards: The shards of a global batch.
        exact: Sum gradients in a fixed order.
        signals: Those of this process.
        divided: Whether each process has a part of the parameters only. Their gradients are then
            reduced in the backward pass, and all processes call the model equally often.
    """

    shards: Shards
    exact: bool
    signals: Signals
    divided: bool = False
    engine: DeepSpeedEngine | None = None
    """Computes gradients and steps in the place of PyTorch and the optimizers."""
    before_backward: Callable[[bool], None] | None = None
    """Called before each backward pass, with whether it is the last one of the step."""
    sums: "_Sums | None" = None
    """Those of the step in progress."""
    seconds: float = 0.0
    """How long the last batch took, on rank 0."""
    user_events: frozenset[Event] = frozenset()
    """The events to which callbacks of the user listen, on any process."""
    _exchanged: float = attrs.field(factory=time.perf_counter)

    @property
    def processes(self) -> Processes:
        """The processes of the run."""
        return self.shards.processes

    # --- what is exchanged ---

    def together(self, loaded: Iterator[Any]) -> Iterator[Any]:
        """Iterate over batches as long as any process has one.

        The numbers of examples and tokens are those of all processes. A process without a further
        batch repeats its last one, with the weight 0.

        Args:
            loaded: Batches of shards, with their numbers of examples and tokens.
        """
        last: Any = None
        while True:
            one, ended = self._fetch(loaded)
            batch: Any
            batch, samples, tokens = (None, 0, 0) if one is _END else one
            own = samples
            present, samples, tokens, any_ended = self._exchange(
                one is not _END, samples, tokens, ended is not None
            )
            if any_ended:
                raise ended or ProcessError("a signal has ended the loader of another process")
            if not present:
                return
            if one is not _END:
                last = batch
            elif last is None:
                raise ProcessError(
                    f"rank {self.processes.rank} has no batch in this epoch, and other processes "
                    "have; every process needs one of its own."
                )
            else:
                batch = attrs.evolve(last, empty=(True,) * len(last.batches))
            yield attrs.evolve(batch, examples=Examples(own, samples)), samples, tokens

    def _fetch(self, loaded: Iterator[Any]) -> tuple[Any, Exception | None]:
        """Return the next batch; if a signal has ended the loader's workers, an error."""
        try:
            return next(loaded, _END), None
        except LOADER_ERRORS as error:
            if self.signals.arrived is None:
                raise
            return _END, error

    def _exchange(
        self, present: bool, samples: int, tokens: int, ended: bool
    ) -> tuple[bool, int, int, bool]:
        """Return whether any process has a batch, and the sums of examples and of tokens.

        The last value is whether a signal has ended the loader of any process.
        """
        now = time.perf_counter()
        elapsed, self._exchanged = now - self._exchanged, now
        if not self.processes.several:
            self.seconds = elapsed
            return present, samples, tokens, ended
        table = torch.zeros(self.processes.size, 6, dtype=torch.int64)
        table[self.processes.rank] = torch.tensor(
            [present, samples, tokens, self.signals.arrived or 0, int(elapsed * 1e9), ended]
        )
        dist.all_reduce(table)
        presents, all_samples, all_tokens, signals, elapsed_times, all_ended = table.T.tolist()
        self.signals.received = max(signals) or None
        self.seconds = elapsed_times[0] / 1e9
        return any(presents), sum(all_samples), sum(all_tokens), any(all_ended)

    def begin(self, description: Mapping[str, Any], dispatcher: Dispatcher) -> None:
        """Check that the processes train the same run, and start the clock.

        Args:
            description: The description of the run.
            dispatcher: It has the callbacks, which may differ: only rank 0 has loggers.

        Raises:
            ProcessError: The runs differ.
        """
        self.check_same({name: description[name] for name in _SAME if name in description})
        listened = self.processes.maximum([int(one in dispatcher.user_events) for one in Event])
        self.user_events = frozenset(one for one, any_ in zip(Event, listened, strict=True) if any_)
        self._exchanged = time.perf_counter()

    def begin_backward(self, last: bool) -> None:
        """Prepare a backward pass.

        Args:
            last: Whether it is the last one of the step, after which gradients are reduced.
        """
        if self.before_backward is not None:
            self.before_backward(last)
        elif last and self.sums is not None:
            self.sums.begin_last_backward()

    def requests_can_differ(self, event: Event) -> bool:
        """Return whether callbacks of the user may have requested something on some processes only.

        Args:
            event: The event after which requests are joined: the start of training; the end of a
                batch, an epoch or an iteration, for requests at all events before it; or a later
                one.
        """
        if event is Event.FIT_START:  # an evaluation before it may have had requests
            return bool(self.user_events)
        if event in _LATE:
            return bool(self.user_events & (_LATE | _EARLY_OR_LATE))
        return bool(self.user_events - _LATE)

    def join_requests(self, dispatcher: Dispatcher) -> None:
        """Let the requests of the callbacks of each process be those of all."""
        if not self.processes.several:
            return
        requests = torch.tensor([int(one in dispatcher.requests) for one in Control])
        dist.all_reduce(requests, op=dist.ReduceOp.MAX)
        for request, wanted in zip(Control, requests.tolist(), strict=True):
            if wanted:
                dispatcher.request(request)

    @property
    def equal_count(self) -> Callable[[int], int] | None:
        """Return the largest of the numbers of the processes, if they must call a model alike."""
        return (lambda count: self.processes.maximum([count])[0]) if self.divided else None

    def any_process(self, flag: Tensor) -> Tensor:
        """Return the largest value of a tensor on any process."""
        if self.divided:
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return flag

    def evaluating(self, averages: Averages) -> Processes | None:
        """Return the processes that share an evaluation; None if each computes all of it.

        The values of a metric that is an object cannot be added. Those of torchmetrics join the
        states of all processes themselves.
        """
        if averages.needs_all or not self.processes.several:
            return None
        return self.processes

    def agree(self, flag: bool) -> bool:
        """Return whether a flag is true on any process."""
        return bool(self.processes.maximum([int(flag)])[0])

    # --- weights ---

    def broadcast(self, state: State) -> None:
        """Copy the weights and buffers of rank 0 to every process.

        Raises:
            ProcessError: The models differ.
        """
        if not self.processes.several:
            return
        shapes = {n: [*p.shape, str(p.dtype)] for n, p in state.model.named_parameters()}
        self.check_same({"seed": state.key.seed, "parameters": shapes})
        with torch.no_grad():
            for tensor in _tensors(state):
                held = tensor.detach().contiguous()
                dist.broadcast(held, 0)
                tensor.copy_(held)

    def check_same(self, what: Mapping[str, Any]) -> None:
        """Check that values are the same on all processes.

        Args:
            what: The values by name, plain data.

        Raises:
            ProcessError: They are not.
        """
        texts = {name: json.dumps(value, sort_keys=True) for name, value in what.items()}
        digests = {name: blake2b(one.encode()).hexdigest() for name, one in texts.items()}
        first, *others = self.processes.gather(digests)
        differ = [
            (name, rank)
            for rank, other in enumerate(others, 1)
            for name in first
            if other.get(name) != first[name]
        ]
        if not differ:
            return
        name, rank = differ[0]
        values = self.processes.gather(what.get(name))
        path, before, now = next(compare(values[0], values[rank], name))
        raise ProcessError(
            f"{path} is {str(before)[:200]} on rank 0 and {str(now)[:200]} on rank {rank}: every "
            "process must build the same run, from the same code and seed."
        )


_SAME = (
    *("id", "seed", "max_duration", "epoch_length", "algorithms", "optimizers", "schedulers"),
    *("hyperparameters", "modules", "loss_fn", "options", "torch"),
)


def _modules(state: State) -> list[nn.Module]:
    """Return the model, and the module that computes the loss if there is one."""
    return [one for one in (state.model, state.loss_module) if one is not None]


def _tensors(state: State) -> Iterator[Tensor]:
    for module in _modules(state):
        yield from chain(module.parameters(), module.buffers())


# --- gradients ---


def reduce_gradients(
    gradients: Callable[..., State],
    parallel: Parallel,
    shares: LossShares,
    microbatches: Microbatches,
) -> Callable[[State], State]:
    """Sum the gradients of the shards of a global batch, over all processes.

    Every shard starts from the same buffers, such as the running statistics of batch norm, which
    are then averaged.
    """

    def reduced(state: State) -> State:
        batch = state.batch
        if not isinstance(batch, ShardedBatch):  # a step by itself, such as that of a replay
            return gradients(state)
        # An engine may reduce the gradients of a microbatch at once: it needs its share before.
        is_split = batch.shards.count > 1 or (parallel.engine is not None and microbatches.split)
        step = _step_shares(shares, state, parallel) if is_split else None
        sums = parallel.sums = _Sums(parallel, step, overlaps=not microbatches.auto)

        def add_shards(state: State) -> State:
            sums.begin(state)
            return each_shard(state, step, sums)

        # Each process fits its own shards into its memory.
        add = fit_memory(add_shards, microbatches) if microbatches.auto else add_shards
        try:
            state = add(state)
            return state.evolve_unchecked(loss=sums.finish(state))
        finally:
            parallel.sums = None
            sums.end()

    def each_shard(state: State, step: StepShares | None, sums: "_Sums") -> State:
        whole, key, own = state.batch, state.key, state.loss_fn
        before = Buffers.of(state)
        for number, batch, loss_fn, empty in zip(
            whole.numbers, whole.batches, whole.loss_fns, whole.empty, strict=True
        ):
            if number != whole.shards.own.start:
                before.restore()
            loss_fn, shard = loss_fn or own, key.of_batch(number)
            part = state.evolve_unchecked(batch=batch, loss_fn=loss_fn, key=shard)
            state = gradients(part, 0, step, number == whole.shards.own[-1], empty)
            sums.add(state)
        return state.evolve_unchecked(batch=whole, loss_fn=own, key=key)

    return reduced


def _step_shares(shares: LossShares, state: State, parallel: Parallel) -> StepShares:
    """Return the shares of the parts of a step.

    The number of examples was exchanged when the batch was loaded; algorithms may have omitted some
    since. Any other weight is exchanged now, or with the gradients.
    """
    batch: ShardedBatch = state.batch
    counts_examples = isinstance(shares.weights.of_batches(state), ExampleCounter)
    return StepShares(
        shares,
        state,
        batches_of(batch)[0],
        batch.shards.count,
        exchange=lambda weight: _sum_of(weight, parallel),
        known=batch.examples if counts_examples and parallel.engine is None else None,
        size=parallel.processes.size if parallel.divided else 1,
        ways="second" if parallel.engine is None else "first",
    )


def _sum_of(weight: Any, parallel: Parallel) -> Any:
    """Return the sum of a number or a tensor over the processes."""
    if not parallel.processes.several:
        return weight
    if isinstance(weight, Tensor):
        return parallel.processes.sum(weight)
    total = parallel.processes.sum(torch.tensor(weight, dtype=torch.float64)).item()
    return int(total) if total == int(total) else total


class _Sums:
    """The sums over the shards: of gradients, losses and buffers.

    Args:
        parallel: The processes.
        step: The shares of the shards; None for a single shard.
        overlaps: Whether messages may be sent before all gradients are computed.
    """

    overlapped: OverlappedSum | None = None

    def __init__(self, parallel: Parallel, step: StepShares | None, *, overlaps: bool) -> None:
        self.parallel, self.step, self.overlaps = parallel, step, overlaps
        self.several = parallel.processes.several
        self.reduce = all_reduce_exactly if parallel.exact else all_reduce

    def begin(self, state: State) -> None:
        """Start with the first shard of this process."""
        if self.step is not None:
            self.step.restart()
        self.parameters = trained_parameters(state)
        buffers = dict.fromkeys(chain(*(module.buffers() for module in _modules(state))))
        self.buffers = [one for one in buffers if one.is_floating_point()]
        self.on_cpu = state.device.type == "cpu"
        self.present = [False] * len(self.parameters)
        self.reports, self.gradients = TreeSum(), TreeSum()
        if self.several and not (self.parallel.exact or self.parallel.divided):
            self.overlapped = OverlappedSum(self.parameters, self.parallel.processes)

    def begin_last_backward(self) -> None:
        """Send gradients as soon as they are computed."""
        if self.overlapped is not None and self.overlaps:
            self.overlapped.arm()

    def end(self) -> None:
        """Remove what `begin_last_backward` has added, after an error too."""
        if self.overlapped is not None:
            self.overlapped.disarm()

    def add(self, state: State) -> None:
        """Add the gradients of a shard, which are in `.grad`, its loss and its buffers."""
        self.dtype = state.loss.dtype  # type: ignore[union-attr]
        weight = torch.zeros_like(state.loss) if self.step is None else self.step.take(state.loss)  # type: ignore[arg-type]
        report = [state.loss, weight, *self.buffers]
        self.reports.add([torch.cat([one.double().reshape(-1) for one in report])])  # type: ignore[union-attr]
        if not self.parallel.exact:
            return
        grads = [p.grad for p in self.parameters]
        self.present = [a or b is not None for a, b in zip(self.present, grads, strict=True)]
        flats = [
            flat_gradients([self.parameters[i] for i in kind], [grads[i] for i in kind])
            for kind in self._kinds
        ]
        self.gradients.add(flats)
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def _kinds(self) -> list[list[int]]:
        """The numbers of the parameters of each dtype and device."""
        return buckets_of(self.parameters, _ALL)

    def finish(self, state: State) -> Tensor:
        """Sum over the processes, set `.grad` and buffers, and return the loss of the batch."""
        omitted = 0.0 if self.step is None else self.step.omitted
        report, counts = self.reports.value[0], [float(omitted)]
        if self.overlapped is not None:
            report, counts = self.overlapped.finish(report, counts)
        elif self.parallel.exact:
            report, counts = self._sum_reports(report, counts + [float(p) for p in self.present])
            for kind, flat in zip(self._kinds, self.gradients.value, strict=True):
                total = self.reduce(flat, self.parallel.processes)
                present = [bool(counts[1 + i]) for i in kind]
                write_gradients([self.parameters[i] for i in kind], total, present)
        else:  # gradients are in `.grad` already
            report, counts = self._sum_reports(report, counts)
        self._average_buffers(report[2:])
        loss = report[0] / (self.parallel.processes.size if self.parallel.divided else 1)
        if self.step is not None:
            loss = self.step.finish(state, loss, report[1], omitted=counts[0])
        return loss.to(self.dtype)

    def _sum_reports(self, report: Tensor, counts: list[float]) -> tuple[Tensor, list[float]]:
        """Sum a report, and counts that are needed on the CPU, over the processes."""
        if not self.several:
            return report, counts
        processes, length = self.parallel.processes, len(report)
        if self.on_cpu:  # in one message
            both = self.reduce(torch.cat([report, report.new_tensor(counts)]), processes)
            return both[:length], both[length:].tolist()
        counted = processes.sum(torch.tensor(counts, dtype=torch.float64))
        return self.reduce(report, processes), counted.tolist()

    def _average_buffers(self, sums: Tensor) -> None:
        means = sums / self.parallel.shards.count
        sizes = [buffer.numel() for buffer in self.buffers]
        with torch.no_grad():
            for buffer, mean in zip(self.buffers, means.split_with_sizes(sizes), strict=True):
                buffer.copy_(mean.view_as(buffer))


_ALL = 2**63


_LATE = frozenset(
    event
    for event in Event
    if event in (Event.LOG, Event.BEFORE_SAVE, Event.AFTER_SAVE)
    or event.name.startswith("EVAL_")
    or event.name.endswith("_CHECKPOINT")
)
"""The events between the end of a batch, epoch or iteration and the next one."""
_EARLY_OR_LATE = frozenset((Event.BEFORE_SCHEDULER_STEP, Event.AFTER_SCHEDULER_STEP))
