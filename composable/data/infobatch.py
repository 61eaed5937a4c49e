"""InfoBatch: a sampler that prunes examples, and the algorithm that determines which."""

from collections.abc import Iterator, Mapping
from math import isclose, isfinite
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.checks import check_entries, check_range, check_tensor
from composable.core.algorithm import Algorithm
from composable.core.event import Event
from composable.core.state import State
from composable.data.indexed import check_index_key, indices_of
from composable.data.sampler import GlobalBatchSampler
from composable.distributed.processes import Processes
from composable.functional import infobatch
from composable.losses.classes import OncePerLoss

_AFTERWARDS = frozenset({Event.EVAL_START, Event.PREDICT_START, Event.FIT_END})
"""The events after which the sampler yields all examples."""


@attrs.define(eq=False, repr=False, slots=False)
class InfoBatchSampler(GlobalBatchSampler):
    """A batch sampler of the examples that `InfoBatch` keeps in an epoch.

    The order is the same as in `GlobalBatchSampler` with the same seed, without the pruned
    examples. The number of batches depends on the epoch, so there is no `len`.

    Args:
        dataset: The dataset to sample from, or its length.
        batch_size: Number of examples in a batch.
        seed: The seed of the order, or its `Key`.
        shuffle: Draw a new order for each epoch; otherwise use the order of the dataset.
        last_batch: How to handle an incomplete last batch: "keep" or "drop".

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> from composable.data import InfoBatchSampler
        >>> sampler = InfoBatchSampler(6, batch_size=2, seed=17, shuffle=False)
        >>> sampler.kept = torch.tensor([True, False, True, True, False, True])
        >>> list(sampler)
        [[0, 2], [3, 5]]
    """

    rank: int = attrs.field(default=0, init=False)
    world_size: int = attrs.field(default=1, init=False)
    kept: Tensor | None = attrs.field(default=None, init=False)
    """Which examples are kept, set by `InfoBatch`; None is all."""
    started: int | None = attrs.field(default=None, init=False)
    """The last epoch whose batches were read."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.last_batch == "pad":
            raise ValueError("last_batch='pad' must be 'keep' or 'drop': examples are pruned.")

    def __len__(self) -> int:
        raise TypeError("the number of batches of an epoch varies, since examples are pruned.")

    def batches_from(self, start: int) -> Iterator[list[int]]:
        """Yield every batch of the epoch, starting at batch `start`."""
        if self.kept is not None:
            self.started = self.epoch
        order = self._order()(torch.arange(self.length))
        if self.kept is not None:
            order = order[self.kept[order]]
        if len(order) < (self.batch_size if self.last_batch == "drop" else 1):
            raise ValueError(
                f"epoch {self.epoch} keeps {len(order)} of {self.length} examples, fewer than a "
                f"batch of batch_size={self.batch_size}: pass last_batch='keep' to the "
                "InfoBatchSampler, a smaller batch_size, or a smaller prune to InfoBatch."
            )
        for chosen in torch.split(order, self.batch_size)[start:]:
            if len(chosen) == self.batch_size or (len(chosen) and self.last_batch == "keep"):
                yield chosen.tolist()

    def __repr__(self) -> str:
        return f"<InfoBatchSampler of {self.length} examples, batch_size={self.batch_size}>"

    def __deepcopy__(self, memo: Any) -> "InfoBatchSampler":
        return self  # a copy of the algorithm has the sampler of the loader


def _check_sampler(_: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, InfoBatchSampler):
        raise TypeError(
            f"{attribute.name}={value!r} must be the InfoBatchSampler of the training loader."
        )


def _check_share(ends: str) -> Any:
    def check(_: Any, attribute: Any, value: Any) -> None:
        check_range(attribute.name, value, 0, 1, ends=ends)

    return check


_is_mean = OncePerLoss()


@attrs.frozen(repr=False)
class InfoBatch(Algorithm):
    """Prune examples with a low loss: see `composable.functional.infobatch`.

    At the start of each epoch, it determines the examples of the sampler by their last known
    losses. In each batch, it multiplies the losses of examples below the mean by `1 / (1 - prune)`,
    and stores the losses of the batch. The loss must be a mean over examples, which is checked in
    each batch: on a GPU, for 64 batches at once. Evaluations and predictions by the same loader
    have all examples.

    Args:
        sampler: The `InfoBatchSampler` of the training loader, whose dataset is an
            `composable.data.Indexed`.
        prune: The probability to prune an example below the mean, in [0, 1).
        end: The share of the run after which all examples are trained on, in [0, 1].
        index_key: The place of the indices in the batch, an index or a name. Default: as in
            `Indexed`.
    """

    sampler: InfoBatchSampler = attrs.field(validator=_check_sampler, eq=False)
    prune: float = attrs.field(default=0.5, validator=_check_share("[)"))
    end: float = attrs.field(default=0.875, validator=_check_share("[]"))
    index_key: int | str | None = attrs.field(default=None, validator=check_index_key)

    events = frozenset({Event.EPOCH_START, Event.BEFORE_DATALOADER, Event.AFTER_LOSS, *_AFTERWARDS})
    reads = frozenset(
        {"batch", "outputs", "loss_fn", "key", "timestamp", "max_duration", "memory", "device"}
    )
    writes = frozenset({"loss", "memory"})
    incompatible_with = MappingProxyType(
        {
            "MixUp": "a mixed example has no loss of its own",
            "CutMix": "a mixed example has no loss of its own",
            "SelectiveBackprop": "both select examples by their losses",
        }
    )

    def match(self, event: Event, state: State) -> bool:
        """Match from the first start of an epoch on."""
        starts = event is Event.EPOCH_START or event in _AFTERWARDS
        return starts or self.name in state.memory

    def apply(self, event: Event, state: State) -> State:
        """Prune for an epoch, pass the examples to the sampler, or weight the losses of a batch."""
        if event in _AFTERWARDS:
            self.sampler.kept = None
            return state
        if event is Event.EPOCH_START:
            return state.remember(self.name, self._pruned(state))
        if event is Event.BEFORE_DATALOADER:
            self.sampler.kept = state.memory[self.name]["kept"]
            return state
        return self._weighted(state)

    def _pruned(self, state: State) -> Mapping[str, Any]:
        if Processes.current().several:
            raise ValueError(
                f"{self.name} trains in one process only: each process would have the losses of "
                "its own examples only."
            )
        known = state.memory.get(self.name)
        size = (self.sampler.length,)
        losses = (
            torch.full(size, torch.nan, device=state.device) if known is None else known["losses"]
        )
        pruning = infobatch(
            losses.cpu(),
            prune=self.prune if state.elapsed < self.end else 0.0,
            generator=state.generator(self.name),
        )
        return {
            "losses": losses,
            "kept": pruning.kept,
            "weights": pruning.weights.to(state.device),
        }

    def _weighted(self, state: State) -> State:
        if self.sampler.started != state.timestamp.epoch:
            raise ValueError(
                f"the sampler of {self.name} is not the training loader's: pass "
                "DataLoader(Indexed(dataset), batch_sampler=sampler)."
            )
        memory = state.memory[self.name]
        indices = indices_of(state.batch, self.index_key, self.name)
        with state.precision.autocast(state.device):
            losses = state.loss_fn.per_example(state.outputs, state.batch)  # type: ignore[union-attr]
        stored = memory["losses"].index_copy(0, indices, losses.detach().float())
        state = state.remember(self.name, {**memory, "losses": stored})
        if not self.prune:
            return state
        self._check_is_mean(state, losses)
        return state.evolve(loss=(memory["weights"][indices] * losses).mean())

    def _check_is_mean(self, state: State, losses: Tensor) -> None:
        """Raise a ValueError if the loss of a batch is not the mean over its examples."""
        pair = torch.stack((state.loss.detach().float(), losses.detach().float().mean()))  # type: ignore[union-attr]
        for whole, mean in _is_mean.read(state, pair):
            if isfinite(whole) and not isclose(whole, mean, rel_tol=0.01, abs_tol=1e-6):
                raise ValueError(
                    f"{self.name} needs a loss that is a mean over examples: a batch's is "
                    f"{whole:.4g}, and the mean over its examples {mean:.4g}. Pass a loss with "
                    "reduction='mean', without weights of classes and ignored targets."
                )

    def check_memory(self, memory: Any, state: State) -> None:
        """Raise a `ValueError` if a loaded memory does not fit the dataset of the sampler."""
        check_entries(memory, "kept", "losses", "weights")
        for name in memory:
            check_tensor(name, memory[name])
            if memory[name].shape != (self.sampler.length,):
                raise ValueError(f"{name} must have one entry for each of {self.sampler.length}.")
