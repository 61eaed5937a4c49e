"""The learning rate range test: the loss while the rate grows exponentially.

Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017,
https://arxiv.org/abs/1506.01186
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from composable._support.checks import as_path, check_order, checked, minimum, within
from composable._support.extras import needs
from composable._support.figures import render_figure
from composable._support.paths import write_atomically
from composable.optim.learning_rates import write_option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DIVERGED = 4.0
"""The ratio to the least loss at which the test ends, as in fastai."""
_SMOOTHING = 0.9
_FORMATS = (".png", ".svg", ".pdf")


@attrs.frozen
class RangeTest:
    """The losses of a learning rate range test.

    Args:
        rates: The learning rates of the first parameter group, one for each step.
        losses: The losses, before each step.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def smoothed(self) -> tuple[float, ...]:
        """The exponential moving averages of the losses, without bias."""
        average, found = 0.0, []
        for step, loss in enumerate(self.losses, 1):
            average = _SMOOTHING * average + (1 - _SMOOTHING) * loss
            found.append(average / (1 - _SMOOTHING**step))
        return tuple(found)

    @property
    def suggestion(self) -> float | None:
        """A tenth of the rate at which the smoothed loss is least; None if it never falls.

        It is a first guess for SGD. Compare runs at several rates around it.
        """
        least = min(range(len(self.losses)), key=self.smoothed.__getitem__)
        return self.rates[least] / 10 if least else None

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw the losses by learning rate, and write the picture to a file.

        Args:
            path: A file that ends in ".png", ".svg" or ".pdf"; None to write none.

        Raises:
            ValueError: The path ends otherwise.
            ImportError: matplotlib is not installed.
        """
        target = None if path is None else as_path("path", path)
        if target is not None and target.suffix not in _FORMATS:
            raise ValueError(f"path={str(path)!r} must end in {', '.join(_FORMATS)}.")
        with needs("RangeTest.plot", "plot", "Without it, see rates and smoothed."):
            from matplotlib.figure import Figure
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot(xscale="log", xlabel="learning rate", ylabel="training loss")
        axes.plot(self.rates, self.losses, color="#9aa5b1", label="loss")
        axes.plot(self.rates, self.smoothed, color="#0072b2", label="smoothed")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, color="#d55e00", linestyle="--", label="suggestion")
        axes.legend()
        if target is not None:
            write_atomically(target, render_figure(figure, target.suffix))
        return figure


@checked(min_lr=within(0, ends="()"), max_lr=within(0, ends="()"), num_steps=minimum(2))
def find_lr(
    trainer: Any,
    *,
    min_lr: float = 1e-6,
    max_lr: float = 1.0,
    num_steps: int = 100,
    batches: Iterable[Any] | None = None,
) -> RangeTest:
    r"""Measure the training loss while the learning rate grows, and leave the run as it was.

    Step $k$ of $n$ has the rate $\text{min\_lr} (\text{max\_lr} / \text{min\_lr})^{k / (n - 1)}$ in
    the first parameter group; the ratios between groups are kept. The steps are taken as in the run
    at this time, with its algorithms, precision and batches, from its weights, without callbacks
    and loggers. It ends early when the loss is 4 times the least or not finite. Afterwards the
    model, the optimizers, all generators and the position in the data are as before, to the bit.

    Args:
        trainer: The `Trainer`, before or between calls of `fit`.
        min_lr: The first learning rate, above 0.
        max_lr: The last learning rate, above `min_lr`.
        num_steps: The number of steps, at least 2.
        batches: The batches, a list or a `DataLoader`, repeated as needed. By default those that
            the run would train on next.

    Returns:
        The rates and losses, with `suggestion` and `plot(path)`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range; the first group has the rate 0; the train_dataloader
            keeps a position, so that `batches` is needed; or the run has an engine of DeepSpeed or
            several processes.

    Source: Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017,
    https://arxiv.org/abs/1506.01186

    Example:
        >>> from functools import partial
        >>> from composable import Trainer
        >>> from composable.optim import find_lr
        >>> data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=data,
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=partial(torch.optim.SGD, lr=0.1),
        ...     progress_bar=False,
        ... )
        >>> found = find_lr(trainer, max_lr=10.0, num_steps=50)
        >>> len(found.rates) == len(found.losses) <= 50
        True
    """
    if not hasattr(trainer, "trial"):
        raise TypeError(f"trainer={trainer!r} must be a composable.Trainer.")
    check_order("min_lr", min_lr, "max_lr", max_lr)
    rates: list[float] = []
    losses: list[float] = []
    with trainer.trial() as trial:
        groups = [g for optimizer in trainer.state.optimizers for g in optimizer.param_groups]
        initial = [float(group.get("initial_lr", group["lr"])) for group in groups]
        if not initial or not initial[0]:
            raise ValueError("optimizers: the first parameter group has no learning rate above 0.")
        for number, batch in zip(range(num_steps), trial.batches(batches), strict=False):
            rate = min_lr * (max_lr / min_lr) ** (number / (num_steps - 1))
            for group, own in zip(groups, initial, strict=True):
                write_option(group, rate * own / initial[0])
            loss = float(trial.step(batch, number))
            if not math.isfinite(loss):
                break
            rates.append(rate)
            losses.append(loss)
            if loss > _DIVERGED * min(losses):
                break
    if not losses:
        raise ValueError("trainer: the loss of the first batch is not finite at min_lr.")
    return RangeTest(tuple(rates), tuple(losses))
