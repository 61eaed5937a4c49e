"""One run in which every event fires, with what the loop does between the events."""

from functools import partial

from torch import nn, optim
from torch.nn.functional import cross_entropy

from composable import Callback, Control, Event
from composable.core.destination import LoggerDestination
from tests.support.data import batches
from tests.support.models import linear
from tests.support.runs import make_trainer

EPOCHS, BATCHES, MICROBATCHES, EVAL_BATCHES = 2, 3, 2, 2


class Tracer(Callback):
    """Records events, and makes requests that fire the events of saves and evaluations."""

    def __init__(self, trace):
        self.trace = trace

    def run_event(self, event, state, logger):
        self.trace.append(event.value)
        if event is Event.BATCH_END and state.timestamp.batch == 2:
            return Control.EVALUATE | Control.SAVE
        if event in (Event.EPOCH_END, Event.ITERATION_END):
            return Control.SAVE
        return None


class TracedLogger(LoggerDestination):
    def __init__(self, trace):
        self.trace = trace

    def log_metrics(self, metrics, timestamp):
        if "loss/train" in metrics:
            self.trace.append("log_metrics(...)")


class TracedMetric:
    def __init__(self, trace):
        self.trace = trace

    def update(self, outputs, targets):
        self.trace.append("metric.update(...)")

    def compute(self):
        return 0.0

    def reset(self):
        pass


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


class TracedModel(nn.Module):
    def __init__(self, trace):
        super().__init__()
        self.trace = trace
        self.linear = linear()
        self.linear.bias.register_post_accumulate_grad_hook(
            lambda _: trace.append("loss.backward()")
        )

    def forward(self, inputs):
        self.trace.append("model(inputs)")
        return self.linear(inputs)


class TracedLoader(list):
    def __init__(self, batches, trace):
        super().__init__(batches)
        self.trace = trace

    def __iter__(self):
        for batch in super().__iter__():
            self.trace.append("next(loader)")
            yield batch


def traced_loss(trace):
    """Return a loss function that records its calls in training."""

    def loss_fn(outputs, targets):
        if outputs.requires_grad:
            trace.append("loss_fn(outputs, targets)")
        return cross_entropy(outputs, targets)

    return loss_fn


def traced_run():
    """Trace the events and calls of building, fitting, evaluating and predicting."""
    trace = ["Trainer(...) begins"]
    trainer = make_trainer(
        TracedModel(trace),
        train_dataloader=TracedLoader(batches([4] * BATCHES), trace),
        eval_dataloader=batches([4] * EVAL_BATCHES),
        max_duration=f"{EPOCHS}ep",
        iteration_length="1ep",
        grad_accum=MICROBATCHES,
        loss_fn=traced_loss(trace),
        optimizers=traced_optimizers(trace),
        schedulers=traced_schedulers(trace),
        step_schedulers_every_batch=True,
        metrics={"metric": TracedMetric(trace)},
        callbacks=[Tracer(trace)],
        loggers=[TracedLogger(trace)],
        saver=lambda state: trace.append("saver(state)"),
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
