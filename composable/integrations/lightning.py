"""Use algorithms in `lightning.pytorch.Trainer`, with automatic optimization.

`LoopAdapterCallback` runs the events around steps, epochs and evaluations. A Lightning callback
cannot replace a batch or its loss; `LoopAdapterMixin` does that in `training_step`.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from composable._support.extras import needs
from composable.integrations._refusals import check_mixin
from composable.integrations.lightning_checkpoints import SafeCheckpointIO as SafeCheckpointIO
from composable.integrations.lightning_checkpoints import latest_checkpoint as latest_checkpoint
from composable.integrations.loop_adapter import LoopAdapter
from composable.trainer.evaluated_weights import averaging_names

with needs("composable.integrations.lightning", "lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer


TRAINING_WEIGHTS = "composable_training_weights"
"""The entry of a checkpoint with the weights that are trained, where others are evaluated."""

_PRECISIONS = {
    "bf16-mixed": "amp_bf16",
    "16-mixed": "amp_fp16",
    "bf16-true": "bf16",
    "16-true": "fp16",
}
"""The names in this library of Lightning's precisions."""


class LoopAdapterCallback(Callback):
    """Runs transforms in a Lightning Trainer; the module trains `adapter.model`.

    Algorithms that change the batch or its loss also require two calls in `training_step`:
    `adapter.start_batch(batch)` and `adapter.loss(outputs)`. `LoopAdapterMixin` makes them.

    Args:
        adapter: The result of `composable.integrations.adapt_loop`, without an optimizer.

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
        self._scaled = False
        self._steps = 0
        self._accumulated = 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the optimizer, and reject a training that the adapter cannot follow."""
        if not pl_module.automatic_optimization:
            raise ValueError(
                "automatic_optimization=False is not supported: remove the callback, and call the "
                "transforms in training_step, as in a custom loop."
            )
        length, optimizer = trainer.num_training_batches, trainer.optimizers[0]
        self.adapter.follow(
            optimizer,
            loader_length=length if isinstance(length, int) else None,
            accumulate_batches=trainer.accumulate_grad_batches,
            precision=_PRECISIONS.get(str(trainer.precision)),
        )
        self.adapter.check_modules(pl_module)
        self._check_weights_only(trainer, pl_module)
        self.adapter.start_at(trainer.global_step)
        for saver in trainer.checkpoint_callbacks if trainer.ckpt_path else ():
            # It forgets that on a resume, and would save between the batches of the next step.
            vars(saver)["_last_global_step_saved"] = trainer.global_step
        self._steps = trainer.global_step
        self._accumulated = trainer.accumulate_grad_batches
        self._scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        self.adapter.watch_steps(before=self._scaled)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the adapter, which Lightning saves in its checkpoints."""
        return self.adapter.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state of the adapter from a checkpoint of Lightning."""
        self.adapter.load_state_dict(state_dict)

    def _check_weights_only(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that Lightning calls a hook for each checkpoint, which has the evaluated weights.

        Raises:
            ValueError: It calls none for those with the weights alone.
        """
        averages = averaging_names(self.adapter.plan)
        savers: list[Any] = trainer.checkpoint_callbacks
        partial = [saver for saver in savers if getattr(saver, "save_weights_only", False)]
        if averages and partial and not isinstance(pl_module, LoopAdapterMixin):
            raise ValueError(
                f"{type(partial[0]).__name__}(save_weights_only=True) would save the training "
                f"weights, and evaluations use the averages of {', '.join(sorted(averages))}; let "
                "the module inherit from LoopAdapterMixin, or drop save_weights_only=True."
            )

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the evaluated weights as the module's, and the training weights beside."""
        if not isinstance(pl_module, LoopAdapterMixin):  # otherwise its own hook does so
            exchange_saved(self.adapter, pl_module, checkpoint)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the training weights; the module has loaded the evaluated ones."""
        weights = checkpoint.get(TRAINING_WEIGHTS)
        if weights and self.state_key in checkpoint.get("callbacks", {}):
            pl_module.load_state_dict(weights, strict=False)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start an epoch."""
        self.adapter.start_epoch()

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Reject a number of batches in a step that changes during the training.

        Raises:
            ValueError: It has changed since the start.
        """
        self.adapter.resume_epoch()  # Lightning starts none if the last step of one was saved
        counts = trainer.fit_loop.epoch_progress
        if counts.current.started == counts.current.processed:
            counts.increment_ready()  # nor does it count that one, which the next resume needs
            counts.increment_started()
        if trainer.accumulate_grad_batches != self._accumulated:
            raise ValueError(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} must not change during "
                f"a training that started with {self._accumulated}, because epochs would change "
                "their length: remove the GradientAccumulationScheduler."
            )

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Run the algorithms that change gradients."""
        if not self._scaled:  # otherwise a hook does so, unless the scaler skips the step
            self.adapter.before_step()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """End the batch after its last microbatch."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.adapter.end_step()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the epoch."""
        self.adapter.end_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the training; the module has the weights with which it is evaluated."""
        self.adapter.finish()
        self.adapter.rest()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the evaluated weights in the module, also if a checkpoint was the last one."""
        self.adapter.rest()

    def _start(self, *_: Any) -> None:
        # Not evaluating(): after an exception it would exit after Lightning's own inference mode,
        # which it was nested in, and leave gradients disabled.
        self._evaluation.enter_context(self.adapter.evaluation_weights())

    def _end(self, trainer: Trainer, *_: Any) -> None:
        self._evaluation.close()
        if trainer.state.fn != "fit":
            self.adapter.rest()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the evaluated weights in the module."""
        self._evaluation.close()
        self.adapter.rest()

    on_validation_start = on_test_start = on_predict_start = _start
    on_validation_end = on_test_end = on_predict_end = _end


def exchange_saved(
    adapter: LoopAdapter, module: LightningModule, checkpoint: dict[str, Any]
) -> None:
    """Replace the training weights in a checkpoint by the evaluated ones, and keep both."""
    names = {id(value): name for name, value in module.state_dict(keep_vars=True).items()}
    kept = {}
    for tensor, evaluated, trained in adapter.weights.values(adapter.state):
        if (name := names.get(id(tensor))) in checkpoint["state_dict"]:
            checkpoint["state_dict"][name] = evaluated.detach().clone()
            kept[name] = trained.detach().clone()
    if kept and "optimizer_states" in checkpoint:  # not one with the weights alone
        checkpoint[TRAINING_WEIGHTS] = kept


class LoopAdapterMixin:
    """A `LightningModule` whose `training_step` runs its `adapt_loop`.

    Put it before `LightningModule` in the list of bases, and set `self.adapter` in `__init__`. It
    adds a `LoopAdapterCallback`; do not add another. A class whose other bases define
    `training_step` is rejected, because the mixin would hide it.

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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_mixin(cls, LoopAdapterMixin, LightningModule, "training_step")

    def configure_callbacks(self) -> list[Callback]:
        """Return the callbacks of the module and of the transforms."""
        others = super().configure_callbacks()  # type: ignore[misc]
        return [*others, LoopAdapterCallback(self.adapter)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the evaluated weights, and the training weights beside them."""
        super().on_save_checkpoint(checkpoint)  # type: ignore[misc]
        exchange_saved(self.adapter, self, checkpoint)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Compute the loss of the batch that the algorithms return.

        Raises:
            RuntimeError: Lightning calls no `LoopAdapterCallback`, as in trials of its `Tuner`.
        """
        if not self.adapter.watching:
            raise RuntimeError(
                "training_step() of LoopAdapterMixin was called without LoopAdapterCallback, as by "
                "Lightning's Tuner, which removes all callbacks; tune a module without the mixin."
            )
        self.adapter.start_batch(batch)
        return self.adapter.loss(self.adapter.state.forward())
