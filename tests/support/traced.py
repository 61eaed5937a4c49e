"""One run in which every event fires, with what the loop does between the events."""

from functools import partial
from types import SimpleNamespace

from torch import optim
from torch.nn.functional import cross_entropy

from composable import Callback, Control, Event
from composable.core.destination import LoggerDestination
from tests.support.data import batches
from tests.support.models import linear
from tests.support.runs import make_trainer

EPOCHS, BATCHES, MICROBATCHES, EVAL_BATCHES = 2, 3, 2, 2


class TracedLogger(LoggerDestination):
    def __init__(self, trace):
        self.trace = trace

    def log_metrics(self, metrics, timestamp):
        if "loss/train" in metrics:
            self.trace.append("log_metrics(...)")


class SavesBy(Callback):
    """Calls a function with the state where a checkpoint would be written."""

    def __init__(self, save):
        self.manager = SimpleNamespace(
            settings=SimpleNamespace(
                save_interval=None, weights_only=True, background=False, metric=None, mode=None
            ),
            **{"wanted": True, "improved": False, "best": None, "latest": None},
            save=lambda state, *_, **__: save(state),
        )

    def attach(self, run):
        run.checkpoints.managers.append(self.manager)


class TracedLoader(list):
    def __init__(self, batches, trace):
        super().__init__(batches)
        self.trace = trace

    def __iter__(self):
        for batch in super().__iter__():
            self.trace.append("next(loader)")
            yield batch


def traced_model(trace):
    """Build a model that records its forward and backward passes."""
    model = linear()
    model.register_forward_pre_hook(lambda *_: trace.append("model(inputs)"))
    model.bias.register_post_accumulate_grad_hook(lambda _: trace.append("loss.backward()"))
    return model


def traced_optimizers(trace):
    """Return a builder of an optimizer that records its calls."""

    class Optimizer(optim.SGD):
        def step(self, closure=None):
            trace.append("optimizer.step()")
            return super().step(closure)

        def zero_grad(self, set_to_none=True):
            if trace[-1] != "fit() begins":  # which drops the gradients of an interrupted run
                trace.append("optimizer.zero_grad()")
            super().zero_grad(set_to_none)

    def build(parameters):
        trace.append("optimizers(parameters)")
        return Optimizer(parameters, lr=0.1)

    return build


def traced_schedulers(trace):
    """Return a builder of a scheduler that records its steps."""

    class Scheduler(optim.lr_scheduler.LambdaLR):
        def step(self, epoch=None):
            if "fit() begins" in trace:  # the constructor calls it, too
                trace.append("scheduler.step()")
            super().step(epoch)

    return partial(Scheduler, lr_lambda=lambda step: 1.0)


def traced_run():
    """Trace the events and calls of building, fitting, evaluating and predicting."""
    trace = ["Trainer(...) begins"]

    def requests(event, state, logger):
        """Record the event, and request saves and evaluations."""
        trace.append(event.value)
        if event is Event.BATCH_END and state.timestamp.batch == 2:
            return Control.EVALUATE | Control.SAVE
        return Control.SAVE if event in (Event.EPOCH_END, Event.ITERATION_END) else None

    def loss_fn(outputs, targets):
        if outputs.requires_grad:  # in training
            trace.append("loss_fn(outputs, targets)")
        return cross_entropy(outputs, targets)

    metric = SimpleNamespace(
        update=lambda outputs, targets: trace.append("metric.update(...)"),
        compute=lambda: 0.0,
        reset=lambda: None,
    )
    trainer = make_trainer(
        traced_model(trace),
        train_dataloader=TracedLoader(batches([4] * BATCHES), trace),
        eval_dataloader=batches([4] * EVAL_BATCHES),
        max_duration=f"{EPOCHS}ep",
        iteration_length="1ep",
        grad_accum=MICROBATCHES,
        loss_fn=loss_fn,
        optimizers=traced_optimizers(trace),
        schedulers=traced_schedulers(trace),
        step_schedulers_every_batch=True,
        metrics={"metric": metric},
        callbacks=[requests, SavesBy(lambda state: trace.append("write_checkpoint(state)"))],
        loggers=[TracedLogger(trace)],
    )
    trace.append("Trainer(...) returns")
    for name, call in {
        "fit()": trainer.fit,
        "eval()": trainer.eval,
        "predict()": lambda: trainer.predict(batches([4] * EVAL_BATCHES)),
    }.items():
        trace.append(f"{name} begins")
        call()
        trace.append(f"{name} returns")
    return trace
