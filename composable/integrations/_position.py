"""The position of an external loop in its loader, and the states of the global generators."""

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import attrs
import torch
from torch import Tensor
from typing_extensions import TypedDict

from composable.checkpoint.errors import MismatchError, UnsavableError
from composable.core.stateful import Count, Size
from composable.data.fetching import loader_length
from composable.data.order import (
    fetches_are_seeded,
    get_generator_states,
    get_generators,
    is_stateful,
    read_loader_state,
    set_generator_states,
)
from composable.distributed.processes import Processes
from composable.integrations._loaders import base_loader
from composable.resume.changes import check_as_many
from composable.utils.reproducibility import get_rng_state, load_rng_state

_END: Any = object()


class PositionState(TypedDict):
    """The states of loaders and global generators of each process, and the loader's generators."""

    batches_per_step: Count
    batch_size: Size
    loaders: list[Any]
    generators: list[Tensor]
    random: list[Any]


@attrs.define(eq=False)
class LoaderPosition:
    """The position in the loader of an epoch, and the states of the global generators.

    Args:
        adapter: The external loop, whose clock counts the batches of the epoch.
    """

    adapter: Any
    _loader: Any = None
    _remaining: list[Iterator[Any]] = attrs.field(factory=lambda: [iter(())])
    """The iterator over the batches of the epoch that were not used."""
    _batches_per_step: int = 1
    _began: list[Tensor] = attrs.field(factory=list)
    """The states of the loader's generators at the start of the epoch."""
    _loaded: PositionState | None = None
    """The position in a checkpoint, until the next epoch."""
    _random: Any = None
    """The states of the global generators to restore when the first batch was fetched."""

    @property
    def _within(self) -> bool:
        state = self.adapter.state
        return state.timestamp.batch_in_epoch not in (0, state.epoch_length)

    def state_dict(self) -> PositionState:
        """Return the position; with several processes, all of them call this.

        Raises:
            UnsavableError: The state of the loader is not plain data, which processes can send.
        """
        if self._loaded is not None:  # no epoch has been started since
            return self._loaded
        if self._ends:
            self._finish()
        processes, own = Processes.current(), [read_loader_state(self._loader), _random_state()]
        try:
            every = processes.gather(own)
        except TypeError as error:
            raise UnsavableError(
                "the state_dict of the loader is not plain data, which the processes must send to "
                f"rank 0: {error}"
            ) from None
        loaders, random_states = ([one[i] for one in every] for i in (0, 1))
        began = self._within
        return {
            "batches_per_step": self._batches_per_step,
            "batch_size": _batch_size(self._loader),
            "loaders": loaders,
            "generators": self._began if began else get_generator_states(self._loader),
            "random": random_states,
        }

    def load_state_dict(self, state: PositionState) -> None:
        """Restore the position and the global generators when the next epoch begins.

        Until then, a script draws what it drew before, as to split its data.

        Raises:
            MismatchError: It is one within an epoch of another number of processes.
        """
        processes, saved = Processes.current(), state["random"]
        self._loaded, self._random = state, None
        if len(saved) == processes.size:
            self._random = saved[processes.rank]
        elif self._within:
            raise MismatchError(
                f"random was saved within an epoch by {len(saved)} processes, each with its part "
                f"of the batches, and this run has {processes.size}: resume with as many, or from "
                "the end of an epoch."
            )

    def begin(self, loader: Any, batches_per_step: int) -> dict[str, Any]:
        """Begin an epoch, and return where its loader starts: arguments of `iterate_batches`.

        Raises:
            MismatchError: The position is not one of this loader.
        """
        loaded, loader = self._loaded, base_loader(loader)
        self._loader, self._batches_per_step = loader, batches_per_step
        if loaded is None:
            self._began = get_generator_states(loader)
            return {}
        generators, rank = loaded["generators"], Processes.current().rank
        own = get_generators(loader)
        check_as_many("generators of the loader", own, generators, "t.epoch(loader): generators")
        set_generator_states(loader, generators)
        self._began = generators
        if self._random is not None:
            _set_random_state(self._random)
        if not self._within:
            self._loaded = self._random = None
            return {}
        sizes = loaded["batches_per_step"], loaded["batch_size"]
        if sizes != (batches_per_step, _batch_size(loader)):
            raise MismatchError(
                f"t.epoch(loader): the checkpoint was saved within an epoch with "
                f"accumulate_batches={sizes[0]} and batch_size={sizes[1]}, and these are "
                f"{batches_per_step} and {_batch_size(loader)}; resume with those, or from the end "
                "of an epoch."
            )
        state = loaded["loaders"][rank]
        if (state is not None) is not is_stateful(loader):
            raise MismatchError(
                "t.epoch(loader): the loader of the checkpoint and this one differ in whether "
                "they have a state_dict; resume with the loader of the saved run."
            )
        self._loaded = None
        if fetches_are_seeded(loader):
            self._random = None
        return {"loader_state": state, "generators": generators}

    def iterate(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Iterate over the batches of the epoch.

        Where the fetch of a batch does not seed the global generators, they are restored after the
        first one, since the beginning of the epoch has seeded them.
        """
        self._remaining = own = [batches]
        try:
            while (batch := next(own[0], _END)) is not _END:
                if self._random is not None:
                    _set_random_state(self._random)
                    self._random = None
                yield batch
        finally:
            own[0] = iter(())  # its worker processes end

    @property
    def _ends(self) -> bool:
        """Whether all batches of the loader were used, and it has not noticed yet."""
        counted = self.adapter.state.timestamp.batch_in_epoch * self._batches_per_step
        return bool(counted >= (loader_length(self._loader) or math.inf))

    def _finish(self) -> None:
        """Let the loader end, which may draw from generators once more."""
        remaining = self._remaining[0]
        for batch in remaining:  # of a loader that is longer than its length
            self._remaining[0] = chain([batch], remaining)
            return


def _batch_size(loader: Any) -> int | None:
    inner = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(inner, "batch_size", None)
    return size if isinstance(size, int) else None


def _random_state() -> Any:
    """Return the states of the global generators as JSON, which processes send."""
    return _as_json(get_rng_state())


def _set_random_state(saved: Mapping[str, Any]) -> None:
    """Restore the global generators, but not of devices of another number."""
    now, states = get_rng_state(), _from_json(saved)
    load_rng_state({n: one for n, one in states.items() if n in now and len(one) == len(now[n])})


def _as_json(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {"bytes": bytes(value.tolist()).hex()}
    if isinstance(value, dict):
        return {name: _as_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value  # of NumPy


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"bytes"}:
        return torch.frombuffer(bytearray.fromhex(value["bytes"]), dtype=torch.uint8)
    return {name: _from_json(one) for name, one in value.items()}
