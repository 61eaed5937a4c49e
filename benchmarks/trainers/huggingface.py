"""The Trainer of Hugging Face."""

from typing import Any

import torch
import transformers
from torch import nn
from transformers.trainer_utils import get_last_checkpoint

from benchmarks.trainers.job import EPOCHS, LR, SEED, Job, data, loss_fn


class Model(nn.Module):
    """The model, called by keywords."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model = job.model()

    def forward(self, inputs: Any, labels: Any = None) -> dict[str, Any]:
        """Return the logits."""
        return {"logits": self.model(inputs)}


class Record(transformers.TrainerCallback):
    """Records the loss of each step."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Record the loss."""
        if logs and "loss" in logs:
            self.job.record(state.global_step, logs["loss"])


def version() -> str:
    """Return the version."""
    return str(transformers.__version__)


def compute_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Compute the sum over the labels divided by their number in the whole batch."""
    if num_items_in_batch is None:
        return loss_fn(outputs["logits"], labels)
    return loss_fn(outputs["logits"], labels, reduction="sum") / num_items_in_batch


class InOrder(transformers.Trainer):
    """Reads the examples in their order."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def train(job: Job) -> None:
    """Train, from the last checkpoint if there is one."""
    transformers.set_seed(SEED)
    trainer = (transformers.Trainer if job.shuffles else InOrder)(
        model=Model(job),
        args=transformers.TrainingArguments(
            output_dir=str(job.checkpoints),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=job.microbatch_size,
            gradient_accumulation_steps=job.microbatches,
            learning_rate=LR,
            lr_scheduler_type="constant",
            weight_decay=0.01,
            max_grad_norm=0.0,
            save_strategy="steps",
            save_steps=1,
            logging_steps=1,
            label_names=["labels"],
            seed=SEED,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=[{"inputs": x, "labels": y} for x, y in data()],
        compute_loss_func=compute_loss,
        callbacks=[Record(job)],
    )
    job.checkpoints.mkdir(parents=True, exist_ok=True)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(job.checkpoints)))
    job.finish(trainer.model.model.state_dict())
