"""The training loader, and the position in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs
from torch import Tensor

from composable.core.batch_spec import BatchSpec
from composable.core.state import State
from composable.data.fetching import is_map_style
from composable.data.grouping import (
    BatchGroup,
    ShardedBatch,
    grouped,
    shards_of,
    split_into_shards,
)
from composable.data.order import (
    get_generator_states,
    is_stateful,
    read_loader_state,
    seeded_batches,
)
from composable.data.prefetch import Copies, Prefetcher, on_device
from composable.data.sharding import IndexShards
from composable.trainer.parallel import Parallel

__all__ = ["Loaded", "TrainingData"]

Loaded: TypeAlias = tuple[Any, int, int]
"""A batch, and the numbers of its examples and tokens."""


@attrs.define(eq=False)
class TrainingData:
    """The training loader, and the position in it."""

    loader: Iterable[Any] | None
    count_tokens: Callable[[Any], int] | None = None
    batches_per_step: int = 1
    copies: Copies | None = None
    """Copies batches to the device ahead of their steps; None unless the device is a GPU."""
    parallel: Parallel | None = None
    is_local: bool = False
    """Whether the loader is already divided among the processes."""
    _loader_state: Any = None
    _state_ahead: Any = None
    """The state of the loader before it was read ahead."""
    _generators: list[Tensor] | None = None
    """The states of the loader's own generators at the start of the epoch; None between epochs."""
    _prefetcher: Prefetcher | None = None

    def batches(self, state: State) -> Iterator["Loaded"]:
        """Iterate over the batches of the epoch that have not been trained on."""
        now, count = state.timestamp, self.batches_per_step
        loader_state, self._loader_state = self._loader_state, None
        self._generators = self._epoch_generators()
        parts = None if self.parallel is None else self._index_shards(self.parallel)
        batches: Iterator[Any] = seeded_batches(
            () if self.loader is None else self.loader,  # a DataLoader may have no length
            state.key,
            epoch=now.epoch,
            first_step=(now.batch - now.batch_in_epoch) * count,
            skip=now.batch_in_epoch * count,  # an earlier fit may have stopped in this epoch
            loader_state=loader_state,
            generators=self._generators,
            parts=parts,
        )
        if self.parallel is not None:
            batches = self._sharded(batches, state.batch_spec, parts, self.parallel)
        elif count > 1:
            batches = grouped(batches, count)
        loaded = self._loaded(batches, state.batch_spec)
        if self.copies is None:
            loaded = on_device(loaded, state.device)
        else:
            loaded = self._prefetcher = Prefetcher(loaded, self.copies)
        return loaded if self.parallel is None else self.parallel.together(loaded)

    def _index_shards(self, parallel: Parallel) -> IndexShards | None:
        """Return what splits the indices of a batch, if that is possible."""
        by_index = is_map_style(self.loader) and not self.is_local
        if by_index and self.loader._auto_collation:  # type: ignore[union-attr]
            return IndexShards(parallel.shards)
        return None

    def _sharded(
        self,
        batches: Iterator[Any],
        spec: BatchSpec,
        parts: IndexShards | None,
        parallel: Parallel,
    ) -> Iterator[ShardedBatch]:
        """Join the shards of this process into the batches of the steps."""
        shards = parallel.shards
        if parts is not None:
            split = parts.joined(batches)
        else:
            own = shards.alone if self.is_local else shards
            split = (split_into_shards(batch, spec, own) for batch in batches)
        if self.is_local:
            return shards_of(split, shards.alone, self.batches_per_step, numbered_as=shards)
        return shards_of(split, shards, self.batches_per_step)

    def _loaded(self, batches: Iterator[Any], spec: BatchSpec) -> Iterator["Loaded"]:
        """Count what batches contain, before they are moved to a device."""
        for batch in batches:
            yield batch, *self._count(batch, spec)

    def _count(self, batch: Any, spec: BatchSpec) -> tuple[int, int]:
        """Count the examples and the tokens of a batch, or of the batches of a group."""
        if not isinstance(batch, BatchGroup):
            return spec.count(batch), self.count_tokens(batch) if self.count_tokens else 0
        samples = tokens = 0
        for one, empty in zip(batch.batches, batch.empty, strict=True):
            if not empty:
                more = self._count(one, spec)
                samples, tokens = samples + more[0], tokens + more[1]
        return samples, tokens

    def fetch_ahead(self) -> None:
        """Fetch the next batch of the epoch, and start to copy it to the device."""
        if self._prefetcher is None or self._prefetcher.is_ahead:
            return
        if is_stateful(self.loader):
            self._state_ahead = read_loader_state(self.loader)
        self._prefetcher.fetch()

    def _read_loader_state(self) -> Any:
        """Return the state of the loader after the batches that were trained on."""
        if self._loader_state is not None:  # loaded or paused, and not used yet
            return self._loader_state
        if self._prefetcher is not None and self._prefetcher.is_ahead:
            return self._state_ahead
        return read_loader_state(self.loader)

    def pause(self) -> None:
        """Keep the position in the epoch for a later fit."""
        self._loader_state, self._prefetcher = self._read_loader_state(), None

    def end_epoch(self) -> None:
        """Forget the states of the loader's own generators."""
        self._generators = self._prefetcher = None

    def _epoch_generators(self) -> list[Tensor]:
        return get_generator_states(self.loader) if self._generators is None else self._generators

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader, and of its generators at the start of the epoch."""
        return {
            "loader": self._read_loader_state(),
            "generators": self._epoch_generators(),
            "batches_per_step": self.batches_per_step,
            "shards": 1 if self.parallel is None else self.parallel.shards.count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._loader_state, self._generators = state["loader"], state["generators"]
        self._prefetcher = None
