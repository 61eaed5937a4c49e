"""The arguments of the `Trainer`: documented, typed and validated once."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec

import attrs
import torch
from torch import nn

from composable._other_trainers import ARGUMENTS, advice_on_argument
from composable._support.checks import as_path, check_count, check_flag, check_one_of
from composable.batches.model_call import batch_spec_of
from composable.batches.precision import Precision
from composable.batches.spec import BatchSpec
from composable.core.callback import Callback
from composable.core.intervals import IntervalLike
from composable.core.state import State
from composable.core.time import Time, TimeLike
from composable.distributed.processes import Processes
from composable.distributed.starting import join_processes
from composable.distributed.strategies import DDP, OneProcess, Strategy, strategy_of
from composable.losses.loss import Loss
from composable.metrics import Evaluator
from composable.plan.declarations import as_list
from composable.plan.plan import Plan
from composable.trainer import arguments as check

# A module that is imported on use is not needed by each run, or not before it is built.
if TYPE_CHECKING:
    from composable.resume.lock import RunLock
    from composable.resume.verify import Reader, ResumePoint
    from composable.trainer.run import Run

__all__ = ["TrainerOptions", "takes_arguments_of"]

_NEED_A_FOLDER = (
    "save_interval",
    "save_num_checkpoints_to_keep",
    "save_best",
    "save_in_background",
    "save_weights_only",
)
_POLICIES = ("raise", "skip", "rollback", "ignore")


def _valid(check_value: Callable[[str, Any], Any]) -> Any:
    """Make an attrs validator of a check of a name and a value."""
    return lambda _, attribute, value: check_value(attribute.name, value)


def _flag(default: bool = False) -> Any:
    return attrs.field(default=default, validator=_valid(check_flag))


def _duration(given: TimeLike | None) -> Time | None:
    return None if given is None else check.check_duration(given)


def _parallel(given: Any) -> Strategy:
    join_processes(getattr(given, "timeout", None))
    from composable.engines.build import check_engine  # on use

    return check_engine(strategy_of(given))


def _compile(given: Any) -> bool | dict[str, Any]:
    if given is False:
        return False
    from composable.engines.compiled import check_compile  # on use

    return check_compile(given)


def _precision(given: str | Precision) -> Precision:
    return Precision.of(given)


def _save_folder(given: str | Path | None) -> Path | None:
    return None if given is None else as_path("save_folder", given)


def _load_path(given: str | Path | None) -> Path | None:
    return None if given is None else as_path("load_path", given)


def _load_patterns(given: Sequence[str]) -> Sequence[str]:
    from composable.checkpoint.filters import check_patterns  # on use

    return check_patterns("load_ignore_keys", given)


def _loader(name: str, loader: Any) -> None:
    if loader is not None:
        check.check_loader(name, loader)


def _loggers(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if given != "auto":
        raise ValueError(f"loggers={given!r} must be 'auto', a logger or a list of loggers.")
    from composable.loggers.installed import installed_loggers  # on use: few runs need all of them

    return installed_loggers()


def _size(name: str, size: Any) -> None:
    if not isinstance(size, str):
        check.check_positive(name, size)
    elif size != "auto":
        raise TypeError(f"{name}={size!r} must be a positive integer or 'auto'.")


@attrs.frozen(eq=False, kw_only=True)
class TrainerOptions:
    """The arguments of the `Trainer`.

    Args:
        model: A module. With `loss_fn`, it is called with the input of each batch; without, it has
            a method `loss(outputs, batch)` and is called with the whole batch. A model of
            Transformers needs neither: it computes the loss itself, from the labels of a batch.
        train_dataloader: An iterable of batches.
        eval_dataloader: An iterable of batches, an `Evaluator`, or several evaluators.
        loss_fn: `loss_fn(outputs, targets)`, a tensor without dimensions. A module is moved to the
            device, trained, switched to evaluation mode and saved like the model.
        optimizers: One or several `torch.optim.Optimizer`, or functions of the parameters that
            return one (`functools.partial(torch.optim.SGD, lr=0.1)`), called after surgery with
            the parameters of the model and of `loss_fn`.
        decay_norms_and_biases: Whether the weight decay of the optimizers applies to all
            parameters. If not, functions of the parameters get two groups, and normalization
            layers and biases are in the one without: see `composable.optim.decay_groups`.
        schedulers: One or several schedules of `composable.optim`, which set the learning rate of
            every batch, or torch schedulers, which step after every epoch, or functions of an
            `optimizer` that return one.
        step_schedulers_every_batch: Step torch schedulers after every batch instead.
        max_duration: The length of training: "10ep", "1000ba", or an integer of epochs.
        algorithms: A set of algorithms, or functions `(event, state) -> state`, in any order.
        callbacks: Callbacks, classes of callbacks, which are called without arguments, or
            functions `(event, state, logger) -> Control | None`.
        loggers: Where metrics are logged: one or several loggers, or "auto" for one of each back
            end that is installed: TensorBoard, Weights & Biases, Comet and MLflow.
        metrics: Metrics of evaluations besides the loss, by name: see `composable.metrics`.
            Default: those of the model's method `metrics(train)`, if it computes its own loss.
        eval_interval: When to evaluate: "1ep", "100ba", a function `(state, event) -> bool`, or
            None for never. Training ends with an evaluation, unless it is None.
        log_interval: How often the loss and the learning rates are logged.
        progress_bar: Show a progress bar.
        device: "cpu", "cuda" or "cuda:1"; by default "cuda" if available. The model is moved.
        precision: "fp32"; "tf32"; "amp_bf16" or "amp_fp16" for autocast, or "amp" for that of the
            device; "bf16" or "fp16" for weights in 16 bits; or a `composable.Precision`.
        parallel: How several processes share the run: "ddp", or a strategy: `DDP` or `FSDP2` of
            `composable.distributed`. Default: "ddp" in a process that `composable launch` or
            torchrun has started with others.
        deepspeed_config: The configuration of DeepSpeed, whose engine then computes the gradients
            and the steps: short for `parallel=DeepSpeed(config=...)` of `composable.distributed`.
        seed: The seed of all randomness; drawn by the operating system if None.
        deterministic_mode: Use deterministic algorithms only: see `configure_deterministic_mode`.
        compile: Compile the model after surgery: True, or options of `torch.compile`: "mode",
            "fullgraph", "dynamic", "backend", "options".
        grad_accum: The number of microbatches into which each batch is split.
        accumulate_batches: The number of batches of the loader that make one step. They are the
            microbatches of a batch, or with `grad_accum` or `microbatch_size` each is split.
        microbatch_size: The number of examples in a microbatch; an alternative to `grad_accum`.
            "auto" starts with whole batches, and halves them when the GPU runs out of memory.
        loss_mean_over: What the loss is a mean over, so that the parts of a batch add up to it:
            "examples", "tokens" (targets other than -100), "next_tokens" (likewise, without the
            first token of each example, for a model that shifts its labels), or a function of the
            batch, or of the outputs and the batch, that counts. Default: the `loss_weight` of the
            loss or the model, or what the loss functions of PyTorch that the loss calls divide by;
            a loss for which that is unknown can't be split, which is a `SplitLossError`.
        count_tokens: A function of the batch that counts its tokens for `timestamp.token`.
        input_key: The input of a batch: an index, a name, a path (`["views", 0]`), a function, or
            a pair of functions (get, set). A tuple of these, `("question", "image")`, gives the
            model several arguments. Default: 0, and for a model of Transformers its main input.
        target_key: The target of a batch, likewise. Default: 1, and for a model of Transformers
            "labels", or the positions of answers.
        batch_layout: What the examples of a batch are: "tensors" (rows of its tensors), "lists"
            (items of its input and target, which are lists), or "examples" (the items of the batch,
            which is a list). Default: determined by the batch.
        iteration_length: The number of epochs in an iteration; the whole run if None.
        saver: A function of the state that saves it when a callback requests `Control.SAVE`; an
            alternative to `save_folder`.
        save_folder: The folder of checkpoints; see `composable.callbacks.CheckpointSaver` for the
            arguments that follow.
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
        load_best_at_end: When training ends, load the weights of the best checkpoint, which
            `save_best` determines, and the averages of algorithms. A later `fit` continues from
            these.
        load_path: A checkpoint to resume from, or a folder of several, whose latest is used.
        load_weights_only: Load the weights alone, and start a new run.
        load_ignore_keys: Entries that are not loaded, as patterns of paths: "optimizers",
            "memory/EMA".
        autoresume: Resume from the latest complete checkpoint in `save_folder`, if there is one.
        nonfinite_loss: What to do about a loss that is NaN or infinite: "raise"; "skip" the batch;
            "rollback" to the last checkpoint and then skip the batch; or "ignore".
        record_command: Whether records, checkpoints and loggers get the command line of the script.
            The values of arguments whose names are those of keys, tokens, passwords and secrets are
            redacted in any case.
        check_effects: For tests: compare everything in the state before and after each algorithm
            and callback, and raise if one changed it, or wrote a field that it does not declare.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range, or contradicts another.
    """

    model: nn.Module = attrs.field(validator=_valid(check.check_model), kw_only=False)
    train_dataloader: Iterable[Any] | None = attrs.field(default=None, validator=_valid(_loader))
    eval_dataloader: Any = None
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None
    optimizers: Any = None
    decay_norms_and_biases: bool = _flag(default=True)
    schedulers: Any = None
    step_schedulers_every_batch: bool = _flag()
    max_duration: Time | None = attrs.field(default=None, converter=_duration)
    algorithms: Any = ()
    callbacks: Any = ()
    loggers: Any = attrs.field(default=(), converter=_loggers)
    metrics: Mapping[str, Any] = attrs.field(default=None, converter=check.check_metrics)
    eval_interval: IntervalLike = "1ep"
    log_interval: Time = attrs.field(default=Time.parse("1ba"), converter=check.check_log_interval)
    progress_bar: bool = _flag(default=True)
    device: torch.device = attrs.field(default=None, converter=check.check_device)
    precision: Any = attrs.field(default="fp32", converter=_precision)
    parallel: Strategy = attrs.field(default=None, converter=_parallel)
    deepspeed_config: Mapping[str, Any] | None = None
    seed: int | None = None
    deterministic_mode: bool = _flag()
    compile: bool | Mapping[str, Any] = attrs.field(default=False, converter=_compile)
    grad_accum: int | None = attrs.field(default=None, validator=_valid(check.check_positive))
    accumulate_batches: int = attrs.field(default=1, validator=_valid(partial(check_count, low=1)))
    microbatch_size: int | str | None = attrs.field(default=None, validator=_valid(_size))
    loss_mean_over: Any = None
    count_tokens: Callable[[Any], int] | None = attrs.field(
        default=None, converter=check.check_token_counter
    )
    input_key: Any = None
    target_key: Any = None
    batch_layout: str | None = None
    iteration_length: int | None = attrs.field(default=None, converter=check.check_iteration_length)
    saver: Callable[[State], Any] | None = attrs.field(
        default=None, validator=_valid(partial(check.check_callable, call="of the state"))
    )
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
    load_best_at_end: bool = _flag()
    load_path: Path | None = attrs.field(default=None, converter=_load_path)
    load_weights_only: bool = _flag()
    load_ignore_keys: Sequence[str] = attrs.field(default=(), converter=_load_patterns)
    autoresume: bool = _flag()
    nonfinite_loss: str = attrs.field(
        default="raise", validator=_valid(partial(check_one_of, allowed=_POLICIES))
    )
    record_command: bool = _flag(default=True)
    check_effects: bool = _flag()

    def __attrs_post_init__(self) -> None:
        self._use_deepspeed()
        self._shard_stream()
        loss = self.loss
        self.precision.on(self.device)
        if not self.metrics:
            object.__setattr__(self, "metrics", check.metrics_of(self.model, loss))
        evaluators = self.evaluators
        if self.grad_accum is not None and self.microbatch_size is not None:
            raise ValueError(
                f"grad_accum={self.grad_accum} and microbatch_size={self.microbatch_size!r} "
                "exclude each other; pass the number of microbatches or their size."
            )
        check.check_separate_streams(self.train_dataloader, evaluators)
        check.check_countable("log_interval", self.log_interval, self.count_tokens)
        for evaluator in evaluators:
            check.check_countable("eval_interval", evaluator.eval_interval, self.count_tokens)
        self._check_saving()
        if self.save_best is not None:
            from composable.core.result_names import (  # on use
                check_result,
                declared_modes,
                full_name,
                mode_of,
            )

            name = full_name("save_best", self.save_best)
            mode = self.save_best_mode or declared_modes(evaluators).get(name)
            check_result("save_best", name, evaluators)
            mode_of(name, mode, "save_best_mode", "save_best")

    def _shard_stream(self) -> None:
        if self.processes.several and self.parallel.data == "auto":
            from composable.data.stream_parts import shard_stream  # on use

            divided = shard_stream(self.train_dataloader, self.processes)
            object.__setattr__(self, "train_dataloader", divided)

    def _use_deepspeed(self) -> None:
        if self.deepspeed_config is not None:
            from composable.distributed.deepspeed import DeepSpeed  # on use

            if self.parallel not in (OneProcess(), DDP()):
                raise ValueError(
                    f"deepspeed_config and parallel={self.parallel!r} exclude each other; for "
                    "other arguments of the strategy, pass parallel=DeepSpeed(config=...)."
                )
            object.__setattr__(self, "parallel", DeepSpeed(config=self.deepspeed_config))
        object.__setattr__(self, "precision", self.parallel.precision(self.precision))
        self.parallel.check_options(self)

    def _check_saving(self) -> None:
        if self.nonfinite_loss == "rollback" and self.save_folder is None:
            raise ValueError(
                "nonfinite_loss='rollback' needs a save_folder with checkpoints to roll back to."
            )
        if self.save_folder is None:
            for field in attrs.fields(type(self)):
                value = getattr(self, field.name)
                changed = type(value) is not type(field.default) or value != field.default
                if field.name in _NEED_A_FOLDER and changed:
                    raise ValueError(f"{field.name}={value!r} needs a save_folder.")
        if not self.autoresume:
            return
        if self.save_folder is None:
            raise ValueError("autoresume=True needs a save_folder to look for checkpoints in.")
        if self.save_weights_only or self.save_ignore_keys:
            raise ValueError(
                f"autoresume=True with save_weights_only={self.save_weights_only} and "
                f"save_ignore_keys={self.save_ignore_keys!r}: only a complete checkpoint can be "
                "resumed; drop one of them."
            )

    # --- several processes ---

    @property
    def processes(self) -> Processes:
        """The processes of the run."""
        return Processes.current()

    @property
    def is_local(self) -> bool:
        """Whether the loader of this process yields its own part of the data only."""
        if not self.processes.several:
            return False
        if self.parallel.data == "auto":
            from composable.data.sharding import is_local  # on use

            return is_local(self.train_dataloader, self.processes.size)
        return self.parallel.data == "local"

    # --- what the Trainer is built from ---

    @cached_property
    def batch_spec(self) -> BatchSpec:
        """The input and the target of a batch."""
        return batch_spec_of(self.model, self.input_key, self.target_key, self.batch_layout)

    @cached_property
    def loss(self) -> Loss | None:
        """The loss of outputs and a batch."""
        return check.check_loss_fn(self.loss_fn, self.model, self.batch_spec)

    @cached_property
    def evaluators(self) -> tuple[Evaluator, ...]:
        """The evaluators, complete with metrics and intervals."""
        return check.check_evaluators(self.eval_dataloader, self.metrics, self.eval_interval)

    @property
    def epoch_length(self) -> int | None:
        """The number of steps in an epoch, or None if unknown."""
        from composable.data.fetching import loader_length  # on use

        batches = loader_length(self.train_dataloader)
        if self.is_local:
            lengths = self.processes.gather(batches)
            batches = None if None in lengths else max(lengths)
        return None if batches is None else -(-batches // self.accumulate_batches)

    def plan(self) -> Plan:
        """Compile the algorithms, callbacks and loggers, and the Trainer's own callbacks.

        Of several processes, that of rank 0 logs and shows its progress.
        """
        return Plan.compile(
            self.algorithms,
            self.callbacks,
            self.loggers if self.processes.is_main else (),
            builtin_callbacks=self.builtin_callbacks(),
        )

    def builtin_callbacks(self) -> list[Callback]:
        """Return the Trainer's own callbacks."""
        main = self.processes.is_main
        bars: list[Callback] = []
        if self.progress_bar and main:
            from composable.loggers.progress_bar import ProgressBarLogger  # on use

            bars = [ProgressBarLogger()]
        if self.save_folder is None:
            return bars
        from composable.callbacks.checkpoint_saver import CheckpointSaver  # on use

        saver = CheckpointSaver(
            self.save_folder,
            save_interval=self.save_interval,
            filename=self.save_filename,
            num_checkpoints_to_keep=self.save_num_checkpoints_to_keep,
            overwrite=self.save_overwrite,
            weights_only=self.save_weights_only,
            ignore_keys=self.save_ignore_keys,
            background=self.save_in_background,
            on_error=self.save_error,
            metric=self.save_best,
            mode=self.save_best_mode,
        )
        if not main or any(getattr(one, "records_run", False) for one in as_list(self.callbacks)):
            return [*bars, saver]
        from composable.runs.recorder import RunRecorder  # on use

        return [*bars, saver, RunRecorder(self.save_folder, on_error=self.save_error)]

    # --- what a replay changes ---

    dry_run: ClassVar[bool] = False
    """Whether nothing is written."""

    def resume_point(self) -> "ResumePoint | None":
        """Return the checkpoint to resume from.

        Raises:
            CheckpointError: `load_path` cannot be read, or `save_folder` has checkpoints of
                another run.
        """
        alone = not self.processes.several  # otherwise the path of rank 0 is used
        if alone and self.save_folder is None and self.load_path is None:
            return None
        from composable.resume.select import check_folder_is_ours, find_resume_point  # on use

        point = find_resume_point(
            None if self.load_weights_only else self.load_path,
            folder=self.save_folder if self.autoresume else None,
            reader=self.reader,
            ignored=self.load_ignore_keys,
        )
        folder, run = self.save_folder, None if point is None else point.run
        if folder is not None and not (self.autoresume or self.save_overwrite or self.dry_run):
            self.processes.on_main(lambda: check_folder_is_ours(folder, run))
        return point

    @property
    def may_restore(self) -> bool:
        """Whether training may load a checkpoint of its own run."""
        return self.nonfinite_loss == "rollback" or self.load_best_at_end

    @property
    def reader(self) -> "Reader":
        """How the processes read a checkpoint."""
        from composable.engines.build import reads_parts  # on use
        from composable.resume.verify import Reader

        sharded = reads_parts(self.parallel, self.processes)
        return Reader(self.device, self.processes, sharded=sharded)

    def lock(self) -> "RunLock | None":
        """Return the lock of the folder in which the run trains.

        Raises:
            FolderInUseError: Another process trains in it.
        """
        if self.save_folder is None or not self.processes.is_main:
            return None
        from composable.resume.lock import RunLock  # on use

        return RunLock(self.save_folder)

    def run_id(self) -> str:
        """Return the id of a new run."""
        from secrets import token_hex  # on use

        return str(self.processes.broadcast(token_hex(8)))

    def adopt(self, callback: Callback) -> Callback:
        """Return the callback to run in the place of a given one."""
        return callback

    def attach(self, run: "Run") -> None:
        """Do nothing; a replay follows the run that was built."""


# --- the signature of the Trainer ---

P = ParamSpec("P")


def takes_arguments_of(
    source: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Make a decorator for a method that takes the arguments of `source`, and documents them.

    The method raises a `TypeError` for an unknown argument, and suggests a similar one, or the
    counterpart of an argument of another trainer.
    """
    signature = inspect.signature(source)

    def decorate(method: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        owner = method.__qualname__.partition(".")[0]

        @wraps(method)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            for name in kwargs.keys() - signature.parameters.keys():
                advice = advice_on_argument(name, source, ARGUMENTS) or "."
                raise TypeError(f"{owner} got an unexpected argument {name!r}{advice}")
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                hint = "; pass all but the model by name, such as train_dataloader=..."
                raise TypeError(f"{owner}: {error}{hint if args[1:] else '.'}") from None
            method(self, *args, **kwargs)

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = signature.parameters.values()
        checked.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
        checked.__doc__ = source.__doc__
        return checked  # type: ignore[return-value]

    return decorate
