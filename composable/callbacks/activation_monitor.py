"""Log statistics of the activations of a model."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from composable._support.checks import check_flag, check_texts
from composable._support.tree import tensors_of
from composable.callbacks._monitor import Monitor
from composable.core.intervals import IntervalLike
from composable.core.logger import Logger
from composable.core.state import State


class ActivationMonitor(Monitor):
    """Logs statistics of the outputs of modules, in the first microbatch of a batch.

    For the output of each module it logs four numbers under names such as
    `activations/l2_norm/encoder.0_output.0`, where 0 counts the tensors of the output:

    - `l2_norm`: the L2 norm over the last dimension, averaged over the others,
    - `average`: the mean,
    - `kurtosis`: the fourth standardized moment over the last dimension, averaged over the others;
      it is 3 for normally distributed activations, and grows with outliers,
    - `max`: the maximum.

    Forward hooks are registered only for the forward passes that are logged, and removed after
    them. A compiled model is compiled once more for these passes.

    Args:
        interval: When to log: "100ba", "1ep", a function `(state, event) -> bool`, or None for
            never.
        modules: Patterns of the names of modules, such as `["encoder.*", "*.mlp"]`. By default,
            every module that contains no other module.
        inputs: Log the inputs of the modules too, as `activations/l2_norm/encoder.0_input.0`.

    Raises:
        ValueError: `interval` is not a valid interval.
        TypeError: An argument has the wrong type.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import ActivationMonitor
        >>> from composable.loggers import InMemoryLogger
        >>> trainer = Trainer(
        ...     torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 4,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        ...     callbacks=ActivationMonitor("2ba", modules=["1"]),
        ...     loggers=InMemoryLogger(),
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> len(trainer.history.series("activations/kurtosis/1_output.0"))
        2
    """

    def __init__(
        self,
        interval: IntervalLike = "100ba",
        *,
        modules: Sequence[str] | None = None,
        inputs: bool = False,
    ) -> None:
        super().__init__(interval)
        if modules is not None:
            check_texts("modules", modules, "patterns, such as ['encoder.*'], or None")
        check_flag("inputs", inputs)
        self.modules, self.inputs = modules, inputs
        self._hooks: list[RemovableHandle] = []

    def before_forward(self, state: State, logger: Logger) -> None:
        """Register the hooks."""
        self._remove_hooks()
        if self._due and not self._metrics:
            for name, module in self._chosen(state.model):
                self._hooks.append(module.register_forward_hook(self._hook(name)))

    def after_forward(self, state: State, logger: Logger) -> None:
        """Remove the hooks."""
        self._remove_hooks()

    def close(self) -> None:
        """Remove the hooks, and discard the statistics of a batch that did not end."""
        self._remove_hooks()
        super().close()

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _chosen(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        for name, module in model.named_modules():
            if self.modules is None:
                if not any(True for _ in module.children()):
                    yield name, module
            elif any(fnmatchcase(name, pattern) for pattern in self.modules):
                yield name, module

    def _hook(self, name: str) -> Any:
        def measure(module: nn.Module, inputs: Any, outputs: Any) -> None:
            self._add(f"{name}_output", outputs)
            if self.inputs:
                self._add(f"{name}_input", inputs)

        return measure

    @torch.no_grad()
    def _add(self, name: str, values: Any) -> None:
        floating = [one for one in tensors_of(values) if one.is_floating_point() and one.numel()]
        for i, tensor in enumerate(floating):
            for statistic, value in _statistics(tensor.detach()).items():
                self._metrics[f"activations/{statistic}/{name}.{i}"] = value


def _statistics(x: Tensor) -> dict[str, Tensor]:
    x = x if x.ndim else x[None]
    x = x if x.dtype is torch.float64 else x.float()
    deviation = x - x.mean(-1, keepdim=True)
    squared = deviation.square()
    return {
        "l2_norm": torch.linalg.vector_norm(x, dim=-1).mean(),
        "average": x.mean(),
        "kurtosis": (squared.square().mean(-1) / squared.mean(-1).square()).nanmean(),
        "max": x.max(),
    }
