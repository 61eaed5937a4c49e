"""The masks of filtered batches: recorded in one run, and replayed in another."""

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from composable._support.checks import as_path, check_entries
from composable._support.devices import send
from composable._support.tree import tensors_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.distributed.processes import Processes

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SAME = "the data set, the order, the batch size and the seed must be those of the recorded run"
_AGAIN = f"{_SAME}; for another run, record its masks with ProxyFilter"


def checksum_of(batch: Any) -> Tensor:
    """Return a checksum of the tensors of a batch and of the order of its examples.

    It stays on their device, so that the host does not wait for it.

    Example:
        >>> from composable.data.masks import checksum_of
        >>> checksum_of(torch.tensor([3, 5])), checksum_of(torch.tensor([5, 3]))
        (tensor(13), tensor(11))
    """
    total = torch.zeros((), dtype=torch.int64)
    for tensor in tensors_of(batch):
        if tensor.layout is torch.strided and tensor.ndim:
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            bits = real.detach().view(_BITS[real.element_size()]).flatten(1 - (real.ndim == 1))
            rows = (
                bits.sum(tuple(range(1, bits.ndim)), dtype=torch.int64) if bits.ndim > 1 else bits
            )
            places = torch.arange(1, len(rows) + 1, device=tensor.device)
            total = send(total, tensor.device) * 31 + (rows * places).sum()
    return total


# --- recording ---

Row = tuple[int, int, Tensor, Tensor]
"""The step of a batch, its number of examples, its checksum, and which examples are kept."""


def row_of(step: int, batch: Any, size: int, kept: Tensor) -> Row:
    """Return the row of a batch, or of the part of it that a process filters."""
    mask = torch.zeros(size, dtype=torch.bool, device=kept.device)
    return step, size, checksum_of(batch), mask.index_fill(0, kept, value=True)


def gather_rows(rows: Sequence[Row], processes: Processes) -> tuple[Row, ...]:
    """Return the rows of a step of all processes, in the order of the whole batch.

    The host exchanges sizes, and does not wait for the device.
    """
    if not processes.several:
        return tuple(rows)
    steps, sizes, checksums, masks = zip(*rows, strict=True)
    table = processes.table([*sizes])
    width = max(map(max, table))
    padded = [torch.nn.functional.pad(one.byte(), (0, width - len(one))) for one in masks]
    own = torch.cat(
        [torch.stack(checksums).view(torch.uint8).view(len(rows), 8), torch.stack(padded)], dim=1
    )
    received = [torch.empty_like(own) for _ in table]
    dist.all_gather(received, own)
    return tuple(
        (steps[0], size, one[:8].clone().view(torch.int64)[0], one[8 : 8 + size].bool())
        for part, counts in zip(received, table, strict=True)
        for one, size in zip(part, counts, strict=True)
    )


def merge_rows(masks: Mapping[str, Tensor] | None, rows: Sequence[Row]) -> dict[str, Tensor]:
    """Append rows to the masks, of one bit an example, on the CPU. The host waits for the device.

    Args:
        masks: What an earlier call returned, or None.
        rows: The rows since then, at least one.
    """
    steps, sizes, checksums, kept = zip(*rows, strict=True)
    new = {
        "steps": torch.tensor(steps),
        "sizes": torch.tensor(sizes),
        "checksums": torch.stack(checksums).cpu(),
        "bits": torch.cat([*map(_pack, torch.split(torch.cat(kept).cpu(), list(sizes)))]),
    }
    if masks is None:
        return new
    return {name: torch.cat([masks[name].cpu(), value]) for name, value in new.items()}


_PLACES = torch.arange(8, dtype=torch.uint8)


def _pack(mask: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(mask.byte(), (0, -len(mask) % 8)).view(-1, 8)
    return (padded << _PLACES).sum(1, dtype=torch.uint8)


def _unpack(packed: Tensor, size: int) -> Tensor:
    return (packed[:, None] >> _PLACES & 1).flatten()[:size].bool()


# --- replaying ---


@attrs.frozen(repr=False)
class RecordedMasks:
    """The masks that a run has recorded; `load_masks` returns them."""

    seed: int
    steps: tuple[int, ...]
    """The step of each batch, or of each part of a batch, in the order of the run."""
    sizes: tuple[int, ...]
    checksums: tuple[int, ...]
    bits: bytes
    _places: dict[int, range] = attrs.field(init=False, eq=False)
    _offsets: list[int] = attrs.field(init=False, eq=False)

    @_places.default
    def _places_of_steps(self) -> dict[int, range]:
        found: dict[int, range] = {}
        for i, step in enumerate(self.steps):
            found[step] = range(found[step].start if step in found else i, i + 1)
        return found

    @_offsets.default
    def _offsets_of_bytes(self) -> list[int]:
        return [0, *accumulate(-(-size // 8) for size in self.sizes)]

    def __repr__(self) -> str:
        return f"<{len(self.steps)} masks of {len(self._places)} steps, seed {self.seed}>"

    def places(self, step: int, processes: Processes) -> range:
        """Return the numbers of the masks of this process at a step; empty if there is none."""
        all_ = self._places.get(step, range(0))
        rank, size = processes.rank, processes.size
        return all_[len(all_) * rank // size : len(all_) * (rank + 1) // size]

    def kept(self, place: int) -> Tensor:
        """Return the indices that a mask keeps."""
        packed = self.bits[self._offsets[place] : self._offsets[place + 1]]
        data = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        return _unpack(data, self.sizes[place]).nonzero().flatten()


def load_masks(
    source: State | str | os.PathLike[str], *, algorithm: str = "ProxyFilter"
) -> RecordedMasks:
    """Load the masks that a `ProxyFilter` has recorded, for `ReplayMasks`.

    Args:
        source: The path of a checkpoint of the run, or the state that `fit` returned.
        algorithm: The name of the algorithm that recorded them.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: It has no masks of this algorithm.
        CheckpointError: The checkpoint is missing or invalid.
    """
    if not isinstance(algorithm, str):
        raise TypeError(f"algorithm={algorithm!r} must be the name of an algorithm, a string.")
    found = _memory_of(source).get(algorithm)
    if not (isinstance(found, Mapping) and (found.get("masks") or found.get("rows"))):
        raise ValueError(
            f"source={source!r} has no masks of {algorithm!r}: pass a checkpoint of a run with "
            "ProxyFilter(..., record=True) that is not one of weights only, and its name as "
            "algorithm=."
        )
    masks = merge_rows(found["masks"], found["rows"]) if found["rows"] else found["masks"]
    steps, sizes, checksums, bits = (
        masks[name].tolist() for name in ("steps", "sizes", "checksums", "bits")
    )
    return RecordedMasks(found["seed"], tuple(steps), tuple(sizes), tuple(checksums), bytes(bits))


def _memory_of(source: Any) -> Mapping[str, Any]:
    if isinstance(source, State):
        return source.memory
    from composable.checkpoint.files import read  # on use: it is slow to import
    from composable.checkpoint.tree import unpack

    contents = read(as_path("source", source))
    tree = unpack(contents.tensors, contents.data)
    memory: Mapping[str, Any] = tree.get("state", {}).get("memory", {})
    return memory


def _check_masks(_: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, RecordedMasks):
        raise TypeError(
            f"{attribute.name}={value!r} must be recorded masks: "
            "composable.data.load_masks(checkpoint)."
        )


@attrs.frozen(repr=False)
class ReplayMasks(Algorithm):
    """Filter each batch as a recorded run of `ProxyFilter` did, without its proxy.

    The batches of the loader must be those of that run: the data set, the order, the seed, the
    number of shards and the batches in a step. Each batch is compared with a checksum; on a GPU,
    whose host would wait for it, after the first batch and at the end of every epoch.

    Args:
        masks: The result of `composable.data.load_masks`.
    """

    masks: RecordedMasks = attrs.field(validator=_check_masks)

    events = frozenset(
        {
            Event.FIT_START,
            Event.AFTER_DATALOADER,
            Event.BATCH_START,
            Event.EPOCH_END,
            Event.FIT_END,
        }
    )
    stage = Stage.SELECT
    reads = frozenset({"batch", "key", "timestamp", "memory"})
    writes = frozenset({"batch", "memory"})
    incompatible_with = MappingProxyType(
        dict.fromkeys(
            ("ProxyFilter", "SelectiveBackprop", "InfoBatch"), "both select examples of the batch"
        )
    )

    def match(self, event: Event, state: State) -> bool:
        """Match at the start, at each batch, and where batches can be compared."""
        if event is Event.FIT_START or event is Event.AFTER_DATALOADER:
            return True
        return self.name in state.memory

    def apply(self, event: Event, state: State) -> State:
        """Compare the run with the recorded one, or filter a batch."""
        if event is Event.AFTER_DATALOADER:
            return self._filtered(state)
        if event is Event.FIT_START:
            self._check_seed(state.key.seed)
        elif event is Event.BATCH_START:
            self._check_parts(state)
        else:
            self._check_batches(state.memory[self.name])
        return state

    def _filtered(self, state: State) -> State:
        step, known = state.timestamp.batch, state.memory.get(self.name)
        part = known["part"] if known is not None and known["step"] == step else 0
        place = self._place(step, part, state.batch_spec.count(state.batch))
        wrong = checksum_of(state.batch) != self.masks.checksums[place]
        memory = {
            "step": step,
            "part": part + 1,
            "wrong": wrong if known is None else wrong | known["wrong"],
        }
        if known is None or state.device.type == "cpu":
            self._check_batches(memory)
        kept = send(self.masks.kept(place), state.device)
        batch = state.batch_spec.select(state.batch, kept)
        return state.evolve(batch=batch).remember(self.name, memory)

    def _place(self, step: int, part: int, size: int) -> int:
        places = self.masks.places(step, Processes.current())
        if not places:
            raise ValueError(
                f"masks has none for step {step} of {self.name}, and its last one is for step "
                f"{max(self.masks.steps)}: train for as long as the recorded run, and filter in "
                "the same part of it, if the filter had one."
            )
        if part >= len(places):
            raise ValueError(self._other_parts(step, len(places), f"more than {part}"))
        if self.masks.sizes[places[part]] != size:
            raise ValueError(
                f"masks has one for {self.masks.sizes[places[part]]} examples at step {step}, and "
                f"the batch has {size}: {_AGAIN}."
            )
        return places[part]

    def _check_seed(self, seed: int) -> None:
        if seed != self.masks.seed:
            raise ValueError(
                f"masks was recorded with the seed {self.masks.seed}, and this run has the seed "
                f"{seed}: pass seed={self.masks.seed} to the Trainer, or record its masks with "
                "ProxyFilter."
            )

    def _check_parts(self, state: State) -> None:
        memory, step = state.memory[self.name], state.timestamp.batch
        recorded = len(self.masks.places(step, Processes.current()))
        if memory["step"] == step and memory["part"] != recorded:
            raise ValueError(self._other_parts(step, recorded, memory["part"]))

    def _other_parts(self, step: int, recorded: int, given: Any) -> str:
        return (
            f"masks has {recorded} for a process at step {step}, and this run has {given} batches "
            "there: use the accumulate_batches=, the shards and the data of the recorded run."
        )

    def _check_batches(self, memory: Mapping[str, Any]) -> None:
        if bool(memory["wrong"]):
            raise ValueError(
                f"masks was recorded on other batches than those up to step {memory['step']}: "
                f"{_AGAIN}."
            )

    def check_memory(self, memory: Any, state: State) -> None:
        """Raise a `ValueError` if a loaded memory is not one of this class."""
        check_entries(memory, "part", "step", "wrong")
