"""Estimate the gradient noise scale, which tells what batch size pays.

McCandlish, Kaplan and Amodei, "An Empirical Model of Large-Batch Training",
2018, https://arxiv.org/abs/1812.06162, appendix A.
"""

from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from composable._support.checks import check_range
from composable._support.foreach import total_norm
from composable._support.warn import warn_user
from composable.callbacks._monitor import Monitor, whole_norms
from composable.core.callback import AttachedRun
from composable.core.intervals import IntervalLike
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.stateful import Count, Kind
from composable.data.grouping import batches_of
from composable.distributed import Processes


def _are_averages(value: Any) -> bool:
    return value is None or (isinstance(value, Tensor) and value.shape == (2,))


_AVERAGES = Annotated[Any, Kind("a tensor of two numbers or None", _are_averages)]


class GradientNoise(Monitor):
    r"""Logs the gradient noise scale, in examples.

    For a gradient $G$ of the whole data set and the covariance $\Sigma$ of the gradients of single
    examples, the simple noise scale is

    $$B_\text{simple} = \frac{\operatorname{tr} \Sigma}{|G|^2}.$$

    With a batch size far below it, twice the batch size takes about half the steps; far above it,
    more examples in a batch save hardly any steps. It grows during training.

    Both terms are estimated from the squared norms of the gradient of the first microbatch and of
    the gradient of the whole batch, so batches must be split into microbatches: pass `grad_accum`
    or `microbatch_size` to the `Trainer`. The estimates of one step are noisy, and are averaged
    exponentially. A loss that is a mean over examples is assumed; with a mean over tokens, the
    scale is approximate if examples differ in their numbers of tokens.

    It logs `gradient_noise/scale`, `gradient_noise/variance` ($\operatorname{tr} \Sigma$) and
    `gradient_noise/squared_norm` ($|G|^2$). The scale is NaN until the estimate of $|G|^2$ is
    positive.

    Args:
        interval: When to measure and log: "10ba", "1ep", a function `(state, event) -> bool`, or
            None for never.
        smoothing: The weight of earlier measurements in the averages, in [0, 1).

    Raises:
        ValueError: An argument has an invalid value.
        TypeError: An argument has the wrong type.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import GradientNoise
        >>> from composable.loggers import InMemoryLogger
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 4,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        ...     grad_accum=4,
        ...     callbacks=GradientNoise("2ba"),
        ...     loggers=InMemoryLogger(),
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> len(trainer.history.series("gradient_noise/scale"))
        2
    """

    _saved_attributes: ClassVar = {"_averages": _AVERAGES, "_count": Count}

    def __init__(self, interval: IntervalLike = "10ba", *, smoothing: float = 0.95) -> None:
        super().__init__(interval)
        check_range("smoothing", smoothing, 0, 1, ends="[)")
        self.smoothing = smoothing
        self._averages: Tensor | None = None  # variance and squared norm, both towards 0 at first
        self._count = 0
        self._tried = False
        self._small: Tensor | None = None  # squared norm of the gradient of the first microbatch
        self._latest: Tensor | None = None
        self._large: Tensor | None = None
        self._first, self._part, self._whole = False, 0, 0
        self._run: AttachedRun | None = None

    def attach(self, run: AttachedRun) -> None:
        """Receive the run, which determines how the gradients of microbatches are weighted."""
        self._run = run

    def fit_start(self, state: State, logger: Logger) -> None:
        """Discard the averages of an earlier run.

        Raises:
            ValueError: The parameters of the model are sharded.
        """
        if self._run is not None:
            self._run.check_whole(
                "GradientNoise can't measure a model whose parameters are sharded, as by FSDP2: "
                "its gradients are summed over the processes in each microbatch. Use DDP, or "
                "remove the callback."
            )
        if state.timestamp.batch == 0:
            self._averages, self._count = None, 0

    def before_forward(self, state: State, logger: Logger) -> None:
        """Note whether this is the first microbatch of a pass: nothing has a gradient yet.

        Raises:
            ValueError: The run has several losses.
        """
        if state.update is not None:
            raise ValueError(
                "GradientNoise measures the gradients of one loss, and the run has updates: "
                "remove the callback."
            )
        if self._due:
            self._first = all(parameter.grad is None for parameter in state.model.parameters())

    def after_backward(self, state: State, logger: Logger) -> None:
        """Measure the gradient of the first microbatch."""
        if not self._due or not (self._first or state.precision.scales_loss):
            return
        self._latest = _squared_norm(state)
        if self._first:
            self._small, self._part = self._latest, _count(state)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Measure the gradient of the batch, before algorithms clip it."""
        if self._due:
            self._tried = True
            self._large, self._whole = _squared_norm(state), _count(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update and log the averages."""
        if self._small is not None and self._large is not None:
            found = self._estimate(state, self._small, self._large)
            if found is not None:
                self._metrics = self._average(torch.stack(found))
        super().batch_end(state, logger)

    def _estimate(self, state: State, small: Tensor, large: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the variance and the squared norm; None if the batch was not split."""
        part, whole = self._part, self._whole
        if Processes.current().several:  # each has a part of the batch
            whole = state.timestamp.sample - state.previous_timestamp.sample
        if not 0 < part < whole:
            return None
        small = small * (whole / part) ** 2  # its loss was weighted by its share
        if state.precision.scales_loss and self._latest is not None:
            small = small * (large / self._latest)  # gradients are unscaled at the end
        elif self._run is not None:
            small = small * self._run.gradient_factor**2
        variance = (small - large) / (1 / part - 1 / whole)
        return variance, (whole * large - part * small) / (whole - part)

    def _average(self, found: Tensor) -> dict[str, Tensor]:
        before = torch.zeros_like(found) if self._averages is None else self._averages.to(found)
        self._averages = torch.lerp(found, before, self.smoothing)
        self._count += 1
        variance, squared_norm = self._averages / (1 - self.smoothing**self._count)
        scale = torch.where(squared_norm > 0, variance / squared_norm, torch.nan)
        return {
            "gradient_noise/scale": scale,
            "gradient_noise/variance": variance,
            "gradient_noise/squared_norm": squared_norm,
        }

    def fit_end(self, state: State, logger: Logger) -> None:
        """Warn if nothing could be measured."""
        if self._tried and not self._count:
            warn_user(
                "GradientNoise measured nothing, because no batch was split into microbatches: "
                "pass grad_accum=2 or a microbatch_size to the Trainer.",
            )

    def close(self) -> None:
        """Discard the measurements of a batch that did not end."""
        super().close()
        self._first = False
        self._small = self._latest = self._large = None
        self._part = self._whole = 0


def _squared_norm(state: State) -> Tensor | None:
    """Return the squared norm of the gradients, before algorithms replace them."""
    gradients = [one.grad for one in state.model.parameters() if one.grad is not None]
    return total_norm(whole_norms(gradients)).square() if gradients else None


def _count(state: State) -> int:
    return sum(state.batch_spec.count(batch) for batch in batches_of(state.batch))
