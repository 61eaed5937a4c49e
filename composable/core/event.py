"""The points of a run at which algorithms and callbacks act."""

from enum import Enum


class Event(Enum):
    """A point of a run. The members are listed in the order in which they fire.

    ::

        # <INIT>
        # <BEFORE_LOAD>
        # <AFTER_LOAD>
        # <FIT_START>
        for iteration in iterations:
            # <ITERATION_START>
            for epoch in epochs:
                # <EPOCH_START>
                while True:
                    # <BEFORE_DATALOADER>
                    batch = next(dataloader)
                    if batch is None:
                        break
                    # <AFTER_DATALOADER>
                    # <BEFORE_SCHEDULER_STEP>
                    set_learning_rates()  # by schedules, which are functions of time
                    # <AFTER_SCHEDULER_STEP>
                    # <BATCH_START>
                    # <BEFORE_TRAIN_BATCH>
                    for microbatch in split(batch):  # twice, if a second pass is requested
                        # <BEFORE_FORWARD>
                        outputs = model(inputs)
                        # <AFTER_FORWARD>
                        # <BEFORE_LOSS>
                        loss = loss_fn(outputs, targets)
                        # <AFTER_LOSS>
                        # <BEFORE_BACKWARD>
                        loss.backward()
                        # <AFTER_BACKWARD>
                    # <AFTER_TRAIN_BATCH>
                    # <BEFORE_OPTIMIZER_STEP>
                    optimizer.step()
                    # <AFTER_OPTIMIZER_STEP>
                    # <BEFORE_ZERO_GRAD>
                    optimizer.zero_grad()
                    # <AFTER_ZERO_GRAD>
                    # <BEFORE_SCHEDULER_STEP>
                    scheduler.step()  # PyTorch schedulers that step once a batch
                    # <AFTER_SCHEDULER_STEP>
                    # <BATCH_END>
                    # <LOG>  # if due or requested
                    evaluate()  # if due or requested
                    # <BATCH_CHECKPOINT>
                    save()  # if requested
                # <LOG>  # if due only now, since the length of the epoch was unknown
                # <BEFORE_SCHEDULER_STEP>
                scheduler.step()  # PyTorch schedulers that step once an epoch
                # <AFTER_SCHEDULER_STEP>
                # <EPOCH_END>
                evaluate()  # if due or requested
                # <BEFORE_SCHEDULER_STEP>
                scheduler.step(loss)  # ReduceLROnPlateau, if just evaluated
                # <AFTER_SCHEDULER_STEP>
                # <EPOCH_CHECKPOINT>
                save()  # if requested
            # <ITERATION_END>
            # <ITERATION_CHECKPOINT>
            save()  # if requested
        evaluate()  # unless already evaluated after this batch
        save()  # if a checkpoint of the end is due and not saved yet
        # <FIT_END>


        def evaluate():
            # <EVAL_BEFORE_ALL>
            for evaluator in evaluators:
                # <EVAL_START>
                for batch in evaluator.dataloader:
                    # <EVAL_BATCH_START>
                    # <EVAL_BEFORE_FORWARD>
                    outputs = model(inputs)
                    # <EVAL_AFTER_FORWARD>
                    metrics.update(outputs, targets)
                    # <EVAL_BATCH_END>
                # <EVAL_END>
            # <EVAL_AFTER_ALL>


        def save():
            # <BEFORE_SAVE>
            write_checkpoint(state)
            # <AFTER_SAVE>

    `Trainer.eval` fires `EVAL_STANDALONE_START`, the events of each evaluator, and
    `EVAL_STANDALONE_END`. `Trainer.predict` fires the `PREDICT_*` events.

    Example:
        >>> from composable import Event
        >>> Event("batch_end") is Event.BATCH_END
        True
        >>> Event.TRAINING_START is Event.FIT_START  # an alternative name
        True
    """

    INIT = "init"
    """Once, in the constructor of `Trainer`, before optimizers are created: for model surgery."""
    BEFORE_LOAD = "before_load"
    """Once, in the constructor of `Trainer`, before weights are loaded (`load_path`)."""
    AFTER_LOAD = "after_load"
    """Once, after weights are loaded: the model is final and the optimizers exist."""
    FIT_START = "fit_start"
    """At the start of every `Trainer.fit`."""
    ITERATION_START = "iteration_start"
    """Before the first epoch of an iteration (a group of epochs; by default the whole run)."""
    EPOCH_START = "epoch_start"
    """Before the first batch of an epoch."""
    BEFORE_DATALOADER = "before_dataloader"
    """Before each batch is fetched, and once more before the loader turns out to be exhausted."""
    AFTER_DATALOADER = "after_dataloader"
    """After the batch is fetched and moved to the device: to select, resize and augment."""
    BATCH_START = "batch_start"
    """Before training on a batch."""
    BEFORE_TRAIN_BATCH = "before_train_batch"
    """Before the forward and backward passes of the whole batch: once, however it is split. With
    `accumulate_batches`, it and `AFTER_DATALOADER` fire for each batch of the loader."""
    BEFORE_FORWARD = "before_forward"
    """Before the model is called: once for each microbatch, like the five events that follow. The
    global random number generators are seeded for the step right after it."""
    AFTER_FORWARD = "after_forward"
    """After the model is called; `state.outputs` is set."""
    BEFORE_LOSS = "before_loss"
    """Before the loss is computed."""
    AFTER_LOSS = "after_loss"
    """After the loss is computed; `state.loss` is the loss of the microbatch."""
    BEFORE_BACKWARD = "before_backward"
    """Before the gradients are computed."""
    AFTER_BACKWARD = "after_backward"
    """After the gradients are added to the parameters' `.grad`."""
    AFTER_TRAIN_BATCH = "after_train_batch"
    """After the last microbatch; the gradients cover the whole batch."""
    BEFORE_OPTIMIZER_STEP = "before_optimizer_step"
    """Before the optimizers step: for gradient clipping."""
    AFTER_OPTIMIZER_STEP = "after_optimizer_step"
    """After the optimizers step; the gradients and the learning rates used are still set."""
    BEFORE_ZERO_GRAD = "before_zero_grad"
    """Before the gradients are set to None."""
    AFTER_ZERO_GRAD = "after_zero_grad"
    """After the gradients are set to None."""
    BEFORE_SCHEDULER_STEP = "before_scheduler_step"
    """Before a PyTorch scheduler steps, or the schedules set the learning rates of a batch."""
    AFTER_SCHEDULER_STEP = "after_scheduler_step"
    """After a PyTorch scheduler steps, or the schedules set the learning rates of a batch."""
    BATCH_END = "batch_end"
    """After a batch; the timestamp counts it."""
    LOG = "log"
    """After the loop logs its metrics, at each `log_interval` or if requested."""
    EVAL_BEFORE_ALL = "eval_before_all"
    """Before the evaluators that are due run."""
    EVAL_STANDALONE_START = "eval_standalone_start"
    """At the start of `Trainer.eval`."""
    EVAL_START = "eval_start"
    """Before the first batch of an evaluator: for evaluating with averaged weights."""
    EVAL_BATCH_START = "eval_batch_start"
    """Before a batch is evaluated."""
    EVAL_BEFORE_FORWARD = "eval_before_forward"
    """Before the model is called."""
    EVAL_AFTER_FORWARD = "eval_after_forward"
    """After the model is called."""
    EVAL_BATCH_END = "eval_batch_end"
    """After the metrics are updated."""
    EVAL_END = "eval_end"
    """After the last batch of an evaluator; `state.metrics[label]` holds its results."""
    EVAL_STANDALONE_END = "eval_standalone_end"
    """At the end of `Trainer.eval`."""
    EVAL_AFTER_ALL = "eval_after_all"
    """After all evaluators that were due."""
    BATCH_CHECKPOINT = "batch_checkpoint"
    """After `BATCH_END` and any evaluation: where callbacks request a checkpoint."""
    BEFORE_SAVE = "before_save"
    """Before a checkpoint is saved."""
    AFTER_SAVE = "after_save"
    """After a checkpoint is saved."""
    EPOCH_END = "epoch_end"
    """After the last batch of an epoch; the timestamp counts the epoch."""
    EPOCH_CHECKPOINT = "epoch_checkpoint"
    """After `EPOCH_END` and any evaluation: where callbacks request a checkpoint."""
    ITERATION_END = "iteration_end"
    """After the last epoch of an iteration; the timestamp counts the iteration."""
    ITERATION_CHECKPOINT = "iteration_checkpoint"
    """After `ITERATION_END`: where callbacks request a checkpoint."""
    FIT_END = "fit_end"
    """At the end of every `Trainer.fit`, after the last evaluation and checkpoint."""
    PREDICT_START = "predict_start"
    """At the start of `Trainer.predict`."""
    PREDICT_BATCH_START = "predict_batch_start"
    """Before a batch is predicted."""
    PREDICT_BEFORE_FORWARD = "predict_before_forward"
    """Before the model is called."""
    PREDICT_AFTER_FORWARD = "predict_after_forward"
    """After the model is called."""
    PREDICT_BATCH_END = "predict_batch_end"
    """After the outputs are collected."""
    PREDICT_END = "predict_end"
    """At the end of `Trainer.predict`."""

    # Alternative names.
    TRAINING_START = "fit_start"
    TRAINING_END = "fit_end"
    BEFORE_EVAL_ALL = "eval_before_all"
    AFTER_EVAL_ALL = "eval_after_all"

    # Events are dictionary keys in the hot path: hashing by identity is the fastest.
    __hash__ = object.__hash__

    @property
    def opens(self) -> bool:
        """Whether this event is the first of a pair."""
        return self in CLOSED_BY

    @property
    def closes(self) -> bool:
        """Whether this event is the second of a pair; listeners then run in reverse order."""
        return self in _CLOSING

    @property
    def counts_batch(self) -> bool:
        """Whether the timestamp already counts the batch to which this event belongs."""
        return self in _AFTER_BATCH

    @property
    def partner(self) -> "Event | None":
        """The other event of the pair, or None."""
        return CLOSED_BY.get(self) or _CLOSING.get(self)


def _find_pairs() -> dict[Event, Event]:
    pairs = {}
    for event in Event:
        name = event.name
        partner = name.replace("BEFORE", "AFTER") if "BEFORE" in name else None
        partner = name.removesuffix("START") + "END" if name.endswith("START") else partner
        if partner is not None:
            pairs[event] = Event[partner]
    return pairs


CLOSED_BY = _find_pairs()
"""The closing event of each opening event."""

_CLOSING = {closing: opening for opening, closing in CLOSED_BY.items()}

_AFTER_BATCH = {
    event
    for event in Event
    if event.name.startswith(("EVAL", "PREDICT"))
    or event.name.endswith(("_CHECKPOINT", "_SAVE", "BATCH_END"))
    or event in (Event.LOG, Event.EPOCH_END, Event.ITERATION_END, Event.FIT_END)
}
