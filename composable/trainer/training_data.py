"""The training loader, and the position in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs
from torch import Tensor

from composable.core.batch_spec import BatchSpec
from composable.core.state import State
from composable.data.grouping import batches_of, grouped
from composable.data.order import (
    get_generator_states,
    is_stateful,
    read_loader_state,
    seeded_batches,
)
from composable.data.prefetch import Copies, Prefetcher, on_device

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
        batches: Iterator[Any] = seeded_batches(
            () if self.loader is None else self.loader,  # a DataLoader may have no length
            state.key,
            epoch=now.epoch,
            first_step=(now.batch - now.batch_in_epoch) * count,
            skip=now.batch_in_epoch * count,  # an earlier fit may have stopped in this epoch
            loader_state=loader_state,
            generators=self._generators,
        )
        if count > 1:
            batches = grouped(batches, count)
        loaded = self._loaded(batches, state.batch_spec)
        if self.copies is None:
            return on_device(loaded, state.device)
        self._prefetcher = Prefetcher(loaded, self.copies)
        return self._prefetcher

    def _loaded(self, batches: Iterator[Any], spec: BatchSpec) -> Iterator["Loaded"]:
        """Count what batches contain, before they are moved to a device."""
        count_tokens = self.count_tokens
        for batch in batches:
            samples = tokens = 0
            for one in batches_of(batch):
                samples += spec.count(one)
                tokens += count_tokens(one) if count_tokens else 0
            yield batch, samples, tokens

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
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._loader_state, self._generators = state["loader"], state["generators"]
        self._prefetcher = None
