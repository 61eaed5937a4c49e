"""The training loader, and the position in it."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import attrs
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from typing_extensions import TypedDict

from composable._support.warn import warn_user
from composable.checkpoint.errors import MismatchError
from composable.core.state import State
from composable.core.stateful import Count, Size
from composable.core.time import Timestamp
from composable.data.digest import digest_of
from composable.data.fetching import (
    Epoch,
    function_arity,
    has_own_iteration,
    has_plain_order,
    is_map_style,
    without_workers,
)
from composable.data.grouping import batches_of, total_weight
from composable.data.order import (
    check_loader_state,
    get_generator_states,
    get_generators,
    is_stateful,
    read_epoch,
    read_loader_state,
    set_generator_states,
)
from composable.data.prefetch import Copies, Prefetcher, on_device
from composable.data.sampler import GlobalBatchSampler
from composable.engines.engine import Engine
from composable.resume.changes import ChangedRunWarning, check_as_many

Loaded: TypeAlias = tuple[Any, int, int]
"""A batch, and the numbers of its examples and tokens."""


class FirstBatch(TypedDict):
    """The epoch of a first batch, the number of its step, and its digest."""

    epoch: Count
    step: Count
    digest: str


class DataState(TypedDict):
    """The state of the loader, and of its generators at the start of the epoch."""

    loader: Mapping[Any, Any] | None
    generators: list[Tensor]
    batches_per_step: Size
    batch_size: Size
    shards: Size
    first_batch: FirstBatch | None


_LOCAL, _NOT_PLAIN = "local", "not plain data"


@attrs.define(eq=False)
class TrainingData:
    """The training loader, and the position in it."""

    loader: Any
    count_tokens: Callable[[Any], int] | None = None
    batches_per_step: int = 1
    epoch_batches: int | None = None
    """The number of batches after which an epoch ends; None for all of the loader."""
    copies: Copies | None = None
    """Copies batches to the device ahead of their steps; None if none is fetched ahead."""
    engine: Engine = attrs.field(kw_only=True)
    """Splits batches among processes."""
    _loader_state: Any = None
    _state_ahead: Any = None
    """The state of the loader before it was read ahead."""
    _generators: list[Tensor] | None = None
    """The states of the loader's generators at the start of the epoch; None between epochs."""
    _prefetcher: Prefetcher | None = None
    _positions: Any = None
    """The states of the loaders of all processes, for the checkpoint that is saved next."""
    _first_batch: FirstBatch | None = None
    """The last first batch."""
    _compares: bool = False
    """Whether the first batch is to be compared with the saved run's."""

    @property
    def groups(self) -> bool:
        """Whether the batch of a step is a group: of several batches, or of shards."""
        return self.batches_per_step > 1 or self.engine.has_shards

    def batches(self, state: State) -> Iterator["Loaded"]:
        """Iterate over the batches of the epoch that have not been trained on."""
        now, count = state.timestamp, self.batches_per_step
        self._generators = self._epoch_generators()
        begun = (now.batch - now.batch_in_epoch) * count
        skip = now.batch_in_epoch * count  # an earlier fit may have stopped in this epoch
        loader = () if self.loader is None else self.loader  # a DataLoader may have no length
        batches = self._read(loader, state, (now.epoch, begun, skip), self._loader_state)
        loaded = self.engine.announced(self._loaded(batches, state))
        if self.copies is None:
            loaded = on_device(loaded, state.device)
        else:
            loaded = self._prefetcher = Prefetcher(loaded, self.copies)
        return self.engine.loaded(loaded)

    def _read(
        self, loader: Iterable[Any], state: State, place: tuple[int, int, int], position: Any = None
    ) -> Iterator[Any]:
        """Iterate over the batches of the steps of an epoch.

        Args:
            loader: The loader.
            state: A state of the run.
            place: The epoch, its first step, and the number of batches to skip.
            position: The state of the loader after these, if it has one.
        """
        parts, key = self.engine.index_shards(self.loader), state.key
        if self.engine.is_local and function_arity(loader) is not None:
            key = key.fold("process", self.engine.processes.rank)
        wanted = Epoch(key, *place, parts, self.epoch_batches)
        batches = read_epoch(loader, wanted, position, self._generators)
        return self.engine.steps(batches, parts, state.batch_spec, self.batches_per_step)

    def _loaded(self, batches: Iterator[Any], state: State) -> Iterator["Loaded"]:
        """Count what batches contain, before they are moved to a device."""
        now = state.timestamp
        if self._compares:
            self._compares = False
            self._compare_first_batch(state)
        begins = not now.batch_in_epoch
        count, tokens = state.batch_spec.count, self.count_tokens
        if self.groups:
            count = partial(total_weight, weight=count)
            tokens = tokens and partial(total_weight, weight=tokens)
        for batch in batches:
            self._loader_state = None
            if begins:
                begins, step = False, now.batch * self.batches_per_step
                digest = digest_of(batches_of(batch)[0])
                self._first_batch = {"epoch": now.epoch, "step": step, "digest": digest}
            yield batch, count(batch), tokens(batch) if tokens else 0

    def _compare_first_batch(self, state: State) -> None:
        """Read the first batch of the saved epoch again, and warn if it is another one.

        Streams are not read twice. At the end of an epoch, samplers and generators with a state may
        have advanced.
        """
        saved, loader = self._first_batch, self.loader
        if saved is None or not self._reads_again(saved["epoch"] == state.timestamp.epoch):
            return
        again = self._read(without_workers(loader), state, (saved["epoch"], saved["step"], 0))
        digests = [digest_of(batches_of(batch)[0]) for batch in islice(again, 1)]
        if self._generators:
            set_generator_states(self.loader, self._generators)
        if digests != [saved["digest"]]:
            warn_user(
                f"the data differ from the saved run's: the first batch of epoch "
                f"{saved['epoch']} is another one, in its examples, their order, or random numbers "
                "that do not follow from the seed. The run continues with these data; resume with "
                "the saved run's for the same result.",
                ChangedRunWarning,
            )

    def _reads_again(self, within_epoch: bool) -> bool:
        """Return whether the first batch of the saved epoch can be read again, without effects."""
        if self.engine.is_local or not self.engine.processes.is_main:
            return False
        if isinstance(self.loader, (list, tuple)):
            return True
        if not is_map_style(self.loader) or is_stateful(self.loader):
            return False
        return within_epoch or (has_plain_order(self.loader) and not get_generators(self.loader))

    def fetch_ahead(self, state: State) -> State:
        """Fetch the next batch of the epoch, start to copy it to the device; return the state."""
        if self._prefetcher is not None and not self._prefetcher.is_ahead:
            if is_stateful(self.loader):
                self._state_ahead = read_loader_state(self.loader)
            self._prefetcher.fetch()
        return state

    def _read_loader_state(self) -> Any:
        """Return the state of the loader after the batches that were trained on."""
        if self._loader_state is not None:  # loaded or paused, and no batch was read since
            return self._loader_state
        if self._prefetcher is not None and self._prefetcher.is_ahead:
            return self._state_ahead
        return read_loader_state(self.loader)

    def pause(self) -> None:
        """Keep the position in the epoch for a later fit."""
        self._loader_state, self._prefetcher = self._read_loader_state(), None

    def end_epoch(self) -> None:
        """Forget the states of the loader's generators."""
        self._generators = self._prefetcher = None

    def _epoch_generators(self) -> list[Tensor]:
        return get_generator_states(self.loader) if self._generators is None else self._generators

    def gather_positions(self) -> None:
        """Gather the states of the loaders of all processes, before a checkpoint is saved.

        Warns:
            UserWarning: They are not plain data, so rank 0's is saved for all.
        """
        if not (self.engine.is_local and is_stateful(self.loader)):
            return
        own = self._read_loader_state()
        try:
            json.dumps(own)
        except TypeError:
            own = _NOT_PLAIN
        found = self.engine.processes.gather(own)
        if _NOT_PLAIN not in found:
            self._positions = {_LOCAL: found}
        elif self.engine.processes.is_main:
            warn_user(
                "the state of the train_dataloader is not plain data, so the checkpoint has that "
                "of rank 0 for all processes: a run that is resumed within an epoch may repeat or "
                "omit examples of the other processes.",
                UserWarning,
            )

    def _own_position(self, state: Any) -> Any:
        """Return this process's entry in the saved loader states.

        Raises:
            ValueError: They belong to another number of processes.
        """
        if not (isinstance(state, Mapping) and state.keys() == {_LOCAL}):
            return state
        found, processes = state[_LOCAL], self.engine.processes
        if not self.engine.is_local or len(found) != processes.size:
            raise ValueError(
                f"it has the positions of {len(found)} processes, each with its part of the data: "
                "resume on as many, or from the end of an epoch."
            )
        return found[processes.rank]

    def state_dict(self) -> DataState:
        """Return the state of the loader, and of its generators at the start of the epoch."""
        positions, self._positions = self._positions, None
        return {
            "loader": self._read_loader_state() if positions is None else positions,
            "generators": self._epoch_generators(),
            "batches_per_step": self.batches_per_step,
            "batch_size": self.batch_size,
            "shards": self.engine.shards.count,
            "first_batch": self._first_batch,
        }

    @property
    def batch_size(self) -> int | None:
        """The number of examples in a batch of the loaders of all processes, if it has a name."""
        inner = getattr(self.loader, "batch_sampler", None)
        size = getattr(self.loader, "batch_size", None) or getattr(inner, "batch_size", None)
        if not isinstance(size, int):
            return None
        divided = self.engine.is_local and not isinstance(inner, GlobalBatchSampler)
        return size * (self.engine.processes.size if divided else 1)

    def position(self, state: DataState, now: Timestamp) -> Timestamp:
        """Return a time within an epoch, with its steps counted as this loader's.

        Raises:
            MismatchError: The position is not one of this loader.
        """
        self._check_state(state)
        sizes, count = (state["batch_size"], self.batch_size), state["batches_per_step"]
        before, size = (number if number and all(sizes) else 1 for number in sizes)
        read = now.batch_in_epoch * (count or 1) * before
        steps, rest = divmod(read, self.batches_per_step * size)
        follows = before != size and _follows_batches(self.loader)
        if rest or follows:
            why = f"the order of {follows} may differ" if follows else "no step begins there"
            cure = "with those" if follows else f"with numbers whose product divides {read}"
            raise MismatchError(
                f"the epoch was saved after {read} {'batches' if size == 1 else 'examples'}, with "
                f"accumulate_batches={count} and batch_size={sizes[0]}; with "
                f"{self.batches_per_step} and {sizes[1]}, {why}. Resume {cure}, or from the end of "
                "an epoch."
            )
        return attrs.evolve(now, batch_in_epoch=steps)

    def _check_state(self, state: DataState) -> None:
        if state["loader"] is None:
            return
        if not is_stateful(self.loader):
            raise MismatchError(
                "loader is the state of a loader, and the train_dataloader of this run "
                "has no state_dict. Build the Trainer as in the saved run."
            )
        try:
            check_loader_state(self.loader, self._own_position(state["loader"]))
        except ValueError as error:
            raise MismatchError(
                f"loader does not fit the train_dataloader: {error} Build the Trainer as "
                "in the saved run."
            ) from None

    def load_state_dict(self, state: DataState) -> None:
        """Restore what `state_dict` returned.

        Raises:
            MismatchError: The loader has another number of generators.
        """
        own = get_generators(self.loader)
        check_as_many("generators of the loader", own, state["generators"], "generators")
        self._loader_state = None
        with suppress(ValueError):  # at the end of an epoch, where a position is not used
            self._loader_state = self._own_position(state["loader"])
        self._generators = state["generators"]
        self._first_batch = state["first_batch"]
        self._compares = state["batch_size"] == self.batch_size
        self._prefetcher = None


def _follows_batches(loader: Any) -> str | None:
    """Return the name of what may give its examples in another order with another batch size."""
    plain = isinstance(loader, DataLoader) and not has_own_iteration(loader)
    if not plain or hasattr(loader, "state_dict"):
        return type(loader).__name__
    if isinstance(loader.dataset, IterableDataset):
        return f"{loader.num_workers} workers" if loader.num_workers > 1 else None
    order = loader.batch_sampler
    if type(order) is BatchSampler:
        order = order.sampler
    known = type(order) is GlobalBatchSampler or type(order).__module__.startswith("torch.")
    return None if known else type(order).__name__
