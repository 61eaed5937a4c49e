"""The arguments of the `Trainer` in groups, each documented, typed and validated once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from composable._support.checks import as_path, check_count, check_flag, check_one_of, is_url
from composable.batches.precision import Precision
from composable.core.algorithm import Algorithm
from composable.core.callback import Callback
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.intervals import IntervalLike
from composable.core.state import State
from composable.core.time import Time, TimeLike
from composable.core.update import Update
from composable.distributed.starting import join_processes
from composable.distributed.strategies import Strategy, strategy_of
from composable.metrics import Evaluator
from composable.plan.declarations import OneOrSeveral, as_list
from composable.trainer import arguments as check

Destination: TypeAlias = LoggerDestination | type[LoggerDestination]
BatchKey: TypeAlias = int | str | list[int | str] | tuple[Any, ...] | Callable[[Any], Any] | None
"""The place of a part of a batch."""


_POLICIES = ("raise", "skip", "rollback", "ignore")


def _valid(check_value: Callable[[str, Any], Any]) -> Any:
    """Make an attrs validator of a check of a name and a value."""
    return lambda _, attribute, value: check_value(attribute.name, value)


def _flag(default: bool = False) -> Any:
    return attrs.field(default=default, validator=_valid(check_flag))


def _duration(given: TimeLike | None) -> Time | None:
    return None if given is None else check.check_duration(given)


def _accumulate_batches(given: int) -> int:
    check_count("accumulate_batches", given, 1)
    return int(given)  # an integer of NumPy can't be saved


def _parallel(given: Strategy | str | None) -> Strategy:
    join_processes(getattr(given, "timeout", None))
    return strategy_of(given)


def _compile(given: bool | Mapping[str, Any]) -> bool | dict[str, Any]:
    if given is False:
        return False
    from composable.engines.compiled import check_compile  # on use

    return check_compile(given)


def _precision(given: str | Precision) -> Precision:
    return Precision.of(given)


def _updates(given: OneOrSeveral[Update]) -> tuple[Update, ...]:
    found = as_list(given)
    for one in found:
        if not isinstance(one, Update):
            raise TypeError(f"updates contains {one!r}: each must be a composable.Update.")
    return tuple(found)


def _save_folder(given: str | Path | None) -> Path | None:
    if given is None or not is_url(given):
        return None if given is None else as_path("save_folder", given)
    from composable.storage.folders import as_folder  # on use

    return as_folder("save_folder", given)


def _load_path(given: str | Path | None) -> str | Path | None:
    if given is None or not is_url(given):
        return None if given is None else as_path("load_path", given)
    from composable._support.object_stores import ObjectStore  # on use

    return ObjectStore("load_path", given).url  # type: ignore[arg-type]


def _load_patterns(given: Sequence[str]) -> Sequence[str]:
    from composable.checkpoint.filters import check_patterns  # on use

    return check_patterns("load_ignore_keys", given)


def _loader(name: str, loader: Any) -> None:
    if loader is not None:
        check.check_loader(name, loader, by_step=True)


def _loggers(given: OneOrSeveral[Destination] | str) -> OneOrSeveral[Destination]:
    if not isinstance(given, str):
        return given
    if given != "auto":
        raise ValueError(f"loggers={given!r} must be 'auto', a logger or a list of loggers.")
    from composable.loggers.installed import installed_loggers  # on use: few runs need all of them

    return installed_loggers()


def _count(name: str, value: Any) -> None:
    if value is not None:
        check_count(name, value, 1, advice="microbatch_size='auto' finds a size that fits")


def _limit(name: str, value: Any) -> None:
    if value is not None:
        check_count(name, value, 1)


def _size(name: str, size: Any) -> None:
    if size != "auto":
        _count(name, size)


@attrs.frozen(eq=False, kw_only=True, slots=False)
class ModelOptions:
    """The model, its loss, and the parts of a batch that they get.

    Args:
        model: A module. With `loss_fn`, it is called with the input of each batch; without, it has
            a method `loss(outputs, batch)` and is called with the whole batch. A model of
            Transformers needs neither: it computes the loss itself, from the labels of a batch.
        loss_fn: `loss_fn(outputs, targets)`, a tensor without dimensions. A module is moved to the
            device, trained, switched to evaluation mode and saved like the model.
        loss_mean_over: What the loss is a mean over, so that the parts of a batch add up to it:
            "examples", "tokens" (targets of at least 0), "next_tokens" (likewise, without the
            first token of each example, for a model that shifts its labels), or a function of the
            batch, or of the outputs and the batch, that counts. Default: the `loss_weight` of the
            loss or the model, or what the loss functions of PyTorch that the loss calls divide by;
            a loss for which that is unknown can't be split, which is a `SplitLossError`.
        input_key: The input of a batch: an index, a name, a path (`["views", 0]`), a function, or
            a pair of functions (get, set). A tuple of these, `("question", "image")`, gives the
            model several arguments. Default: 0, and for a model of Transformers its main input.
        target_key: The target of a batch, likewise. Default: 1, and for a model of Transformers
            "labels", or the positions of answers.
        batch_layout: What the examples of a batch are: "tensors" (rows of its tensors), "lists"
            (items of its input and target, which are lists), or "examples" (the items of the batch,
            which is a list). Default: determined by the batch.
    """

    model: nn.Module = attrs.field(validator=_valid(check.check_model), kw_only=False)
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None
    loss_mean_over: str | Callable[..., Any] | None = None
    input_key: BatchKey = None
    target_key: BatchKey = None
    batch_layout: str | None = None


@attrs.frozen(eq=False, kw_only=True, slots=False)
class DataOptions:
    """The batches of a run, and how each is split.

    Args:
        train_dataloader: An iterable of batches; or a function without arguments that returns an
            iterator over batches, or a function (key, step) that returns a batch.
        max_duration: The length of training: "10ep", "1000ba", or an integer of epochs.
        epoch_batches: The number of batches of the loader after which an epoch ends, and the next
            one begins in a new order, at most the loader's length. Default: all of the loader.
        iteration_length: The number of epochs in an iteration; the whole run if None.
        grad_accum: The number of microbatches into which each batch is split.
        accumulate_batches: The number of batches of the loader that make one step. They are the
            microbatches of a batch, or with `grad_accum` or `microbatch_size` each is split.
        microbatch_size: The number of examples in a microbatch; an alternative to `grad_accum`.
            "auto" starts with whole batches, and halves them when the GPU runs out of memory.
        count_tokens: A function of the batch that counts its tokens for `timestamp.token`.
    """

    train_dataloader: Iterable[Any] | Callable[..., Any] | None = attrs.field(
        default=None, validator=_valid(_loader)
    )
    max_duration: Time | None = attrs.field(default=None, converter=_duration)
    epoch_batches: int | None = attrs.field(default=None, validator=_valid(_limit))
    iteration_length: int | None = attrs.field(default=None, converter=check.check_iteration_length)
    grad_accum: int | None = attrs.field(default=None, validator=_valid(_count))
    accumulate_batches: int = attrs.field(default=1, converter=_accumulate_batches)
    microbatch_size: int | str | None = attrs.field(default=None, validator=_valid(_size))
    count_tokens: Callable[[Any], int] | None = attrs.field(
        default=None, converter=check.check_token_counter
    )


@attrs.frozen(eq=False, kw_only=True, slots=False)
class OptimizationOptions:
    """How the parameters are updated, and the algorithms.

    Args:
        algorithms: A set of algorithms, or functions `(event, state) -> state`, in any order.
        optimizers: One or several `torch.optim.Optimizer`, or functions of the parameters that
            return one (`functools.partial(torch.optim.SGD, lr=0.1)`), called after surgery with
            the parameters of the model and of `loss_fn`.
        updates: The updates of which each training step consists, in their order, each with its
            loss and optimizer: see `composable.Update`. Evaluations use `loss_fn`.
        decay_norms_and_biases: Whether the weight decay of the optimizers applies to all
            parameters. If not, functions of the parameters get two groups, and normalization layers
            and biases are in the group without weight decay: see `composable.optim.decay_groups`.
        schedulers: One or several schedules of `composable.optim`, which set the learning rate of
            every batch, or torch schedulers, which step after every epoch, or functions of an
            `optimizer` that return one. With a `max_duration`, schedules are called once when the
            Trainer is built, so that one which fails does so there.
        step_schedulers_every_batch: Step torch schedulers after every batch instead.
        nonfinite_loss: What to do about a loss that is NaN or infinite: "raise"; "skip" the batch;
            "rollback" to the last checkpoint and then skip the batch; or "ignore".
    """

    algorithms: OneOrSeveral[Algorithm | Callable[[Event, State], State]] = ()
    optimizers: OneOrSeveral[Optimizer | Callable[..., Any]] = None
    updates: tuple[Update, ...] = attrs.field(default=(), converter=_updates)
    decay_norms_and_biases: bool = _flag(default=True)
    schedulers: OneOrSeveral[LRScheduler | Callable[..., Any]] = None
    step_schedulers_every_batch: bool = _flag()
    nonfinite_loss: str = attrs.field(
        default="raise", validator=_valid(partial(check_one_of, allowed=_POLICIES))
    )


@attrs.frozen(eq=False, kw_only=True, slots=False)
class EvaluationOptions:
    """What is evaluated, and when.

    Args:
        eval_dataloader: An iterable of batches, an `Evaluator`, or several evaluators.
        metrics: Metrics of evaluations besides the loss, by name: see `composable.metrics`.
            Default: the model's method `metrics(train)`, if it computes its own loss.
        train_metrics: Metrics of training, by name, which are measured on the outputs of the steps
            and logged at each `log_interval` and for each epoch: see `composable.metrics`.
        eval_interval: When to evaluate: "1ep", "100ba", a function `(state, event) -> bool`, or
            None for never. Training ends with an evaluation, unless it is None.
        eval_batches: The number of batches after which an evaluation ends, for evaluators that have
            no `batches`, at most the loader's length. Default: all of each loader.
    """

    eval_dataloader: Iterable[Any] | Evaluator | None = None
    metrics: Mapping[str, Any] = attrs.field(default=None, converter=check.metrics_by_name)
    train_metrics: Mapping[str, Any] | None = attrs.field(
        default=None, converter=check.train_metrics_by_name
    )
    eval_interval: IntervalLike = "1ep"
    eval_batches: int | None = attrs.field(default=None, validator=_valid(_limit))


@attrs.frozen(eq=False, kw_only=True, slots=False)
class LoggingOptions:
    """The observers of a run, and the metrics they log.

    Args:
        callbacks: Callbacks, classes of callbacks, which are called without arguments, or
            functions `(event, state, logger) -> Control | None`.
        loggers: Where metrics are logged: one or several loggers, or "auto" for one of each back
            end that is installed: TensorBoard, Weights & Biases, Comet and MLflow.
        log_interval: How often the loss and the learning rates are logged.
        progress_bar: Show a progress bar.
        record_command: Whether records, checkpoints and loggers get the command line of the script.
            The values of arguments whose names denote keys, tokens, passwords and secrets are
            redacted in any case.
    """

    callbacks: OneOrSeveral[Callback | type[Callback] | Callable[..., Any]] = ()
    loggers: OneOrSeveral[Destination] = attrs.field(default=(), converter=_loggers)
    log_interval: Time = attrs.field(default=Time.parse("1ba"), converter=check.check_log_interval)
    progress_bar: bool = _flag(default=True)
    record_command: bool = _flag(default=True)


@attrs.frozen(eq=False, kw_only=True, slots=False)
class HardwareOptions:
    """Where a run computes: devices, precision, processes, compilation.

    Args:
        device: "cpu", "cuda" or "cuda:1"; by default the accelerator that PyTorch finds, except
            "mps", which has no float64; otherwise "cpu". The model is moved.
        precision: "fp32"; "tf32"; "amp_bf16" or "amp_fp16" for autocast, or "amp" for the device's;
            "bf16" or "fp16" for weights in 16 bits; or a `composable.Precision`.
        parallel: How several processes share the run: "ddp", or a strategy: `DDP` or `FSDP2` of
            `composable.distributed`. Default: "ddp" in a process that `composable launch` or
            torchrun has started with others.
        deepspeed_config: The configuration of DeepSpeed, whose engine then computes the gradients
            and the steps: short for `parallel=DeepSpeed(config=...)` of `composable.distributed`.
        compile: Compile the model after surgery: True, or options of `torch.compile`: "mode",
            "fullgraph", "dynamic", "backend", "options".
    """

    device: torch.device = attrs.field(default=None, converter=check.find_device)
    precision: Precision = attrs.field(default="fp32", converter=_precision)  # type: ignore[assignment]
    parallel: Strategy = attrs.field(default=None, converter=_parallel)
    deepspeed_config: Mapping[str, Any] | None = None
    compile: bool | Mapping[str, Any] = attrs.field(default=False, converter=_compile)


@attrs.frozen(eq=False, kw_only=True, slots=False)
class ReproducibilityOptions:
    """What makes a run repeatable, and checks it.

    Args:
        seed: The seed of all randomness; drawn by the operating system if None.
        deterministic_mode: Use deterministic algorithms only: see `configure_deterministic_mode`.
        check_effects: For tests: compare everything in the state before and after each algorithm
            and callback, and raise if one changed it, or wrote a field that it does not declare.
    """

    seed: int | None = None
    deterministic_mode: bool = _flag()
    check_effects: bool = _flag()


@attrs.frozen(eq=False, kw_only=True, slots=False)
class SavingOptions:
    """The checkpoints that a run saves.

    Args:
        save_folder: The folder of checkpoints, or a URL such as "s3://bucket/run"; see
            `composable.callbacks.CheckpointSaver` for the arguments that follow.
        save_interval: When to save: "1ep", "100ba", a function `(state, event) -> bool`, or None
            for on request only. The end of training is saved too.
        save_filename: The name of a checkpoint.
        save_num_checkpoints_to_keep: The number of the latest checkpoints to keep; all if None.
        save_overwrite: Replace checkpoints of another run.
        save_weights_only: Save the model alone.
        save_ignore_keys: Entries that are not saved, as patterns of paths.
        save_in_background: Write while training continues.
        save_error: What to do if a checkpoint cannot be written: "raise", or "warn" and continue.
        save_best: The evaluation result that determines the best checkpoint, by the name under
            which it is logged: "metrics/eval/accuracy", or short "eval/accuracy" or "accuracy".
        save_best_mode: Whether the "max" or the "min" of it is best. Default: determined by
            `higher_is_better` of the metric, or by its name, such as "loss", "error", "accuracy" or
            "f1".
    """

    save_folder: Path | None = attrs.field(default=None, converter=_save_folder)
    save_interval: IntervalLike = "1ep"
    save_filename: str = "ep{epoch}-ba{batch}"
    save_num_checkpoints_to_keep: int | None = None
    save_overwrite: bool = _flag()
    save_weights_only: bool = _flag()
    save_ignore_keys: Sequence[str] = ()
    save_in_background: bool = _flag()
    save_error: str = "raise"
    save_best: str | None = None
    save_best_mode: str | None = None


@attrs.frozen(eq=False, kw_only=True, slots=False)
class LoadingOptions:
    """The checkpoints that a run loads.

    Args:
        load_path: A checkpoint to resume from, or a folder of several, whose latest is used; or one
            of Lightning, Hugging Face's Trainer, Accelerate or Composer, to continue training. A
            load that fails changes nothing, for which it takes a second copy of the parameters.
        load_weights_only: Load the weights alone, and start a new run.
        load_ignore_keys: Entries that are not loaded, as patterns of paths: "optimizers",
            "memory/EMA".
        autoresume: Resume from the latest complete checkpoint in `save_folder`, if there is one.
        load_best_at_end: When training ends, load the weights of the best checkpoint, which
            `save_best` determines, and the averages of algorithms. A later `fit` continues from
            these.
    """

    load_path: str | Path | None = attrs.field(default=None, converter=_load_path)
    load_weights_only: bool = _flag()
    load_ignore_keys: Sequence[str] = attrs.field(default=(), converter=_load_patterns)
    autoresume: bool = _flag()
    load_best_at_end: bool = _flag()
