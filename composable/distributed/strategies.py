"""How a run uses several processes."""

import os
from collections.abc import Callable
from typing import Any, ClassVar

import attrs

from composable._support.checks import check_count, check_flag, check_one_of, check_range
from composable.batches.precision import Precision
from composable.distributed.processes import Processes

LOCAL = "composable.engines.engine.Engine"
"""The engine of one process."""
_DATA = ("auto", "global", "local")


@attrs.frozen
class Strategy:
    """What strategies share: see `DDP` for the arguments."""

    shards: int | None = attrs.field(default=None)
    data: str = attrs.field(default="auto")
    timeout: float | None = attrs.field(default=None, kw_only=True)
    engine: ClassVar[Any] = "composable.engines.ddp.Replicated"
    """The class that computes gradients and steps, or its name: see `composable.engines`."""
    reduction: ClassVar[Any] = {}
    """The options of the reduction of gradients over copies of the model."""

    def __attrs_post_init__(self) -> None:
        if self.shards is not None:
            check_count("shards", self.shards, 1)
        if self.timeout is not None:
            check_range("timeout", self.timeout, 0, ends="()")
        check_one_of("data", self.data, _DATA)

    def engine_for(self, processes: Processes, shards: int) -> Any:
        """Return the engine of a run, or its name; with one shard, the engine of one process.

        Args:
            processes: The processes of the run.
            shards: The number of shards.
        """
        return LOCAL if shards == 1 else self.engine

    def check_options(self, options: Any) -> None:
        """Check the arguments of the Trainer: here, none contradicts the strategy."""

    def precision(self, given: Precision) -> Precision:
        """Return the precision of a run, given the Trainer's."""
        return given

    def shard_count(self, processes: Processes, saved: int | None) -> int:
        """Return the number of shards of a run.

        Args:
            processes: The processes of the run.
            saved: The number of shards of the run that is resumed.

        Raises:
            ValueError: It is not a multiple of the number of processes.
        """
        size = processes.size
        count = int(self.shards or saved or size)  # an integer of NumPy can't be saved
        if count % size and self.shards is None:
            raise ValueError(
                f"the checkpoint is from a run with {count} shards, which {size} processes "
                f"cannot share equally; use a divisor of {count}, or pass "
                f"parallel={type(self).__name__}(shards={size}), whose losses will differ from "
                "the losses of that run."
            )
        if count % size:
            raise ValueError(
                f"shards={count} must be a multiple of the number of processes, which is {size}."
            )
        return count


@attrs.frozen
class OneProcess(Strategy):
    """A run of one process, whose batches are not split into shards."""

    engine: ClassVar[Any] = LOCAL

    def shard_count(self, processes: Processes, saved: int | None) -> int:
        """Return 1."""
        return 1


@attrs.frozen
class DDP(Strategy):
    """Data parallelism: each process has a copy of the model, and gradients are summed.

    A batch of `train_dataloader` is the global batch. It is split into `shards`, and each process
    computes the gradients of its shards. Random numbers are drawn, the statistics of batch norm are
    computed, and partners are chosen (MixUp, CutMix) for each shard. So the same run on another
    number of processes has the same losses, to rounding, if `shards` is the same.

    Args:
        shards: Number of parts of a global batch: a multiple of the number of processes. Default:
            as in the checkpoint from which the run is resumed, or the number of processes.
        data: What the loader of a process yields: "global" batches, of which each process uses its
            part, or "local" ones, for a loader that is already divided among the processes.
            Default: "local" for a `DistributedSampler`, a `GlobalBatchSampler` with several
            processes, and streams that are divided or say how: see
            `composable.data.stream_parts`; otherwise "global".
        exact: Sum gradients over the shards in a fixed order, so that the weights are the same, to
            the bit, for any number of processes. `shards` must be a power of two. The reduction
            takes about three times as long.

    Example:
        >>> from composable.distributed import DDP
        >>> DDP(shards=8, exact=True).shards
        8
    """

    exact: bool = attrs.field(default=False)
    bucket_cap_mb: float | None = attrs.field(default=None, kw_only=True)
    comm_hook: Callable[..., Any] | None = attrs.field(default=None, kw_only=True)
    comm_hook_state: Any = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_flag("exact", self.exact)
        if self.bucket_cap_mb is not None:
            check_range("bucket_cap_mb", self.bucket_cap_mb, 0, ends="()")
        if self.comm_hook is not None and not callable(self.comm_hook):
            raise TypeError(
                f"comm_hook={self.comm_hook!r} must be a function of a state and a bucket, such as "
                "bf16_compress_hook of torch.distributed.algorithms.ddp_comm_hooks.default_hooks."
            )
        given = [name for name in ("bucket_cap_mb", "comm_hook") if getattr(self, name)]
        if self.exact and given:
            raise ValueError(
                f"exact=True sums gradients without PyTorch's DDP; omit {', '.join(given)}."
            )
        if self.exact and self.shards is not None and self.shards & (self.shards - 1):
            raise ValueError(
                f"shards={self.shards} must be a power of two with exact=True, such as "
                f"{1 << (self.shards - 1).bit_length()}: sums are formed in pairs."
            )

    @property
    def reduction(self) -> dict[str, Any]:
        """The options of the reduction of gradients."""
        hook = None if self.comm_hook is None else (self.comm_hook_state, self.comm_hook)
        return {"bucket_cap_mb": self.bucket_cap_mb, "hook": hook}

    @property
    def engine(self) -> Any:
        """The engine: another one if sums have a fixed order."""
        return "composable.engines.exact.Exact" if self.exact else Strategy.engine

    def shard_count(self, processes: Processes, saved: int | None) -> int:
        """Return the number of shards of a run.

        Raises:
            ValueError: It is not a multiple of the number of processes, or no power of two.
        """
        count = super().shard_count(processes, saved)
        if self.exact and count & (count - 1):
            raise ValueError(
                f"exact=True needs a number of shards that is a power of two, and this run has "
                f"{count}; pass shards={1 << (count - 1).bit_length()}, and run a number of "
                "processes that divides it."
            )
        return count


def strategy_of(parallel: Any) -> Strategy:
    """Return the strategy that an argument `parallel` means.

    Args:
        parallel: A strategy, "ddp", or None for data parallelism if there are several processes.

    Raises:
        TypeError: It is something else.
        ValueError: It is an unknown name.
    """
    if parallel is None:
        several = Processes.current().several or int(os.environ.get("WORLD_SIZE", "1")) > 1
        return DDP() if several else OneProcess()
    if isinstance(parallel, str):
        if parallel != "ddp":
            raise ValueError(f"parallel={parallel!r} must be 'ddp', or a strategy such as DDP().")
        return DDP()
    if not isinstance(parallel, Strategy):
        raise TypeError(f"parallel={parallel!r} must be 'ddp', or a strategy such as DDP().")
    return parallel
