"""Log the norms of gradients, weights and updates."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from composable._support.checks import check_flag, check_flags
from composable._support.foreach import total_norm
from composable.callbacks._monitor import Monitor, whole_norms
from composable.core.intervals import IntervalLike
from composable.core.logger import Logger
from composable.core.state import State


class OptimizerMonitor(Monitor):
    """Logs the L2 norms of gradients, weights and updates.

    It logs `l2_norm/grad/global`, `l2_norm/param/global` and `l2_norm/update/global`, and with
    `per_parameter=True` also the norms of each parameter, such as `l2_norm/grad/0.weight`.
    Gradients are taken from the whole batch, before clipping. Weights are measured after the step,
    and the update is what the step added to them. The norms are computed on the device and stay
    there until a logger writes them.

    An optimizer may add metrics, as Composer's `DecoupledAdamW` does: its method
    `report_per_parameter_metrics(parameter, name, metrics)` returns `metrics`, a dictionary, with
    its metrics added. It is called for each of the optimizer's parameters that has a gradient.

    Args:
        interval: When to log: "20ba", "1ep", a function `(state, event) -> bool`, or None for
            never.
        weights: Log the norm of the weights.
        updates: Log the norm of the updates. This keeps a second copy of the weights during the
            steps that are logged.
        per_parameter: Log the norms of each parameter too.
        log_optimizer_metrics: Log the metrics of optimizers that have such a method.

    Raises:
        ValueError: `interval` is not a valid interval.
        TypeError: An argument has the wrong type.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import OptimizerMonitor
        >>> from composable.loggers import InMemoryLogger
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 4,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        ...     callbacks=OptimizerMonitor("2ba"),
        ...     loggers=InMemoryLogger(),
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> [
        ...     timestamp.batch
        ...     for timestamp, norms in trainer.history.records
        ...     if "l2_norm/grad/global" in norms
        ... ]
        [2, 4]
        >>> gradient, update = (
        ...     trainer.history.latest["l2_norm/grad/global"],
        ...     trainer.history.latest["l2_norm/update/global"],
        ... )
        >>> round(update / gradient, 3)
        0.5
    """

    def __init__(
        self,
        interval: IntervalLike = "20ba",
        *,
        weights: bool = True,
        updates: bool = True,
        per_parameter: bool = False,
        log_optimizer_metrics: bool = True,
    ) -> None:
        super().__init__(interval)
        check_flags(weights=weights, updates=updates, per_parameter=per_parameter)
        check_flag("log_optimizer_metrics", log_optimizer_metrics)
        self.weights, self.updates = weights, updates
        self.per_parameter, self.log_optimizer_metrics = per_parameter, log_optimizer_metrics
        self._stepped: list[str] = []
        self._before: dict[str, Tensor] = {}

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Measure the gradients before algorithms clip them."""
        if self._due:
            gradients = state.current_gradients()
            self._stepped = list(gradients)
            self._add("grad", gradients, state)

    def before_optimizer_step(self, state: State, logger: Logger) -> None:
        """Copy the weights that the step will change."""
        if self._due and self.updates:
            named = dict(state.named_parameters())
            self._before = {name: named[name].detach().clone() for name in self._stepped}

    def after_optimizer_step(self, state: State, logger: Logger) -> None:
        """Measure the weights and the updates."""
        if not self._due:
            return
        named = {name: parameter.detach() for name, parameter in state.named_parameters()}
        if self.weights:
            self._add("param", named, state)
        if self._before:
            torch._foreach_sub_([*self._before.values()], [named[name] for name in self._before])
            self._add("update", self._before, state)
            self._before = {}
        if self.log_optimizer_metrics:
            self._keep(_reported(state), state)

    def close(self) -> None:
        """Discard the measurements of a batch that did not end."""
        super().close()
        self._stepped, self._before = [], {}

    def _add(self, kind: str, tensors: Mapping[str, Tensor], state: State) -> None:
        if not tensors:
            return
        norms = whole_norms(tensors.values())
        if self.per_parameter:
            named = zip(tensors, norms, strict=True)
            self._keep({f"l2_norm/{kind}/{name}": norm for name, norm in named}, state)
        self._keep({f"l2_norm/{kind}/global": total_norm(norms)}, state)


@torch.no_grad()
def _reported(state: State) -> dict[str, Any]:
    """Return the metrics that optimizers report of their parameters."""
    metrics: dict[str, Any] = {}
    for optimizer in state.optimizers:
        report = getattr(optimizer, "report_per_parameter_metrics", None)
        if callable(report):
            own = {id(one) for group in optimizer.param_groups for one in group["params"]}
            for name, parameter in state.named_parameters():
                if id(parameter) in own and parameter.grad is not None:
                    metrics = report(parameter, name, metrics)
    return metrics
