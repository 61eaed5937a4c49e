"""The arguments of the `Trainer`: its groups as one, checked against one another."""

import inspect
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec

import attrs

from composable._other_trainers import ARGUMENTS, advice_on_argument
from composable.batches.model_call import batch_spec_of
from composable.batches.spec import BatchSpec
from composable.core.callback import Callback
from composable.distributed.processes import Processes
from composable.distributed.strategies import DDP, OneProcess
from composable.losses.loss import Loss
from composable.metrics import Evaluator
from composable.plan.declarations import as_list
from composable.plan.plan import Plan
from composable.trainer import arguments as check
from composable.trainer.option_groups import (
    DataOptions,
    EvaluationOptions,
    HardwareOptions,
    LoadingOptions,
    LoggingOptions,
    ModelOptions,
    OptimizationOptions,
    ReproducibilityOptions,
    SavingOptions,
)

# A module that is imported on use is not needed by each run, or not before it is built.
if TYPE_CHECKING:
    from composable.resume.foreign import ForeignPoint
    from composable.resume.lock import RunLock
    from composable.resume.verify import Reader, ResumePoint
    from composable.trainer.run import Run


_NEED_A_FOLDER = (
    "save_interval",
    "save_num_checkpoints_to_keep",
    "save_best",
    "save_in_background",
    "save_weights_only",
)


@attrs.frozen(eq=False, kw_only=True)
class TrainerOptions(
    LoadingOptions,
    SavingOptions,
    ReproducibilityOptions,
    HardwareOptions,
    LoggingOptions,
    EvaluationOptions,
    OptimizationOptions,
    DataOptions,
    ModelOptions,
):
    """The arguments of the `Trainer`, in groups.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range, or contradicts another.
    """

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
        if self.updates:
            self._check_updates()
        taken = {"train", "train_epoch"} & {one.label for one in evaluators}
        if self.train_metrics and taken:
            raise ValueError(f"train_metrics need the label {taken.pop()!r}; rename the Evaluator.")
        if self.epoch_batches is None:
            check.check_endless("max_duration", self.max_duration, self.train_dataloader)
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

            divided = shard_stream(
                self.train_dataloader, self.processes, self.parallel.shards is not None
            )
            object.__setattr__(self, "train_dataloader", divided)

    def _use_deepspeed(self) -> None:
        if self.deepspeed_config is not None:
            from composable.distributed.deepspeed import DeepSpeed  # on use

            strategy = DeepSpeed(config=self.deepspeed_config)
            if self.parallel not in (OneProcess(), DDP(), strategy):
                raise ValueError(
                    f"deepspeed_config and parallel={self.parallel!r} exclude each other; for "
                    "other arguments of the strategy, pass parallel=DeepSpeed(config=...)."
                )
            object.__setattr__(self, "parallel", strategy)
        object.__setattr__(self, "precision", self.parallel.precision(self.precision))
        self.parallel.check_options(self)

    def _check_updates(self) -> None:
        names = [update.name for update in self.updates]
        given = ("optimizers", "deepspeed_config", "loss_mean_over", "train_metrics")
        others = [name for name in given if getattr(self, name)]
        if others or not self.decay_norms_and_biases:
            raise ValueError(
                f"updates={names} and {[*others, 'decay_norms_and_biases=False'][0]} exclude each "
                "other: pass to each Update its optimizer, mean_over and named terms."
            )
        if len(set(names)) < len(names):
            raise ValueError(f"updates have the names {names}, which must differ.")

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
        """Whether the loader of this process yields only the process's part of the data."""
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
        spec = batch_spec_of(self.model, self.input_key, self.target_key, self.batch_layout)
        if not self.updates:
            return spec
        from composable.trainer.updates import SpecOfUpdates  # on use

        return SpecOfUpdates(spec.input_key, spec.target_key, spec.batch_layout)

    @cached_property
    def loss(self) -> Loss | None:
        """The loss of outputs and a batch."""
        return check.check_loss_fn(self.loss_fn, self.model, self.batch_spec)

    @cached_property
    def evaluators(self) -> tuple[Evaluator, ...]:
        """The evaluators, complete with metrics and intervals."""
        return check.check_evaluators(
            self.eval_dataloader, self.metrics, self.eval_interval, self.eval_batches
        )

    @property
    def epoch_length(self) -> int | None:
        """The number of steps in an epoch, or None if unknown."""
        from composable.data.fetching import loader_length  # on use

        batches = loader_length(self.train_dataloader)
        if self.is_local:
            lengths = self.processes.gather(batches)
            batches = None if None in lengths else max(lengths)
        batches = check.check_limit(
            "epoch_batches", self.epoch_batches, batches, "train_dataloader"
        )
        return None if batches is None else -(-batches // self.accumulate_batches)

    def plan(self) -> Plan:
        """Compile the algorithms, callbacks and loggers, and the Trainer's own callbacks.

        Of several processes, rank 0 logs and shows its progress.
        """
        algorithms = self.algorithms
        if self.updates:
            from composable.trainer.updates import algorithms_of  # on use

            algorithms = [*as_list(algorithms), *algorithms_of(self.updates)]
        plan = Plan.compile(
            algorithms,
            self.callbacks,
            self.loggers if self.processes.is_main else (),
            builtin_callbacks=self.builtin_callbacks(),
        )
        return attrs.evolve(plan, updates=self.updates) if self.updates else plan

    def builtin_callbacks(self) -> list[Callback]:
        """Return the Trainer's own callbacks."""
        main = self.processes.is_main
        bars: list[Callback] = []
        if self.progress_bar and main:
            from composable.loggers.progress_bar import ProgressBarLogger  # on use

            bars = [ProgressBarLogger()]
        if self.train_metrics:
            from composable.trainer.train_metrics import TrainMetrics  # on use

            bars.append(TrainMetrics(self.train_metrics, self.log_interval))
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

    def resume_point(self) -> "ResumePoint | ForeignPoint | None":
        """Return the checkpoint to resume from.

        Raises:
            CheckpointError: `load_path` cannot be read, or `save_folder` has checkpoints of
                another run.
        """
        alone = not self.processes.several  # otherwise the path of rank 0 is used
        if alone and self.save_folder is None and self.load_path is None:
            return None
        from composable.resume.select import (  # on use
            check_folder_is_ours,
            find_resume_point,
            refresh_folder,
        )

        refresh_folder(None if self.dry_run else self.save_folder, resume=self.autoresume)
        point = find_resume_point(
            None if self.load_weights_only else self.load_source,
            folder=self.save_folder if self.autoresume else None,
            reader=self.reader,
            ignored=self.load_ignore_keys,
        )
        folder, run = self.save_folder, None if point is None else point.run
        if folder is not None and not (self.autoresume or self.save_overwrite or self.dry_run):
            self.processes.on_main(lambda: check_folder_is_ours(folder, run))
        return point

    @cached_property
    def load_source(self) -> Path | None:
        """`load_path` on this machine."""
        if not isinstance(self.load_path, str):
            return self.load_path
        from composable.resume.select import copy_here  # on use

        return copy_here("load_path", self.load_path, resumes=not self.load_weights_only)

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


GROUPS = TrainerOptions.__bases__[::-1]
"""The groups of the arguments, in the order in which they are documented."""


def _document_arguments() -> None:
    """Write the arguments of all groups into the docstring of `TrainerOptions`."""
    head, _, errors = inspect.cleandoc(TrainerOptions.__doc__ or "").partition("Raises:")
    arguments = (inspect.getdoc(group) or "" for group in GROUPS)
    listed = (text.partition("Args:\n")[2].rstrip() for text in arguments)
    TrainerOptions.__doc__ = head + "Args:\n" + "\n".join(listed) + "\n\nRaises:" + errors


_document_arguments()


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
                from composable._support.extras import check_floors  # only for an error

                check_floors()  # attrs below 25.4 lets no argument be passed by its position
                hint = "; pass all but the model by name, such as train_dataloader=..."
                raise TypeError(f"{owner}: {error}{hint if args[1:] else '.'}") from None
            method(self, *args, **kwargs)

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = signature.parameters.values()
        checked.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
        checked.__doc__ = source.__doc__
        return checked  # type: ignore[return-value]

    return decorate
