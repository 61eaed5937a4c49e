"""The base class of callbacks that measure some batches, and the norms that they measure."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from composable._support import foreach
from composable._support.dtensors import whole
from composable.core.callback import Callback
from composable.core.intervals import IntervalLike, check_interval, completes
from composable.core.logger import Logger
from composable.core.state import State


class Monitor(Callback):
    """Measures the batches that complete an interval, and logs `_metrics` at their end.

    A subclass measures where `_due` is true, and extends `close` by what it keeps within a batch.
    """

    def __init__(self, interval: IntervalLike) -> None:
        self.interval = check_interval("interval", interval)
        self._due = False
        self._metrics: dict[str, Any] = {}

    def batch_start(self, state: State, logger: Logger) -> None:
        """Decide whether this batch is measured."""
        self.close()
        self._due = completes(self.interval, state)

    def _keep(self, metrics: Mapping[str, Any], state: State) -> None:
        """Keep measurements, under the name of the update if there are several."""
        end = "" if state.update is None else f"/{state.update}"
        self._metrics |= {f"{name}{end}": value for name, value in metrics.items()}

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the measurements."""
        if self._metrics:
            logger.log_metrics(self._metrics)
        self.close()

    def close(self) -> None:
        """Discard the measurements of a batch that did not end."""
        self._due, self._metrics = False, {}


def whole_norms(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the L2 norm of each tensor, for 16-bit tensors in float32.

    The norm of a sharded tensor covers the whole tensor; every process must call the function.

    Args:
        tensors: Dense or sparse tensors of any shape, dtype and device.

    Example:
        >>> from composable.callbacks._monitor import whole_norms
        >>> whole_norms([torch.tensor([3.0, 4.0]), torch.zeros(2, 2)])
        [tensor(5.), tensor(0.)]
    """
    detached = (tensor.detach() for tensor in tensors)
    dense = [one.coalesce().values() if one.is_sparse else one for one in detached]
    return [whole(norm) for norm in foreach.l2_norms(dense)]
