"""The microbatches of a step in an external loop."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.core.state import State
from composable.distributed.processes import Processes
from composable.engines.shares import LossShares, StepShares, times, without_nothing


@attrs.define(eq=False)
class Accumulation:
    """The microbatches between two steps of the optimizer, each a batch of the loader.

    A loop divides the loss of each microbatch by `accumulate_batches`, as PyTorch's examples do,
    and the gradients of several processes become their mean. So a loss is multiplied by both
    numbers, and by its share in the loss of the step. Where the batches of the step are not known
    with the first one, shares are relative to the first microbatch, and the gradients are rescaled
    in the end. What a loop logs and clips before that has the size of a mean.
    """

    run: LossShares
    """The shares of all steps."""
    accumulate_batches: int = 1
    """The number of microbatches of a step."""
    fetched: Mapping[int, list[Any]] = attrs.field(factory=dict)
    """The batches of a step as they were fetched, by the number of the step in the epoch."""
    count: int = 0
    """The number of microbatches of this step that were started."""
    losses: list[Tensor] = attrs.field(factory=list)
    """The weighted loss of each microbatch."""
    _shares: StepShares | None = None

    @property
    def complete(self) -> bool:
        """Whether the step has all of its microbatches."""
        return self.count >= self.accumulate_batches

    def start(self) -> None:
        """Start a step."""
        self.count, self.losses, self._shares = 0, [], None

    def compute(
        self,
        compute_loss: Callable[..., tuple[State, Any, Tensor, Tensor]],
        state: State,
        whole: State,
        batches: Any,
        unknown: str = "",
    ) -> tuple[State, Tensor]:
        """Return the state and the loss of the last microbatch, multiplied by its share.

        Args:
            compute_loss: Computes outputs and loss.
            state: The state with the microbatch.
            whole: The state with the microbatch before algorithms replaced it for the loss.
            batches: All batches of the step on this process, or None.
            unknown: Why they are not known.
        """
        size = self.accumulate_batches * Processes.current().size
        if size == 1:
            state, _, _, weighted = compute_loss(state)
        else:
            if self._shares is None:
                self._shares = StepShares(
                    self.run,
                    whole.evolve_unchecked(batch=batches),
                    whole.batch,
                    self.accumulate_batches,
                    exchange=partial(sum_over_processes, state.device),
                    size=size,
                    ways="second" if unknown else "either",
                )
                self._shares.unknown = unknown
            state, _, loss, share = self._shares.compute(
                compute_loss, state, whole.batch, empty=False
            )
            weighted = times(loss, share)
            if isinstance(share, Tensor):
                weighted = without_nothing(weighted, share)
            elif not share:
                weighted = weighted.nan_to_num(0.0)  # not a constant: the loop calls `backward`
        self.losses.append(weighted.detach())
        return state, weighted

    def finish(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """Turn the gradients into the gradients of the step's loss, and return this loss.

        In several processes, the mean over them is the loss.
        """
        if self._shares is None:
            return self.losses[0]
        loss = torch.stack(self.losses).sum() / self.accumulate_batches
        seen = None if self._shares.unit is None else self._shares.exchange(self._shares.seen)
        on_cpu = not isinstance(seen, Tensor) or seen.device.type == "cpu"
        return self._shares.finish(lambda: parameters, loss, seen, on_cpu=on_cpu)


def sum_over_processes(device: torch.device, weight: Any) -> Any:
    """Return the sum of a number or a tensor over the processes, on a device."""
    processes = Processes.current()
    if not processes.several:
        return weight
    if not isinstance(weight, Tensor) or weight.device != device:  # a number is free to read
        weight = torch.full((), float(weight), device=device)
    return processes.sum(weight.double())
