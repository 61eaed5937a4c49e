"""The points of a training run at which algorithms and callbacks act."""

from enum import Enum

__all__ = ["Event"]


class Event(Enum):
    """A point of a run. The members stand in the order in which they fire.

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
                    # <BATCH_START>
                    # <BEFORE_TRAIN_BATCH>
                    for microbatch in split(batch):  # again, where a second pass is asked for
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
                    scheduler.step()
                    # <AFTER_SCHEDULER_STEP>
                    # <BATCH_END>
                    # <LOG>
                    evaluate()  # where it is due
                    # <BATCH_CHECKPOINT>
                    save()  # where it is asked for
                # <LOG>, where it is due only now: the length of the epoch was unknown
                # <BEFORE_SCHEDULER_STEP>
                scheduler.step()  # those that step each epoch
                # <AFTER_SCHEDULER_STEP>
                # <EPOCH_END>
                evaluate()
                # <EPOCH_CHECKPOINT>
                save()
            # <ITERATION_END>
            # <ITERATION_CHECKPOINT>
            save()
        evaluate()  # unless it was done just now
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
            saver(state)
            # <AFTER_SAVE>

    `Trainer.eval` fires `EVAL_STANDALONE_START`, the events of each evaluator, and
    `EVAL_STANDALONE_END`. `Trainer.predict` fires the `PREDICT_*` events.

    Example:
        >>> from composable import Event
        >>> Event("batch_end") is Event.BATCH_END
        True
        >>> Event.TRAINING_START is Event.FIT_START  # another name of the same point
        True
    """

    INIT = "init"
    """Once, while the `Trainer` is built, before optimizer factories are called: for surgery."""
    BEFORE_LOAD = "before_load"
    """Once, while the `Trainer` is built, before a saved state would be read."""
    AFTER_LOAD = "after_load"
    """Once, after `BEFORE_LOAD`: the model is final and the optimizers exist."""
    FIT_START = "fit_start"
    """At the start of every `Trainer.fit`."""
    ITERATION_START = "iteration_start"
    """Before the first epoch of an iteration (a group of epochs; by default the whole run)."""
    EPOCH_START = "epoch_start"
    """Before the first batch of an epoch."""
    BEFORE_DATALOADER = "before_dataloader"
    """Before each batch is fetched, and once more when the loader is found to be exhausted."""
    AFTER_DATALOADER = "after_dataloader"
    """After the batch was fetched and moved to the device: to select, resize, augment."""
    BATCH_START = "batch_start"
    """Before a batch is trained on."""
    BEFORE_TRAIN_BATCH = "before_train_batch"
    """Before the forward, loss and backward of the whole batch: once, however it is split."""
    BEFORE_FORWARD = "before_forward"
    """Before the model is called: once for each microbatch, as are the five that follow. The
    global generators are seeded for the step right after it."""
    AFTER_FORWARD = "after_forward"
    """After the model was called; `state.outputs` is set."""
    BEFORE_LOSS = "before_loss"
    """Before the loss is computed."""
    AFTER_LOSS = "after_loss"
    """After the loss was computed; `state.loss` is that of the microbatch."""
    BEFORE_BACKWARD = "before_backward"
    """Before the gradients are computed."""
    AFTER_BACKWARD = "after_backward"
    """After the gradients were added to the parameters' `.grad`."""
    AFTER_TRAIN_BATCH = "after_train_batch"
    """After the last microbatch; the gradients are those of the whole batch."""
    BEFORE_OPTIMIZER_STEP = "before_optimizer_step"
    """Before the optimizers step: for gradient clipping."""
    AFTER_OPTIMIZER_STEP = "after_optimizer_step"
    """After the optimizers stepped; gradients and the learning rate used can still be read."""
    BEFORE_ZERO_GRAD = "before_zero_grad"
    """Before the gradients are dropped."""
    AFTER_ZERO_GRAD = "after_zero_grad"
    """After the gradients were dropped."""
    BEFORE_SCHEDULER_STEP = "before_scheduler_step"
    """Before the learning rate of the batch (or epoch) to come is set, where anything sets it."""
    AFTER_SCHEDULER_STEP = "after_scheduler_step"
    """After the learning rate of the batch (or epoch) to come was set."""
    BATCH_END = "batch_end"
    """After the batch; the timestamp counts it."""
    LOG = "log"
    """After the loop handed its own metrics to the loggers (each `log_interval`)."""
    EVAL_BEFORE_ALL = "eval_before_all"
    """Before the evaluators of the run are gone through."""
    EVAL_STANDALONE_START = "eval_standalone_start"
    """At the start of a direct call of `Trainer.eval`."""
    EVAL_START = "eval_start"
    """Before an evaluator's first batch: for evaluating with other weights."""
    EVAL_BATCH_START = "eval_batch_start"
    """Before a batch is evaluated."""
    EVAL_BEFORE_FORWARD = "eval_before_forward"
    """Before the model is called on it."""
    EVAL_AFTER_FORWARD = "eval_after_forward"
    """After the model was called on it."""
    EVAL_BATCH_END = "eval_batch_end"
    """After the metrics have taken it in."""
    EVAL_END = "eval_end"
    """After an evaluator's last batch; `state.metrics[label]` has its results."""
    EVAL_STANDALONE_END = "eval_standalone_end"
    """At the end of a direct call of `Trainer.eval`."""
    EVAL_AFTER_ALL = "eval_after_all"
    """After the evaluators of the run were gone through."""
    BATCH_CHECKPOINT = "batch_checkpoint"
    """After `BATCH_END` and any evaluation that was due: the place to ask for a save."""
    BEFORE_SAVE = "before_save"
    """Before the state is saved."""
    AFTER_SAVE = "after_save"
    """After the state was saved."""
    EPOCH_END = "epoch_end"
    """After the last batch of an epoch; the timestamp counts the epoch."""
    EPOCH_CHECKPOINT = "epoch_checkpoint"
    """After `EPOCH_END` and any evaluation that was due: the place to ask for a save."""
    ITERATION_END = "iteration_end"
    """After the last epoch of an iteration; the timestamp counts the iteration."""
    ITERATION_CHECKPOINT = "iteration_checkpoint"
    """After `ITERATION_END`: the place to ask for a save."""
    FIT_END = "fit_end"
    """At the end of every `Trainer.fit`, after the last evaluation."""
    PREDICT_START = "predict_start"
    """At the start of `Trainer.predict`."""
    PREDICT_BATCH_START = "predict_batch_start"
    """Before a batch is predicted."""
    PREDICT_BEFORE_FORWARD = "predict_before_forward"
    """Before the model is called on it."""
    PREDICT_AFTER_FORWARD = "predict_after_forward"
    """After the model was called on it."""
    PREDICT_BATCH_END = "predict_batch_end"
    """After its outputs were collected."""
    PREDICT_END = "predict_end"
    """At the end of `Trainer.predict`."""

    # Other names of the same points.
    TRAINING_START = "fit_start"
    TRAINING_END = "fit_end"
    BEFORE_EVAL_ALL = "eval_before_all"
    AFTER_EVAL_ALL = "eval_after_all"

    # Events are dictionary keys in the hot path: identity is all that tells them apart.
    __hash__ = object.__hash__

    @property
    def opens(self) -> bool:
        """Whether this event is the first of a pair."""
        return self in CLOSED_BY

    @property
    def closes(self) -> bool:
        """Whether this event is the second of a pair: listeners then run in reverse order."""
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
"""The event that closes each opening event."""

_CLOSING = {closing: opening for opening, closing in CLOSED_BY.items()}

_AFTER_BATCH = {
    event
    for event in Event
    if event.name.startswith(("EVAL", "PREDICT"))
    or event.name.endswith(("_SCHEDULER_STEP", "_CHECKPOINT", "_SAVE", "BATCH_END"))
    or event in (Event.LOG, Event.EPOCH_END, Event.ITERATION_END, Event.FIT_END)
}
