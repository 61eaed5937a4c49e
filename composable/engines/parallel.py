"""What engines of several processes or shards share: data, messages, evaluation."""

import json
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from hashlib import blake2b
from itertools import chain
from typing import Any, ClassVar

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from composable.batches.spec import BatchSpec
from composable.core.control import Control
from composable.core.event import Event
from composable.core.state import State
from composable.data.dead_workers import LOADER_ERRORS
from composable.data.fetching import is_map_style
from composable.data.grouping import Examples, ShardedBatch, shards_of, split_into_shards
from composable.data.sharding import IndexShards
from composable.distributed.processes import ProcessError, Processes
from composable.distributed.starting import failing_together
from composable.engines.announcement import Announcement
from composable.engines.engine import Engine, Setup, Sums
from composable.engines.pace import Pace
from composable.engines.sums import ShardSums
from composable.metrics import Averages
from composable.optim.multi import base_optimizers
from composable.optim.muon import DEFAULT, Muon
from composable.plan.compatibility import occurrences
from composable.plan.dispatch import Dispatcher
from composable.resume.changes import differing_entries

_END = object()


@attrs.define(eq=False)
class Parallel(Engine):
    """The shards of a global batch, and the processes that compute them."""

    joined_events: frozenset[Event] = attrs.field(init=False, default=frozenset())
    """The events after which the requests of processes may differ."""
    pace: Pace = attrs.field(
        init=False, default=attrs.Factory(lambda self: Pace(self.processes), True)
    )
    """How long each process computes in a step."""
    _announced: float = attrs.field(init=False, factory=time.perf_counter)

    has_shards: ClassVar[bool] = True

    def prepare(self, state: State, setup: Setup) -> State:
        """Learn what algorithms may do, and place the model."""
        parts = [one.algorithm for given in setup.algorithms for one in occurrences(given)]
        # On a GPU, reading what has arrived with the sums would wait for them.
        self.carries = self.processes.several and state.device.type == "cpu"
        self.may_omit = any("batch" in part.writes or not part.declares for part in parts)
        return super().prepare(state, setup)

    def place(self, state: State, setup: Setup) -> None:
        """Copy the weights of rank 0, unless they will be restored.

        Raises:
            ProcessError: The models differ.
        """
        super().place(state, setup)
        if self.processes.several and not setup.resumes:
            self.check_same_models(state)
            for module in state.modules.values():
                self.broadcast(chain(module.parameters(), module.buffers()))
        self.share_work(state)

    def share_work(self, state: State) -> None:
        """Let the processes share the work of optimizers that can divide it."""
        if self.processes.several:
            for optimizer in base_optimizers(state.optimizers):
                if isinstance(optimizer, Muon):
                    optimizer.process_group = DEFAULT

    def sums(self, state: State) -> Sums:
        """Return sums over the shards; over the microbatches of a batch that is not sharded."""
        if isinstance(state.batch, ShardedBatch):
            return self.shard_sums(state)
        return Sums(self.shares)  # a step by itself, such as in a replay

    def shard_sums(self, state: State) -> Sums:
        """Return the sums over the shards of a batch."""
        return ShardSums(self, state)

    # --- the data of a step ---

    def index_shards(self, loader: Any) -> IndexShards | None:
        by_index = is_map_style(loader) and not self.is_local
        return IndexShards(self.shards) if by_index and loader._auto_collation else None

    def steps(
        self, batches: Iterator[Any], parts: IndexShards | None, spec: BatchSpec, count: int
    ) -> Iterator[ShardedBatch]:
        """Join the shards of this process into the batches of the steps."""
        shards = self.shards.alone if self.is_local else self.shards
        if parts is not None:
            split = parts.joined(batches)
        else:
            split = (split_into_shards(batch, spec, shards) for batch in batches)
        return shards_of(split, shards, count, numbered_as=self.shards)

    def announced(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Iterate over steps, and tell all processes their numbers of examples and tokens.

        After the last step of this process there are steps without a batch: other processes may
        have one.
        """
        while True:
            one, ended = self._fetch(steps)
            batch, samples, tokens = (None, 0, 0) if one is _END else one
            yield batch, samples, tokens, self._announce(batch is not None, samples, tokens, ended)

    def loaded(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Iterate over steps as long as any process has one.

        Examples and tokens are counted over all processes. A process without a further batch
        repeats its last one, with the weight 0.
        """
        last: Any = None
        for batch, own, _, announcement in steps:
            present, samples, tokens = self._receive(announcement)
            if not present:
                return
            if batch is not None:
                last = batch
            elif last is None:
                raise ProcessError(
                    f"rank {self.processes.rank} has no batch in this epoch, but other processes "
                    "have; every process needs at least one."
                )
            else:
                batch = attrs.evolve(last, empty=(True,) * len(last.batches))
            yield attrs.evolve(batch, examples=Examples(own, samples)), samples, tokens

    def _fetch(self, steps: Iterator[Any]) -> tuple[Any, Exception | None]:
        """Return the next batch; if a signal has ended the loader's workers, an error."""
        try:
            return next(steps, _END), None
        except LOADER_ERRORS as error:
            if self.signals.arrived is None:
                raise
            return _END, error

    # --- messages ---

    def _announce(
        self, present: bool, samples: int, tokens: int, ended: Exception | None
    ) -> Announcement:
        """Tell all processes whether there is a batch, its numbers, and what has happened since."""

        def own() -> list[int]:
            now, before = time.perf_counter(), self._announced
            self._announced, signal = now, self.signals.arrived or 0
            since = [int((now - before) * 1e9), self.pace.lap()]
            changes = [bool(ended), self.buffers.changes]
            return [1 + present, samples, tokens, signal, *since, *changes]

        self.announcement = Announcement(own, self.processes, ended)
        if not self.carries:
            self.announcement.send()
        return self.announcement

    def _receive(self, announcement: Announcement) -> tuple[bool, int, int]:
        """Return whether any process has a batch, and the sums of examples and of tokens.

        Raises:
            ProcessError: A signal has ended the loader of another process.
        """
        self.announcement = None
        with self.pace.stopped():
            numbers = announcement.wait()
        presents, samples, tokens, signals, seconds, taken, ended, changes = numbers
        if self.processes.several:
            self.signals.received = max(signals) or None
            self.seconds = seconds[0] / 1e9
            self.pace.compare(taken)
        if any(changes):
            self.buffers.forget()
        if any(ended):
            raise announcement.ended or ProcessError(
                "a signal has ended the loader of another process"
            )
        return max(presents) > 1, sum(samples), sum(tokens)

    def failing_together(self) -> AbstractContextManager[None]:
        return failing_together(lambda: self.signals.received is not None)

    def begin(self, description: Mapping[str, Any], dispatcher: Dispatcher) -> None:
        """Check that the processes train the same run, and start the clock.

        Args:
            description: The description of the run.
            dispatcher: It has the callbacks, which may differ: only rank 0 has loggers.

        Raises:
            ProcessError: The runs differ.
        """
        same = {name: description[name] for name in _SAME if name in description}
        listened = [int(one in dispatcher.user_events) for one in Event]
        first, *others = table = self.processes.table([_digest(same), *listened])
        if any(other[0] != first[0] for other in others):
            self.check_same(same)
        columns = zip(*(row[1:] for row in table), strict=True)
        self.joined_events = joined_events(
            {one for one, listens in zip(Event, columns, strict=True) if any(listens)}
        )
        self._announced = time.perf_counter()

    def join_requests(self, event: Event, dispatcher: Dispatcher) -> None:
        if event in self.joined_events:
            own = [int(control in dispatcher.requests) for control in Control]
            with self.pace.stopped():
                joined = self.processes.maximum(own)
            for request, wanted in zip(Control, joined, strict=True):
                if wanted:
                    dispatcher.request(request)

    def check_same_models(self, state: State) -> None:
        """Check that the processes have built the same model.

        Raises:
            ProcessError: The models differ.
        """
        shapes = {n: [*p.shape, str(p.dtype)] for n, p in state.model.named_parameters()}
        self.check_same({"seed": state.key.seed, "parameters": shapes})

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy tensors of rank 0, such as weights and buffers, to every process."""
        with torch.no_grad():
            for tensor in tensors:
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
        first, *others = self.processes.gather({name: _digest(one) for name, one in what.items()})
        differ = [
            (name, rank)
            for rank, other in enumerate(others, 1)
            for name in first
            if other.get(name) != first[name]
        ]
        if not differ:
            return
        name, rank = differ[0]
        told = self.processes.gather([what.get(name), socket.gethostname()])
        (first, host), (other, place) = told[0], told[rank]
        path, before, now = next(differing_entries(first, other, name))
        raise ProcessError(
            f"{path} is {str(before)[:200]} on rank 0 ({host}), and {str(now)[:200]} on rank "
            f"{rank} ({place}): every process must build the same run, from the same code, data "
            "and seed."
        )

    # --- evaluation ---

    def evaluating(self, averages: Averages) -> Processes:
        """Return the processes that share an evaluation: this one alone if each computes all.

        The values of a metric that is an object cannot be added. Metrics of torchmetrics join the
        states of all processes themselves.
        """
        return Processes() if averages.needs_all else self.processes


def _digest(value: Any) -> int:
    """Return a number of 63 bits for plain data."""
    text = json.dumps(value, sort_keys=True)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


_SAME = (
    *("id", "seed", "max_duration", "epoch_length", "algorithms", "optimizers", "schedulers"),
    *("hyperparameters", "modules", "loss_fn", "options", "torch", "savers", "dataset"),
)


def joined_events(listened: Set[Event]) -> frozenset[Event]:
    """Return the events after which requests are joined: callbacks of the user may have some.

    At the start of training, an evaluation before it may have had requests. The end of a batch, an
    epoch or an iteration is for requests at all events before it.

    Args:
        listened: The events to which callbacks of the user listen, on any process.
    """
    late = bool(listened & (_LATE | _EARLY_OR_LATE))
    early = bool(listened - _LATE)
    return frozenset(
        event
        for event in Event
        if (bool(listened) if event is Event.FIT_START else late if event in _LATE else early)
    )


_LATE = frozenset(
    event
    for event in Event
    if event in (Event.LOG, Event.BEFORE_SAVE, Event.AFTER_SAVE)
    or event.name.startswith("EVAL_")
    or event.name.endswith("_CHECKPOINT")
)
"""The events between the end of a batch, epoch or iteration and the next one."""
_EARLY_OR_LATE = frozenset((Event.BEFORE_SCHEDULER_STEP, Event.AFTER_SCHEDULER_STEP))
