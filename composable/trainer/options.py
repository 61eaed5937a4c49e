"""Checks of what a user gives the Trainer: each says the argument, its value and what to do."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from composable.core.batch import BatchSpec
from composable.core.callback import Callback
from composable.core.event import Event
from composable.core.intervals import check_interval
from composable.core.loss import ModelLoss, TargetLoss
from composable.core.time import Time, TimeUnit, check_time
from composable.metrics import Evaluator
from composable.plan.compatibility import occurrences
from composable.plan.declarations import as_list
from composable.plan.plan import Plan
from composable.trainer.guards import POLICIES, NonFiniteGuard


def check_model(model: Any) -> nn.Module:
    """A module."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(
            f"model is the class {model.__name__}: give an instance, {model.__name__}()."
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={model!r} must be a torch.nn.Module.")
    return model


def check_loss_fn(loss_fn: Any, model: nn.Module, spec: BatchSpec) -> TargetLoss | ModelLoss | None:
    """`loss_fn(outputs, targets)`, or the model's `loss(outputs, batch)`."""
    if isinstance(loss_fn, type):
        raise TypeError(
            f"loss_fn is the class {loss_fn.__name__}: give an instance, {loss_fn.__name__}()."
        )
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"loss_fn={loss_fn!r} must be a function (outputs, targets) -> loss.")
    if loss_fn is not None:
        return TargetLoss(loss_fn, spec)
    return ModelLoss(model) if callable(getattr(model, "loss", None)) else None


def check_device(device: Any) -> torch.device:
    """One of cpu and cuda; by default cuda where it is at hand."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device("cuda" if device == "gpu" else device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device={device!r} is unknown: use 'cpu', 'cuda' or 'cuda:1'.") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is not supported: use 'cpu', 'cuda' or 'cuda:1'.")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device={device!r} was asked for, and this PyTorch ({torch.__version__}) finds no "
            "CUDA device: use 'cpu', or install a CUDA build of PyTorch."
        )
    return chosen


def check_function(name: str, function: Any, call: str) -> Any:
    """A function, or None."""
    if function is not None and not callable(function):
        raise TypeError(f"{name}={function!r} must be a function {call}.")
    return function


def check_duration(max_duration: Any, name: str = "max_duration") -> Time:
    """A length of training above zero."""
    length = check_time(name, max_duration)
    if length.unit is TimeUnit.DURATION:
        raise ValueError(
            f"{name}={str(length)!r} is a fraction of itself: give epochs, batches, samples, "
            "tokens or seconds, such as '10ep'."
        )
    if not length.value:
        raise ValueError(f"{name}={str(length)!r} must be longer than nothing.")
    return length


def check_positive(name: str, value: Any) -> int | None:
    """An integer from 1 on, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be an integer from 1 on.")
    if value < 1:
        raise ValueError(f"{name}={value!r} must be 1 or more.")
    return value


def check_watch(policy: Any, device: torch.device, folder: Any) -> NonFiniteGuard:
    """What is done about losses that are not finite."""
    if policy not in POLICIES:
        raise ValueError(
            f"nonfinite_loss={policy!r} must be one of {', '.join(map(repr, POLICIES))}."
        )
    if policy == "rollback" and folder is None:
        raise ValueError("nonfinite_loss='rollback' needs a save_folder to go back to.")
    return NonFiniteGuard(policy, at_once=policy != "raise" or device.type == "cpu")


def check_split(parts: int | None, size: int | str | None) -> None:
    """How batches are split is said in one way."""
    if parts is not None and size is not None:
        raise ValueError(
            f"grad_accum={parts} and microbatch_size={size!r} were both given: give the number of "
            "microbatches or their size."
        )


def check_loader(name: str, loader: Any) -> Any:
    """Batches that can be gone through more than once, with at least one where that is known."""
    if not isinstance(loader, Iterable) or isinstance(loader, (str, bytes, torch.Tensor)):
        kind = "<a tensor>" if isinstance(loader, torch.Tensor) else repr(loader)
        raise TypeError(
            f"{name}={kind} must be an iterable of batches, such as a torch.utils.data.DataLoader."
        )
    if iter_is_spent(loader):
        raise TypeError(
            f"{name}={loader!r} is an iterator, which is used up after one epoch: give what it was "
            "made from, such as a list or a DataLoader."
        )
    if length_of(loader) == 0:
        raise ValueError(
            f"{name} is empty: it has no batch. Check the dataset, and drop_last with a "
            "batch_size above the number of examples."
        )
    return loader


def iter_is_spent(loader: Any) -> bool:
    """Whether going through it once uses it up."""
    return hasattr(loader, "__next__")


def length_of(loader: Any) -> int | None:
    """The number of batches, or None where it isn't known."""
    try:
        return len(loader)
    except TypeError:
        return None


def check_evaluators(given: Any, metrics: Any, eval_interval: Any) -> tuple[Evaluator, ...]:
    """Evaluators from a loader, an Evaluator, or several; what one doesn't say is filled in."""
    check_interval("eval_interval", eval_interval)
    if given is None:
        return ()
    if isinstance(given, Evaluator):
        given = [given]
    if isinstance(given, Mapping):
        given = [Evaluator(label, loader) for label, loader in given.items()]
    labelled = isinstance(given, Sequence) and any(isinstance(one, Evaluator) for one in given)
    if not labelled:
        given = [Evaluator("eval", check_loader("eval_dataloader", given))]
    complete = []
    for one in given:
        if not isinstance(one, Evaluator):
            raise TypeError(
                f"eval_dataloader mixes Evaluators with a {type(one).__name__}: give Evaluators "
                "only, such as Evaluator('test', dataloader)."
            )
        check_loader(f"the dataloader of Evaluator {one.label!r}", one.dataloader)
        interval = eval_interval if one.eval_interval is None else one.eval_interval
        complete.append(
            Evaluator(
                one.label,
                one.dataloader,
                metrics=check_metrics(metrics if one.metrics is None else one.metrics),
                eval_interval=check_interval("eval_interval", interval),
            )
        )
    labels = [one.label for one in complete]
    if len(set(labels)) < len(labels):
        raise ValueError(f"eval_dataloader has Evaluators of one label: {labels}. Name them apart.")
    return tuple(complete)


def check_metrics(metrics: Any) -> dict[str, Any]:
    """Metrics by name."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"metrics={metrics!r} must be a mapping of names to metrics, such as "
            "{'accuracy': composable.metrics.accuracy}."
        )
    if "loss" in metrics:
        raise ValueError(
            "metrics has 'loss', the name under which an evaluation reports loss_fn: give yours "
            "another name."
        )
    for name, metric in metrics.items():
        if isinstance(metric, type) or not (callable(metric) or hasattr(metric, "update")):
            raise TypeError(
                f"metrics[{name!r}]={metric!r} must be a function (outputs, targets), or an object "
                "with update, compute and reset."
            )
    return dict(metrics)


def check_log_interval(interval: Any) -> Time:
    """A time above zero."""
    length = check_time("log_interval", interval)
    if not length.value:
        raise ValueError(
            f"log_interval={interval!r} must be longer than nothing: without loggers, nothing is "
            "logged."
        )
    if length.unit is TimeUnit.ITERATION:
        raise ValueError(
            f"log_interval={interval!r} counts iterations: give epochs, batches, samples, tokens, "
            "seconds or a fraction of the run."
        )
    return length


def check_countable(name: str, time: Any, count_tokens: Any) -> None:
    """Tokens as a length of training need somebody to count them."""
    if isinstance(time, Time) and time.unit is TimeUnit.TOKEN and count_tokens is None:
        raise ValueError(
            f"{name}={str(time)!r} counts tokens: give the Trainer count_tokens, a function of the "
            "batch that counts them."
        )


def check_windows(plan: Plan, count_tokens: Any, iteration_length: int | None) -> None:
    """Windows of algorithms in tokens or iterations need somebody to count them."""
    for algorithm in plan.algorithms:
        for occurrence in occurrences(algorithm):
            for window in (*occurrence.windows(), occurrence.algorithm.window()):
                for end, time in (("start", window.start), ("end", window.end)):
                    name = f"the window of {occurrence.algorithm.name}: {end}"
                    check_countable(name, time, count_tokens)
                    check_iterations(time, iteration_length, name)


def absent_events(evaluators: Sequence[Evaluator], schedulers: Any) -> dict[Event, str]:
    """The events that don't occur in training without what was not given, and why."""
    absent = {}
    for event in Event:
        if event.name.startswith("EVAL") and not evaluators:
            absent[event] = "training evaluates nothing without an eval_dataloader"
        if event.name.endswith("SCHEDULER_STEP") and not as_list(schedulers):
            absent[event] = "nothing is scheduled without schedulers"
    return absent


def check_token_counter(function: Any) -> "Callable[[Any], int] | None":
    """A function of the batch that counts its tokens, made to say what is wrong with a count."""
    if check_function("count_tokens", function, "of the batch") is None:
        return None

    def count(batch: Any) -> int:
        given = function(batch)
        try:
            tokens = operator.index(given)
        except (TypeError, RuntimeError):
            tokens = -1
        if tokens < 0:
            raise ValueError(
                f"count_tokens counted {given!r} in a batch, and must give a whole number."
            )
        return tokens

    return count


def check_seed(seed: int | None, saved: int | None) -> int | None:
    """The seed of a run, which a run that goes on has already."""
    if seed is not None and saved is not None and seed != saved:
        raise ValueError(
            f"seed={seed}, and the run that is to go on has seed {saved}: leave seed out, or begin "
            "another run with load_weights_only=True."
        )
    return saved if seed is None else seed


def check_unused(**given: tuple[Any, Any]) -> None:
    """Arguments of saving say nothing without a folder: (value, default) by name."""
    for name, (value, default) in given.items():
        if value != default:
            raise ValueError(f"{name}={value!r} needs a save_folder, where checkpoints go.")


def check_resuming(autoresume: bool, folder: Any, weights_only: bool, ignored: Any) -> None:
    """A run can go on by itself only from what is saved whole."""
    if not autoresume:
        return
    if folder is None:
        raise ValueError("autoresume=True needs a save_folder, in which it looks for checkpoints.")
    if weights_only or ignored:
        raise ValueError(
            f"autoresume=True with save_weights_only={weights_only} and save_ignore_keys="
            f"{ignored!r}: a run can go on only from a whole checkpoint. Drop one of them."
        )


def check_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False.")
    return value


def check_iteration_length(length: Any) -> int | None:
    """Whole epochs, or None."""
    if length is None:
        return None
    time = check_time("iteration_length", length)
    if time.unit is not TimeUnit.EPOCH or not time.value:
        raise ValueError(f"iteration_length={length!r} must be epochs, such as '2ep'.")
    return int(time.value)


def check_iterations(
    time: Time | None, iteration_length: int | None, name: str = "max_duration"
) -> None:
    """Iterations as a length of training need to have a length themselves."""
    counts = time is not None and time.unit is TimeUnit.ITERATION
    if counts and iteration_length is None:
        raise ValueError(
            f"{name}={str(time)!r} counts iterations: give the Trainer an "
            "iteration_length, such as '2ep'."
        )


def build_callback(cls: type[Callback]) -> Callback:
    """An instance of a class of callbacks, made without arguments."""
    try:
        return cls()
    except Exception as error:
        raise TypeError(
            f"add_callback got the class {cls.__name__}, and {cls.__name__}() failed: {error}. "
            f"Give an instance, {cls.__name__}(...)."
        ) from error
