"""The algorithms in `lightning.pytorch.Trainer`, with automatic optimization.

`LoopAdapterCallback` runs what happens around steps, epochs and evaluations. A callback of
Lightning's can't replace a batch or its loss: `LoopAdapterMixin` does that in `training_step`.
"""

from contextlib import ExitStack
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from composable.integrations.external_loop import LoopAdapter

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "composable.integrations.lightning needs the package lightning, which is not installed: "
        'pip install "composable[lightning]".'
    ) from error

__all__ = ["LoopAdapterCallback", "LoopAdapterMixin"]


class LoopAdapterCallback(Callback):
    """Runs transforms in a Lightning Trainer; the module trains `adapter.model`.

    Algorithms that change the batch or its loss need two calls in `training_step` besides:
    `adapter.start_batch(batch)` and `adapter.loss(outputs)`, which `LoopAdapterMixin` makes.

    Args:
        adapter: What `composable.integrations.adapt_loop` made, without an optimizer.

    Example:
        >>> import lightning.pytorch as L
        >>> from composable.algorithms import EMA
        >>> from composable.integrations.lightning import LoopAdapterCallback
        >>> from composable.integrations import adapt_loop
        >>> t = adapt_loop([EMA("10ba")], torch.nn.Linear(4, 3), seed=17)
        >>> callback = LoopAdapterCallback(t)  # L.Trainer(callbacks=[callback])
    """

    def __init__(self, adapter: LoopAdapter) -> None:
        self.adapter = adapter
        self._evaluation = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the optimizer, and refuse a loop in which a batch is no step."""
        if not pl_module.automatic_optimization:
            raise ValueError(
                "automatic_optimization=False: call the transforms in your training_step instead, "
                "as in a loop of your own, and leave the callback out."
            )
        if trainer.accumulate_grad_batches != 1:
            raise ValueError(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} must be 1, for a batch "
                "of the loader is a step here: use larger batches."
            )
        length = trainer.num_training_batches
        known = length if isinstance(length, int) else None
        self.adapter.follow(trainer.optimizers[0], epoch_length=known)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start an epoch."""
        self.adapter.start_epoch()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Let algorithms change the gradients."""
        self.adapter.before_step()

    def on_train_batch_end(self, *_: Any) -> None:
        """Count the batch."""
        self.adapter.after_step()
        self.adapter.end_batch()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the epoch."""
        self.adapter.end_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the training."""
        self.adapter.finish()

    def _start(self, *_: Any) -> None:
        # Not evaluating(): after an exception it would end later than Lightning's own inference
        # mode, which began before it, and leave gradients switched off.
        self._evaluation.enter_context(self.adapter.evaluation_weights())

    def _end(self, *_: Any) -> None:
        self._evaluation.close()

    on_validation_start = on_test_start = on_predict_start = _start
    on_validation_end = on_test_end = on_predict_end = on_exception = _end


class LoopAdapterMixin:
    """A `LightningModule` whose `training_step` is that of its `adapt_loop`.

    Set `self.adapter` in `__init__`. The callback comes along; don't add another.

    Example:
        >>> import lightning.pytorch as L
        >>> from composable.algorithms import EMA, MixUp
        >>> from composable.integrations.lightning import LoopAdapterMixin
        >>> from composable.integrations import adapt_loop
        >>> class Classifier(LoopAdapterMixin, L.LightningModule):
        ...     def __init__(self, adapter):
        ...         super().__init__()
        ...         self.adapter = adapter
        ...         self.net = adapter.model
        ...
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.net.parameters(), lr=0.1)
        >>> t = adapt_loop(
        ...     [MixUp(), EMA("10ba")],
        ...     torch.nn.Linear(4, 3),
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     seed=17,
        ... )
        >>> module = Classifier(t)  # L.Trainer(max_epochs=10).fit(module, loader)
    """

    adapter: LoopAdapter

    def configure_callbacks(self) -> list[Callback]:
        """The callbacks of the module, and that of the transforms."""
        others = super().configure_callbacks()  # type: ignore[misc]
        return [*others, LoopAdapterCallback(self.adapter)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of the batch as the algorithms make it."""
        self.adapter.start_batch(batch)
        return self.adapter.loss(self.adapter.state.forward())
