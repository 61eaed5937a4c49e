"""The sums of a step over the shards of a global batch."""

from typing import Any

import torch
from torch import Tensor

from composable.core.state import State
from composable.data.grouping import ShardedBatch, batches_of
from composable.distributed.processes import Processes
from composable.distributed.shards import TreeSum
from composable.engines.announcement import PACKED
from composable.engines.engine import Engine, Sums
from composable.engines.modules import buffers_of, trained_parameters
from composable.engines.shares import StepShares
from composable.losses.mean import ExampleCounter


class ShardSums(Sums):
    """The sums of losses and buffers; sums of gradients are in `.grad` on every process.

    Every shard starts from the same buffers, such as the running statistics of batch norm, which
    are then averaged. Integers, such as a count of batches, take the first shard's value. The
    number of examples was exchanged when the batch was loaded; algorithms may have omitted some
    since. Any other weight is exchanged at the start, or with the losses.

    Args:
        engine: The engine.
        state: The state with a `ShardedBatch`.
    """

    engine: Any
    shares: StepShares

    def __init__(self, engine: Engine, state: State) -> None:
        self.engine = engine
        self.announced = PACKED * engine.processes.size if engine.carries else 0
        self.may_omit = engine.may_omit
        self.first_shard = engine.shards.own.start
        self.number, self.processes = engine.shards.count, engine.shards.processes
        self.means = self.processes.size if engine.mean_gradients else 1
        batch: ShardedBatch = state.batch
        counts_examples = isinstance(engine.shares.weights.of_batches(state), ExampleCounter)
        self.shares = StepShares(
            engine.shares,
            state,
            batches_of(batch)[0],
            self.number,
            exchange=self._exchange,
            known=batch.examples if counts_examples and engine.rescales else None,
            size=self.means,
            ways="second" if engine.rescales else "first",
        )

    def _exchange(self, weight: Any) -> Any:
        with self.engine.pace.stopped():
            return _sum_of(weight, self.processes)

    def begin(self, state: State) -> None:
        """Start with the first shard of this process."""
        if self.engine.reads_parts:  # a module waits for its parts of the other processes
            self.engine.pace.stop()
        self.shares.restart()
        buffers = self.engine.buffers.begin(buffers_of(state))
        self.averaged = [as_real(buffer) for buffer in buffers if _is_averaged(buffer)]
        self.integers = [buffer for buffer in buffers if not _is_averaged(buffer)]
        self.is_first = self.first_shard == 0
        self.on_cpu = state.device.type == "cpu"
        self.reports = TreeSum()

    def split(self, state: State, first: Any, count: int) -> None:
        """Do nothing: the microbatches of a shard are parts of the global batch."""

    def add(self, state: State) -> None:
        """Add the loss of a shard and its buffers."""
        self.add_report(state.loss)  # type: ignore[arg-type]  # a step has computed it

    def add_report(self, loss: Tensor) -> None:
        """Add the loss of a shard, its weight, and the buffers after it."""
        self.dtype = loss.dtype
        self.engine.buffers.compare()
        report = [loss, self.shares.take(loss), *self.averaged]
        for integer in self.integers:
            packed = _packed(integer)
            report.append(packed if self.is_first else torch.zeros_like(packed))
        self.is_first = False
        self.reports.add([torch.cat([tensor.double().reshape(-1) for tensor in report])])

    def report(self) -> Tensor:
        """Return the sum of the reports of this process, and what it tells the others, in float64.

        These are its omitted examples, and the announcement of its next batch.
        """
        self.engine.pace.stop()
        (report,) = self.reports.value
        told = [report, report.new_full((1,), self.shares.omitted)]
        if self.announced:
            one = self.engine.announcement
            told.append(report.new_zeros(self.announced) if one is None else one.pack())
        return torch.cat(told)

    def reduce(self, state: State) -> Tensor:
        """Sum over the processes, set `.grad` and buffers, and return the loss of the batch."""
        report = self.total()
        self.engine.pace.start()
        if self.announced and self.engine.announcement is not None:
            self.engine.announcement.unpack(report[-self.announced :])
        end = self.size - self.announced - 1
        if self.averaged or self.integers:
            self._write_buffers(report[2:end])
        self.engine.buffers.end()
        loss = report[0] / self.means
        omitted: Any = report[end] if self.may_omit and self.shares.counts_examples else 0.0
        if self.on_cpu:  # elsewhere the host would wait
            omitted = float(omitted)
        loss = self.shares.finish(
            lambda: self.parameters_of(state), loss, report[1], omitted, on_cpu=self.on_cpu
        )
        return loss.to(self.dtype)

    def parameters_of(self, state: State) -> list[Tensor]:
        """Return the parameters that may have a gradient."""
        return trained_parameters(state)

    def total(self) -> Tensor:
        """Return the sum of the reports of all processes, and set `.grad`."""
        return self.all_reduce(self.report())

    def all_reduce(self, flat: Tensor) -> Tensor:
        """Sum a tensor of one dimension over the processes."""
        return self.processes.sum(flat)

    @property
    def size(self) -> int:
        """The number of values of a report."""
        return 3 + sum(self._buffer_sizes) + self.announced

    @property
    def _buffer_sizes(self) -> list[int]:
        return [
            *(tensor.numel() for tensor in self.averaged),
            *(integer.numel() * _parts(integer) for integer in self.integers),
        ]

    def _write_buffers(self, sums: Tensor) -> None:
        parts = sums.split_with_sizes(self._buffer_sizes)
        count = len(self.averaged)
        with torch.no_grad():
            for buffer, part in zip(self.averaged, parts[:count], strict=True):
                buffer.copy_((part / self.number).view_as(buffer))
            for buffer, part in zip(self.integers, parts[count:], strict=True):
                buffer.copy_(_unpacked(part, buffer.dtype).view_as(buffer))


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def as_real(tensor: Tensor) -> Tensor:
    """Return a view of a complex tensor as a real one."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _parts(tensor: Tensor) -> int:
    """Return into how many small integers, which any dtype has, an integer is packed."""
    return max(1, tensor.element_size() // 2)


def _packed(tensor: Tensor) -> Tensor:
    flat = tensor.contiguous().view(-1)
    return flat.to(torch.int16) if flat.element_size() == 1 else flat.view(torch.int16)


def _unpacked(parts: Tensor, dtype: torch.dtype) -> Tensor:
    small = parts.to(torch.int16)
    return small.to(dtype) if dtype.itemsize == 1 else small.view(dtype)


def _sum_of(weight: Any, processes: Processes) -> Any:
    """Return the sum of a number or a tensor over the processes."""
    if not processes.several:
        return weight
    if isinstance(weight, Tensor):
        return processes.sum(weight)
    total = processes.sum(torch.tensor(weight, dtype=torch.float64)).item()
    return int(total) if total == int(total) else total
