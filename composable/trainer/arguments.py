"""Check arguments: an error names the argument, its value, what is allowed, and what to do."""

import copy
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch
from torch import nn
from torch.optim import Optimizer

from composable._support.notes import add_note
from composable._support.warn import warn_user
from composable.batches.model_call import is_transformers_model
from composable.batches.precision import Precision
from composable.batches.spec import BatchSpec
from composable.core.event import Event
from composable.core.intervals import check_interval
from composable.core.state import State
from composable.core.time import Time, TimeLike, TimeUnit, check_length, counts_whole
from composable.distributed.processes import Processes
from composable.distributed.starting import local_device
from composable.losses.loss import Loss, ModelLoss, OutputLoss, TargetLoss
from composable.metrics import Evaluator
from composable.plan.compatibility import occurrences
from composable.plan.declarations import as_list, class_message
from composable.plan.plan import IdleAlgorithmWarning, Plan
from composable.utils.reproducibility import accelerator

if TYPE_CHECKING:
    from composable.optim.learning_rates import LearningRates
    from composable.trainer.run import Run

_COUNTED = TimeUnit.EPOCH, TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN, TimeUnit.SECOND


def check_model(_: str, model: Any) -> nn.Module:
    """Check that the model is a module."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(class_message("model is", model))
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={model!r} must be a torch.nn.Module.")
    if type(model).__name__ == "OptimizedModule":
        raise ValueError(
            "model is a result of torch.compile, which renames parameters; pass the module that "
            "was compiled (model._orig_mod) and compile=True, or options of torch.compile."
        )
    if model._compiled_call_impl is not None:
        raise ValueError(
            "model is compiled in place; drop the call of model.compile() and pass compile=True, "
            "or a mapping of options of torch.compile, so that it is compiled after surgery."
        )
    return model


def check_loss_fn(loss_fn: Any, model: nn.Module, spec: BatchSpec) -> Loss | None:
    """Return the loss of outputs and a batch: by `loss_fn`, or by the model."""
    if isinstance(loss_fn, type):
        raise TypeError(class_message("loss_fn is", loss_fn))
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"loss_fn={loss_fn!r} must be a function (outputs, targets) -> loss.")
    if loss_fn is not None:
        return TargetLoss(loss_fn, spec)
    if callable(getattr(model, "loss", None)):
        return ModelLoss(model)
    return OutputLoss(type(model).__name__) if is_transformers_model(model) else None


def find_device(device: torch.device | str | int | None) -> torch.device:
    """Return the device; by default the accelerator, unless it can't do what the CPU can."""
    found, several = accelerator(), int(os.environ.get("WORLD_SIZE", "1")) > 1
    if device is None:
        # "mps" has no float64, and several processes share accelerators of CUDA alone.
        lacks = found == "mps" or (several and found != "cuda")
        device = "cpu" if found is None or lacks else found
    device = "cuda" if device == "gpu" else device
    if several and device in ("cuda", torch.device("cuda")) and found == "cuda":
        return local_device()
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        chosen = torch.device("meta")
    if chosen.type == "meta":
        raise ValueError(
            f"device={device!r} must be 'cpu', 'cuda', 'cuda:1', 'mps', 'xpu' or another "
            "accelerator of this PyTorch."
        )
    if chosen.type not in ("cpu", found):
        raise ValueError(
            f"device={device!r} is not available: this PyTorch ({torch.__version__}) finds "
            f"{found or 'no accelerator'}; use 'cpu', or install a build of PyTorch for "
            f"{chosen.type!r}."
        )
    count = torch.accelerator.device_count()
    if chosen.type == found and (chosen.index or 0) >= count:
        raise ValueError(
            f"device={device!r} is not available: this machine has {count} {found} devices, from "
            f"'{found}:0' to '{found}:{count - 1}'; check variables that hide some, such as "
            "CUDA_VISIBLE_DEVICES."
        )
    return chosen


def check_duration(max_duration: TimeLike, name: str = "max_duration") -> Time:
    """Return a positive length of training."""
    return check_length(name, max_duration, (*_COUNTED, TimeUnit.ITERATION))


def check_limit(name: str, limit: int | None, length: int | None, loader: str) -> int | None:
    """Return the number of batches of a loader that are used; None if it is unknown.

    Raises:
        ValueError: The limit is larger than the length of the loader.
    """
    if limit is not None and length is not None and limit > length:
        raise ValueError(
            f"{name}={limit} must be at most {length}: {loader} has {length} batches; drop it to "
            "use all of them."
        )
    return length if limit is None else limit


def check_endless(name: str, time: Time | None, loader: Any) -> None:
    """Check that a length of training is reached, if a function stands for a loader."""
    from composable.data.fetching import function_arity  # on use

    in_epochs = time is not None and time.unit in (TimeUnit.EPOCH, TimeUnit.ITERATION)
    if in_epochs and function_arity(loader) is not None:
        raise ValueError(
            f"{name}={str(time)!r} counts epochs, and train_dataloader is a function, whose "
            "batches may have no end; pass a number of batches, such as '1000ba', or the "
            "epoch_batches after which an epoch ends."
        )


def check_loader(name: str, loader: Any, *, by_step: bool = False) -> Any:
    """Check that a loader has batches, and can be iterated more than once.

    Args:
        name: The name of the argument.
        loader: The loader, or a function in its place.
        by_step: Whether a function may return the batch of a step.
    """
    from composable.data.fetching import function_arity, loader_length  # on use

    if function_arity(loader) in ((0, 2) if by_step else (0,)):
        return loader
    if not isinstance(loader, Iterable) or isinstance(loader, (str, bytes, torch.Tensor)):
        kind = "<a tensor>" if isinstance(loader, torch.Tensor) else repr(loader)
        more = ", or a function (key, step) that returns the batch of a step" if by_step else ""
        raise TypeError(
            f"{name}={kind} must be an iterable of batches, such as a torch.utils.data.DataLoader, "
            f"or a function without arguments that returns an iterator over them{more}."
        )
    if isinstance(loader, dict):
        raise TypeError(
            f"{name} is a dictionary of {', '.join(map(repr, loader))}; pass one of its loaders, "
            "or a composable.data.Mixture of them."
        )
    if hasattr(loader, "__next__"):
        raise TypeError(
            f"{name}={loader!r} is an iterator, which is exhausted after one epoch; pass what it "
            "iterates over, such as a list or a DataLoader, or the function that returns it."
        )
    if loader_length(loader) == 0:
        raise ValueError(
            f"{name} is empty; check the dataset, and drop_last with a batch_size above the number "
            "of examples."
        )
    return loader


def check_separate_streams(train: Any, evaluators: Iterable[Evaluator]) -> None:
    """Check that no evaluator moves the position of the training loader.

    Raises:
        ValueError: One iterates over the same loader or stream, which has a state.
    """
    from composable.data.order import is_stateful, is_stateful_stream  # on use

    if not is_stateful(train):
        return
    stream = getattr(train, "dataset", None) if is_stateful_stream(train) else None
    for one in evaluators:
        own = one.dataloader
        if own is train or (stream is not None and getattr(own, "dataset", None) is stream):
            raise ValueError(
                f"Evaluator {one.label!r} iterates over the stream of train_dataloader, whose "
                "position would be lost; pass a loader with its own dataset object."
            )


def check_evaluators(
    given: Any, metrics: Any, eval_interval: Any, eval_batches: int | None = None
) -> tuple[Evaluator, ...]:
    """Return evaluators from a loader, an Evaluator, or several, with the defaults filled in."""
    from composable.data.fetching import loader_length  # on use

    check_interval("eval_interval", eval_interval)
    if given is None:
        return ()
    if isinstance(given, Evaluator):
        given = [given]
    if isinstance(given, Mapping):
        if not all(isinstance(label, str) and label for label in given):
            raise TypeError(
                f"eval_dataloader has the labels {list(given)}, which must be non-empty str."
            )
        given = [Evaluator(label, loader) for label, loader in given.items()]
    labelled = isinstance(given, Sequence) and any(isinstance(one, Evaluator) for one in given)
    if not labelled:
        given = [Evaluator("eval", check_loader("eval_dataloader", given))]
    complete = []
    for one in given:
        if not isinstance(one, Evaluator):
            raise TypeError(
                f"eval_dataloader mixes Evaluators with a {type(one).__name__}; pass Evaluators "
                "only, such as Evaluator('test', dataloader)."
            )
        name = f"the dataloader of Evaluator {one.label!r}"
        check_loader(f"eval_dataloader: {name}", one.dataloader)
        limit, limited = one.batches or eval_batches, "batches" if one.batches else "eval_batches"
        check_limit(limited, limit, loader_length(one.dataloader), name)
        interval = eval_interval if one.eval_interval is None else one.eval_interval
        interval = check_interval("eval_interval", interval)
        found = metrics_by_name(metrics if one.metrics is None else one.metrics)
        complete.append(attrs.evolve(one, metrics=found, eval_interval=interval, batches=limit))
    labels = [one.label for one in complete]
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"eval_dataloader has Evaluators with equal labels: {labels}; make the labels unique."
        )
    return tuple(complete)


class Metric(Protocol):
    """A metric of torchmetrics, or one like it."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch."""

    def compute(self) -> Any:
        """Return the value."""


def metrics_by_name(
    metrics: Mapping[str, Any] | Metric | None, argument: str = "metrics"
) -> dict[str, Any]:
    """Return metrics by name."""
    if metrics is None:
        return {}
    if hasattr(metrics, "update") and hasattr(metrics, "compute"):  # of torchmetrics
        several = dict(metrics.items()) if hasattr(metrics, "items") else None
        metrics = {type(metrics).__name__: metrics} if several is None else several
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"{argument}={metrics!r} must be a mapping of names to metrics, such as "
            "{'accuracy': composable.metrics.accuracy}."
        )
    if "loss" in metrics:
        raise ValueError(
            f"{argument} has 'loss', under which an evaluation reports loss_fn; use another name."
        )
    for name, metric in metrics.items():
        if isinstance(metric, type) or not (callable(metric) or hasattr(metric, "update")):
            raise TypeError(
                f"{argument}[{name!r}]={metric!r} must be a function (outputs, targets), or an "
                "object with update, compute and reset."
            )
    return dict(metrics)


def train_metrics_by_name(metrics: Mapping[str, Any] | Metric | None) -> dict[str, Any]:
    """Return the metrics of training by name."""
    from composable.metrics import OfAll, joins_itself  # on use

    found = metrics_by_name(metrics, "train_metrics")
    for name, metric in found.items():
        computes, several = hasattr(metric, "compute"), Processes.current().several
        saved = hasattr(metric, "load_state_dict") and not hasattr(metric, "compute_groups")
        alone = computes and several and not joins_itself(metric)
        reasons = {
            "keeps all outputs; pass it in metrics, for evaluations": isinstance(metric, OfAll),
            "has no state to save; pass metrics of a collection by name": computes and not saved,
            "joins no processes; use torchmetrics": alone,
        }
        for why in (why for why, refused in reasons.items() if refused):
            raise TypeError(f"train_metrics[{name!r}] is of {type(metric).__name__}, which {why}.")
    return found


def metrics_of(model: nn.Module, loss: Loss | None) -> dict[str, Any]:
    """Return the metrics that a model that computes its loss defines by `metrics(train)`."""
    define = getattr(model, "metrics", None)
    if not isinstance(loss, ModelLoss) or not callable(define) or isinstance(define, nn.Module):
        return {}
    return metrics_by_name(define(train=False))


def check_log_interval(interval: TimeLike) -> Time:
    """Return a positive interval for logging."""
    without = "; without loggers, nothing is logged"
    return check_length("log_interval", interval, (*_COUNTED, TimeUnit.DURATION), without)


def check_countable(name: str, time: Any, count_tokens: Any) -> None:
    """Check that tokens are counted if a length of training is in tokens."""
    if isinstance(time, Time) and time.unit is TimeUnit.TOKEN and count_tokens is None:
        raise ValueError(
            f"{name}={str(time)!r} is in tokens, which needs count_tokens; pass a function of the "
            "batch that counts them."
        )


def check_windows(plan: Plan, count_tokens: Any, iteration_length: int | None) -> None:
    """Check that what the windows of algorithms are measured in is counted."""
    for algorithm in plan.algorithms:
        for occurrence in occurrences(algorithm):
            for window in (*occurrence.windows(), occurrence.algorithm.window()):
                for end, time in (("start", window.start), ("end", window.end)):
                    name = f"the window of {occurrence.algorithm.name}: {end}"
                    check_countable(name, time, count_tokens)
                    check_iterations(time, iteration_length, name)


def absent_events(evaluators: Sequence[Evaluator], schedulers: Any) -> dict[Event, str]:
    """Return the events that do not occur in a run, and why."""
    absent = {}
    for event in Event:
        if event.name.startswith("EVAL") and not evaluators:
            absent[event] = "there is no eval_dataloader"
        if event.name.endswith("SCHEDULER_STEP") and not as_list(schedulers):
            absent[event] = "there are no schedulers"
    return absent


def check_token_counter(function: Callable[[Any], Any] | None) -> Callable[[Any], int] | None:
    """Return a function that counts the tokens of a batch, and checks the count."""
    if function is None:
        return None
    if not callable(function):
        raise TypeError(f"count_tokens={function!r} must be a function of the batch.")

    def count(batch: Any) -> int:
        given = function(batch)
        try:
            tokens = operator.index(given)
        except (TypeError, RuntimeError):
            tokens = -1
        if tokens < 0:
            raise ValueError(
                f"count_tokens returned {given!r} and must return a nonnegative integer."
            )
        return tokens

    return count


def check_seed(seed: int | None, saved: int | None) -> int | None:
    """Return the seed of a run; a resumed run has one already."""
    if seed is not None and saved is not None and seed != saved:
        raise ValueError(
            f"seed={seed} differs from the seed {saved} of the run to resume; drop it, or start "
            "a new run with load_weights_only=True."
        )
    return saved if seed is None else seed


def check_iteration_length(length: TimeLike | None) -> int | None:
    """Return a number of epochs, or None."""
    if length is None:
        return None
    return int(check_length("iteration_length", length, [TimeUnit.EPOCH]).value)


def check_iterations(
    time: Time | None, iteration_length: int | None, name: str = "max_duration"
) -> None:
    """Check that iterations have a length if a length of training is in iterations."""
    counts = time is not None and time.unit is TimeUnit.ITERATION
    if counts and iteration_length is None:
        raise ValueError(
            f"{name}={str(time)!r} is in iterations, which needs iteration_length, such as '2ep'."
        )


def _warn_of_unmeasured(plan: Plan, state: State) -> None:
    from composable.plan.spans import find_unmeasured  # on use

    for name in find_unmeasured(plan.algorithms, state):
        warn_user(
            f"{name} follows the elapsed share of a run of {state.max_duration}, which is known "
            "only between epochs or iterations of unknown length; pass max_duration in batches or "
            "samples, such as '1000ba', or in epochs with a loader that has a length.",
            UserWarning,
        )


def check_start(run: "Run", longer: Time | None, *, repeats: bool) -> State:
    """Check how long a run is to train, and return the state to start from.

    Args:
        run: The run.
        longer: How much longer to train; None for the rest of `max_duration`.
        repeats: Whether the call continues one that was interrupted, which has its length.

    Raises:
        ValueError: The run has ended, or counts nothing in the unit of its length.
    """
    from composable.trainer.loop import finished  # on use

    state, progress = run.state, run.progress
    if longer is not None and not repeats:
        progress.fit_in_progress = progress.fit_in_progress and not finished(run, state)
        state = state.evolve(max_duration=state.timestamp.get(longer.unit) + longer)
    elif progress.of_call and not repeats:
        over, state = finished(run, state), state.evolve(max_duration=progress.whole)
        progress.fit_in_progress &= not over or finished(run, state)
    check_iterations(state.max_duration, run.iteration_length)
    if run.data.epoch_batches is None:
        check_endless("duration", longer, run.data.loader)
    check_countable("max_duration", state.max_duration, run.data.count_tokens)
    if not progress.fit_in_progress and finished(run, state):
        raise ValueError(
            f"max_duration={str(state.max_duration)!r} is reached, at {state!r}; call "
            "fit(duration=...) to train for longer."
        )
    progress.of_call = longer is not None
    run.rates.check_warmup(state)
    run.rates.check_length(state)
    if state.max_duration is not None and counts_whole(state, state.max_duration):
        _warn_of_unmeasured(run.dispatcher.plan, state)
    if not progress.num_fits:
        run.rates.check_counts(state)
        for remark in run.dispatcher.plan.with_remarks(state).remarks:
            if remark.warns:
                warn_user(str(remark), IdleAlgorithmWarning)
    return state


def check_ready(run: "Run", duration: Any) -> None:
    """Check that a run has what training needs.

    Raises:
        ValueError: An argument is missing.
    """
    state, progress = run.state, run.progress
    whole = progress.whole if progress.of_call else state.max_duration
    missing = {
        "train_dataloader": run.data.loader is None,
        "optimizers": not state.optimizers,
        "max_duration": duration is None and whole is None,
    }
    for argument, absent in missing.items():
        if absent:
            raise ValueError(f"fit needs {argument}; pass it to the Trainer.")
    if state.loss_fn is None and not run.updates:
        raise ValueError(
            f"fit needs a loss; pass loss_fn, or give {type(state.model).__name__} a method "
            "loss(outputs, batch)."
        )
    due = [evaluator.eval_interval is not None for evaluator in run.evaluation.evaluators[:1]]
    if run.rates.plateaus and not any(due):
        raise ValueError(
            "schedulers has a ReduceLROnPlateau, which needs the loss of an evaluation; pass an "
            "eval_dataloader, and an eval_interval such as '1ep'."
        )


def check_trial(run: "Run") -> None:
    """Check that steps of a run can be tried and undone.

    Raises:
        ValueError: Its engine can't undo them, or an argument is missing.
    """
    if not run.engine.can_undo:
        raise ValueError(
            "trial and check cannot restore the parts that several processes, or DeepSpeed, have "
            "of a run: call them in one process, with parallel=None."
        )
    if not run.state.optimizers or (run.state.loss_fn is None and not run.updates):
        raise ValueError("trial and check need optimizers and a loss; pass them to the Trainer.")


# --- validators of single options ---


def check_eps(optimizers: Iterable[Optimizer], precision: Precision) -> None:
    """Raise a ValueError if an optimizer adds an epsilon that is 0 in the dtype of the weights."""
    dtype = precision.weight_dtype
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        eps = group.get("eps")
        positive = isinstance(eps, float) and eps > 0
        if positive and dtype is not None and not torch.tensor(eps, dtype=dtype):
            raise ValueError(
                f"the optimizer's eps={eps} is 0 in {dtype}, the dtype of the weights with "
                f"precision={precision.name!r}, so it would divide by 0; pass eps=1e-4, or "
                f"precision='amp_{precision.name}', which keeps the weights in float32."
            )


def check_schedules(state: State, rates: "LearningRates") -> None:
    """Call each schedule at the start of a run of known length, with copies of the groups."""
    if state.max_duration is None:
        return
    groups = [group for optimizer in rates.optimizers for group in optimizer.param_groups]
    options = copy.deepcopy([{**group, "params": []} for group in groups])
    copies: Any = (SimpleNamespace(param_groups=options),)
    try:
        attrs.evolve(rates, optimizers=copies).set(state)
    except Exception as error:
        add_note(error, "raised by schedulers, which are called when the Trainer is built.")
        raise
