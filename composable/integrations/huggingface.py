"""Use algorithms in `transformers.Trainer`.

`LoopAdapterCallback` runs the events around steps and epochs. A callback of `transformers.Trainer`
can neither replace a batch or its loss nor act before an evaluation; `LoopAdapterMixin` can.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from composable._support.extras import needs
from composable._support.paths import replacing, write_atomically
from composable._support.pretrained import saving_for_resume
from composable._support.strict_json import load
from composable.checkpoint.sealing import SEAL, verify_seal
from composable.checkpoint.weights import read_file
from composable.data.fetching import loader_length
from composable.integrations._refusals import check_mixin
from composable.integrations.huggingface_checkpoints import (
    SafeCheckpointCallback as SafeCheckpointCallback,
)
from composable.integrations.huggingface_checkpoints import latest_checkpoint as latest_checkpoint
from composable.integrations.loop_adapter import LoopAdapter
from composable.resume.modules import module_tensors

with needs("composable.integrations.huggingface", "huggingface"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_REFUSED = "layers were replaced: load these weights into a model that was changed in the same way"

_MEANS = (None, "nll")


STATE_NAME = "transforms.pt"
"""The file with the state of the adapter, in a checkpoint of `transformers.Trainer`."""

TRAINING_WEIGHTS = "training_weights"
"""The entry of that file with the trained weights, where others are evaluated."""


class LogitsModel(nn.Module):
    """A Hugging Face model with the interface of this library: it maps a batch to logits.

    Pass it to the `Trainer` of this library, and its attribute `model` to `transformers.Trainer`.

    Args:
        model: A model that is called with the batch as keyword arguments, without the labels, and
            whose output has `logits`.
        loss_fn: A function `loss_fn(logits, labels)`, with a mean over the examples.
        labels: The key of the labels in a batch.

    Example:
        >>> from transformers import ResNetConfig, ResNetForImageClassification
        >>> from composable.integrations.huggingface import LogitsModel
        >>> config = ResNetConfig(
        ...     embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic", num_labels=3
        ... )
        >>> model = LogitsModel(ResNetForImageClassification(config))
        >>> batch = {"pixel_values": torch.zeros(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
        >>> model(batch).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss_fn: Callable[[Any, Any], Tensor] = cross_entropy,
        labels: str = "labels",
    ) -> None:
        super().__init__()
        self.model, self.loss_fn, self.labels = model, loss_fn, labels

    def forward(self, batch: Any) -> Any:
        """Compute the logits of a batch."""
        return self.model(**_without(batch, self.labels)).logits

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss of the logits."""
        return self.loss_fn(outputs, batch[self.labels])


class LoopAdapterCallback(TrainerCallback):
    """Runs transforms in a Hugging Face Trainer, which trains `adapter.model.model`.

    The state of the adapter is saved in each checkpoint, in a file `STATE_NAME`. A callback does
    not know from which folder a training resumes: call `adapter.load_state_dict` with the content
    of that file before. `LoopAdapterMixin` does so itself.

    Args:
        adapter: The result of `composable.integrations.adapt_loop` for a `LogitsModel`, without an
            optimizer.
    """

    def __init__(self, adapter: LoopAdapter) -> None:
        self.adapter = adapter
        self._saving = ExitStack()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: Any,
        train_dataloader: Any,
        **_: Any,
    ) -> None:
        """Attach to the optimizer, and reject a training that the adapter cannot follow."""
        self.adapter.follow(
            optimizer,
            loader_length=loader_length(train_dataloader),
            accumulate_batches=args.gradient_accumulation_steps,
            precision="amp_bf16" if args.bf16 else "amp_fp16" if args.fp16 else None,
        )
        self.adapter.check_modules(model)
        self.adapter.start_at(state.global_step)
        self.adapter.watch_steps()
        self._saving.close()  # of a training that failed
        self._saving.enter_context(saving_for_resume(refuse_loading))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save the state of the adapter in the checkpoint."""
        folder = Path(str(args.output_dir), f"checkpoint-{state.global_step}")
        if (folder / SEAL).exists() and not (folder / STATE_NAME).exists():
            raise ValueError(
                "SafeCheckpointCallback comes before LoopAdapterCallback in callbacks=, so its "
                f"seal does not cover {STATE_NAME}: let it be the last one."
            )
        if state.is_world_process_zero and folder.is_dir():
            with replacing(folder / STATE_NAME) as file:
                torch.save(packed(self.adapter), file)

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Start an epoch."""
        self.adapter.start_epoch()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """End the batch after its last microbatch."""
        self.adapter.end_step()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """End the epoch."""
        self.adapter.end_epoch()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the training; the model has the weights with which it is evaluated."""
        self._saving.close()
        self.adapter.finish()
        self.adapter.rest()

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Raise if an algorithm would have replaced the weights for this evaluation."""
        self.adapter.check_evaluating()


class LoopAdapterMixin:
    """A `transformers.Trainer` that trains and evaluates with transforms.

    Put it before `transformers.Trainer` in the list of bases. It adds a `LoopAdapterCallback`; do
    not add another. A class whose other bases define `compute_loss` is rejected, because the mixin
    would hide it in training; so are `compute_loss_func` and `label_smoothing_factor`. TRL's
    `SFTTrainer` defines it for its metrics: write `compute_loss = LoopAdapterMixin.compute_loss`.

    Args:
        args: Positional arguments of `transformers.Trainer`.
        adapter: The result of `composable.integrations.adapt_loop` for a `LogitsModel`.
        kwargs: Keyword arguments of `transformers.Trainer`.

    Example:
        >>> import transformers
        >>> from composable.integrations.huggingface import LoopAdapterMixin
        >>> class Trainer(LoopAdapterMixin, transformers.Trainer):
        ...     pass
        >>> # Trainer(t.model.model, adapter=t, args=..., train_dataset=...).train()
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        from transformers import Trainer  # on use: it is slow to import

        check_mixin(cls, LoopAdapterMixin, Trainer, "compute_loss")

    def __init__(self, *args: Any, adapter: LoopAdapter, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _check_loss(self)
        # The loss is a mean over the microbatch, also of models that would use the number of items
        # in the whole batch: the trainer has to divide it by the number of microbatches.
        self.model_accepts_loss_kwargs = False
        self.loss_is_scaled_for_ga = False
        self.adapter = adapter
        self.add_callback(LoopAdapterCallback(adapter))  # type: ignore[attr-defined]

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train, and restore the state of the adapter if a training is resumed.

        With a `SafeCheckpointCallback`, `resume_from_checkpoint=True` starts a training where there
        is no checkpoint, and a checkpoint with a seal is verified.
        """
        callbacks = self.callback_handler.callbacks  # type: ignore[attr-defined]
        callbacks.sort(key=_seals)  # after what writes to a checkpoint
        folder = resume_from_checkpoint
        if folder is True and any(map(_seals, callbacks)):
            folder = resume_from_checkpoint = latest_checkpoint(self.args.output_dir)  # type: ignore[attr-defined]
        elif folder is True:
            from transformers.trainer_utils import get_last_checkpoint

            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[attr-defined]
        elif folder and Path(folder, SEAL).exists():
            verify_seal(Path(folder))
        if folder and (saved := _read_state(folder)) is not None:
            self.adapter.load_state_dict(saved)
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.adapter.rest()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model with the weights with which it is evaluated."""
        with (  # an internal call saves a checkpoint to resume from
            self.adapter.at_evaluated_weights(),
            saving_for_resume(refuse_loading) if _internal_call else nullcontext(),
        ):
            super().save_model(output_dir, _internal_call=_internal_call)  # type: ignore[misc]

    def _load_from_checkpoint(self, resume_from_checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        """Load the model, and then the training weights where they are others."""
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        saved = _read_state(resume_from_checkpoint)
        own = module_tensors(self.adapter.model)
        with torch.no_grad():
            for name, value in ((saved or {}).get(TRAINING_WEIGHTS) or {}).items():
                own[name].copy_(value)

    def _load_best_model(self) -> None:
        """Load the best model, and the averages with which it was evaluated."""
        super()._load_best_model()  # type: ignore[misc]
        saved = _read_state(self.state.best_model_checkpoint)  # type: ignore[attr-defined]
        if saved is not None:
            self.adapter.restore_averages(saved)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Compute the loss; in training, of the batch that the algorithms return."""
        if not model.training:
            return super().compute_loss(  # type: ignore[misc]
                model, inputs, return_outputs, num_items_in_batch
            )
        t = self.adapter
        outputs = model(**_without(t.start_batch(inputs), t.state.batch_spec.target_key))
        loss = t.loss(outputs.logits)
        # The trainer divides by the microbatches of this step, of which the last may have fewer.
        planned = self.args.gradient_accumulation_steps  # type: ignore[attr-defined]
        loss = loss * (getattr(self, "current_gradient_accumulation_steps", planned) / planned)
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate with the averaged weights."""
        with self.adapter.evaluating():
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict with the averaged weights."""
        with self.adapter.evaluating():
            return super().predict(*args, **kwargs)  # type: ignore[misc]


def packed(adapter: LoopAdapter) -> dict[str, Any]:
    """Return the state of an adapter, with the weights that are trained if others are saved."""
    names = {id(tensor): name for name, tensor in module_tensors(adapter.model).items()}
    values = adapter.weights.values(adapter.state)
    trained = {names[id(one)]: value.detach().clone() for one, _, value in values}
    return {**adapter.state_dict(), TRAINING_WEIGHTS: trained}


def refuse_loading(folder: Path) -> None:
    """Let `from_pretrained` raise for a folder with the weights of changed layers."""
    config = folder / "config.json"
    if config.is_file():
        # An attention that no model has is refused by every class, with this text.
        entries = {**load(config.read_bytes(), str(config)), "attn_implementation": _REFUSED}
        write_atomically(config, (json.dumps(entries, indent=2, sort_keys=True) + "\n").encode())


def _seals(callback: Any) -> bool:
    return isinstance(callback, SafeCheckpointCallback)


def _read_state(folder: Any) -> Any:
    path = Path(str(folder), STATE_NAME)
    return read_file(path) if path.is_file() else None


def _check_loss(trainer: Any) -> None:
    """Raise a ValueError if the trainer has another loss, which the adapter would not use."""
    loss_type = getattr(trainer.args, "loss_type", None)  # of TRL, whose 1.0 sets a function
    if loss_type not in _MEANS:
        raise ValueError(
            f"loss_type={loss_type!r} must be 'nll', because adapt_loop computes the loss: pass it "
            "to LogitsModel."
        )
    if trainer.compute_loss_func is not None:
        raise ValueError(
            f"compute_loss_func={trainer.compute_loss_func!r} must be None, because "
            "adapt_loop computes the loss: pass it there as loss_fn, or to LogitsModel."
        )
    if trainer.args.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor={trainer.args.label_smoothing_factor} must be 0, because "
            "adapt_loop computes the loss: use LabelSmoothing instead."
        )


def _without(batch: Any, key: str) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name != key}
