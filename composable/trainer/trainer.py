"""The `Trainer`: builds a run, drives the loop, and saves and restores the run."""

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composable._other_trainers import ARGUMENTS, METHODS, explain_attribute, explain_call
from composable._support.checks import check_flag
from composable.core.callback import Callback
from composable.core.control import Control
from composable.core.event import Event
from composable.core.results import Results
from composable.core.state import State
from composable.core.time import TimeLike
from composable.distributed.starting import failing_together, in_phase
from composable.plan.declarations import as_observer
from composable.plan.plan import Plan
from composable.trainer import arguments as check
from composable.trainer.options import TrainerOptions, takes_arguments_of
from composable.utils.reproducibility import configure_deterministic_mode, preserve_rng

if TYPE_CHECKING:
    from composable.loggers.in_memory import InMemoryLogger
    from composable.plan.timeline import Timeline
    from composable.resume.best import Best
    from composable.trainer.checking import CheckReport
    from composable.trainer.evaluation import Take
    from composable.trainer.trial import TrialRun


_FIT = (
    "data, length, callbacks and checkpoints are arguments of the Trainer, and fit takes "
    "duration=... alone"
)


class Trainer:
    """Train a model: fire events, run the composed step, and carry out requests of callbacks.

    With no algorithms, the weights after N steps are bit-identical to a plain PyTorch loop's. The
    arguments are documented in `TrainerOptions`.

    Example:
        >>> from functools import partial
        >>> from composable import Trainer
        >>> from composable.algorithms import LabelSmoothing
        >>> data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=data,
        ...     max_duration="2ep",
        ...     seed=17,
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=partial(torch.optim.SGD, lr=0.1),
        ...     algorithms=[LabelSmoothing(0.1)],
        ...     progress_bar=False,
        ... )
        >>> trainer.fit().timestamp.batch
        10
    """

    @takes_arguments_of(TrainerOptions)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        from composable.trainer.build import build_run, build_state  # when a run is built
        from composable.trainer.checkpoints import Checkpoints
        from composable.trainer.ownership import GivenModel, check_unowned
        from composable.trainer.records import Records
        from composable.trainer.session import Session, run_overrides

        with failing_together(), in_phase("the start"):
            options = self._options = run_overrides(TrainerOptions(*args, **kwargs))
            check_unowned(options.model)
            if options.deterministic_mode:
                configure_deterministic_mode()
            session = self._session = Session(options)
            self.logger = session.logger
            lock = options.lock()
            point = options.resume_point()
            run_id = (point and point.run) or options.run_id()
            state = build_state(options, session.own_plan, point)
            with preserve_rng(), session.running(close_at_the_end=False):
                run = self._run = build_run(options, state, session.dispatcher, point)
                session.compose = run.compose
                self._records = Records(options, session, run, run_id, lock)
                self._checkpoints = Checkpoints(run, self._records)
                if point is not None and point.run is None:
                    self._checkpoints.adopt(point)
                elif point is not None:
                    self._checkpoints.resume(point)
                options.attach(run)
                self._checkpoints.callbacks.load_waiting()
            self._given = GivenModel(options.model, weakref.ref(self))
            if self._run.engine.why_withdrawn is not None:
                self._given.withdraw(self._run.state.model, self._run.engine.why_withdrawn)
            self._between_calls()

    def __getattr__(self, name: str) -> Any:
        return explain_attribute(self, name, METHODS)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Trainer cannot be pickled: it has open files and composed functions. Save the run "
            "with save_checkpoint(path), and build a Trainer with load_path=path; trainer.state "
            "can be pickled."
        )

    @explain_call(ARGUMENTS, otherwise=_FIT)
    def fit(self, *, duration: TimeLike | None = None) -> State:
        """Train until `max_duration`, or for `duration` more, and return the last state.

        In a script that was restarted with `autoresume`, the calls that it had made before are
        repeated: those that had ended return at once, and the last one trains for the rest of its
        duration.

        When it returns or raises, the model that the Trainer was given, and `trainer.state.model`,
        have the trained layers and the weights that `eval` measures: averages, where an algorithm
        or an optimizer keeps them, or the best checkpoint's weights with `load_best_at_end`. A
        further `fit` continues from the training weights.

        A model in evaluation mode is switched to training mode. Of a model in training mode, parts
        in evaluation mode stay so, such as a frozen batch norm.

        Args:
            duration: How much longer to train: "2ep", "100ba", or an integer of epochs. If the
                last fit ended within an epoch, the rest of it counts as the first. A later call
                without it trains until the `max_duration` of the Trainer.

        Raises:
            ValueError: An argument that training needs is missing, or training has ended.
        """
        from composable.trainer import loop  # when a run was built

        longer = None if duration is None else check.check_duration(duration, "duration")
        run = self._run
        check.check_ready(run, duration)
        run.weights.check_names(run.state)
        repeats = run.progress.repeats(longer)
        if repeats and run.progress.has_ended:
            return self.state
        if not self._checkpoints.resumed:
            run.dispatcher.clear()
        self._checkpoints.resumed = False
        state = check.check_start(run, longer, repeats=repeats)
        if not repeats:
            run.progress.add_call(longer)
        with self._fitting():
            loop.start(run, state.max_duration)
            self._records.begin(self.logger)
            run.state = loop.fit(run, run.state)
            run.progress.fit_in_progress = False
        return run.state

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Train in the block; what was changed for the time of the call is restored after it."""
        from composable.trainer.summary import summarized  # when a run was built

        run, records = self._run, self._records
        with (
            self._training(),  # first, so that it ends last
            summarized(self._checkpoints),
            run.engine.failing_together(),
            in_phase(lambda: f"training after batch {run.state.timestamp.batch}"),
            preserve_rng(),
            records.locked(),
            records.recording_end(),
            self._session.running(),
            run.signals.handled(saves=bool(run.checkpoints.managers)),
        ):
            yield

    def train_batch(self, state: State) -> State:
        """Train on `state.batch`: one step, from `BATCH_START` to `AFTER_ZERO_GRAD`.

        The step depends on the state alone (its weights, batch, key and time), so it can be
        repeated by itself.
        """
        with self._training(), self._session.with_plan():
            return self._run.step(state)

    @contextmanager
    def trial(self) -> Iterator["TrialRun"]:
        """Take steps of the run in a block, and leave the run as it was, to the bit.

        The steps start from the training weights and have the algorithms, but no callbacks and
        loggers. At the end of the block the model, the loss, the optimizers, the loss scale and all
        generators are restored.

        Raises:
            RuntimeError: It was called while the Trainer runs.
            ValueError: The run has several processes or an engine of DeepSpeed, or an argument that
                training needs is missing.

        Example:
            >>> from functools import partial
            >>> trainer = Trainer(
            ...     torch.nn.Linear(2, 1),
            ...     train_dataloader=[(torch.ones(4, 2), torch.ones(4, 1))],
            ...     loss_fn=torch.nn.functional.mse_loss,
            ...     optimizers=partial(torch.optim.SGD, lr=0.1),
            ...     progress_bar=False,
            ... )
            >>> with trainer.trial() as trial:
            ...     losses = [trial.step(b, k) for k, b in zip(range(3), trial.batches())]
            >>> bool(losses[2] < losses[0])
            True
        """
        from composable.trainer.trial import trial  # on use

        self._check_idle("trial", "call it after fit")
        check.check_trial(self._run)
        with (
            preserve_rng(),
            self._training(),
            self._session.without_observers(),
            trial(self._run) as steps,
        ):
            yield steps

    def check(self, batches: Iterable[Any] | None = None) -> "CheckReport":
        """Run one batch of everything that `fit` does, and leave the run as it was, to the bit.

        These are the first batch, three steps on it, one batch of each evaluator, and a save and a
        resume in a temporary folder on the disk of `save_folder`. In the first step, algorithms
        must write nothing in place, and only the fields that they declare. Callbacks and loggers
        see nothing, but their states are saved and restored: one whose `load_state_dict` fails may
        have changed.

        Args:
            batches: The batches, a list or a `DataLoader`. By default those that the run trains on
                next. Needed for a loader that keeps a position, such as a stream.

        Returns:
            The seconds and bytes of each part, which it prints as a table.

        Raises:
            CheckError: A part failed: the error names it, and what to look at.
            ValueError: The run has several processes, or an argument that training needs is
                missing.

        Example:
            >>> from functools import partial
            >>> trainer = Trainer(
            ...     torch.nn.Linear(2, 1),
            ...     train_dataloader=[(torch.ones(4, 2), torch.ones(4, 1))],
            ...     loss_fn=torch.nn.functional.mse_loss,
            ...     optimizers=partial(torch.optim.SGD, lr=0.1),
            ...     progress_bar=False,
            ... )
            >>> report = trainer.check()
            >>> report.memory["parameters"]  # of 3 numbers
            12
        """
        from composable.trainer.checking import check_run  # on use

        with self.trial() as trial:
            return check_run(trial, self._checkpoints, batches)

    @explain_call(ARGUMENTS)
    def eval(self, eval_dataloader: Any = None) -> dict[str, dict[str, float]]:
        """Evaluate now, and return the results by evaluator and metric, or by their logged names.

        Args:
            eval_dataloader: As in the constructor; None for the constructor's.

        Raises:
            ValueError: There is no `eval_dataloader`.
        """
        run = self._run
        given = check.check_evaluators(eval_dataloader, self._options.metrics, None)
        evaluators = given or run.evaluators
        if not evaluators:
            raise ValueError("eval needs an eval_dataloader; pass one here or to the Trainer.")
        with self._evaluating():
            state = run.fire(Event.EVAL_STANDALONE_START, self.state)
            for evaluator in evaluators:
                state = run.evaluation.evaluate(state, evaluator)
            state = run.fire(Event.EVAL_STANDALONE_END, state)
            run.state = self.state.evolve(memory=state.memory, metrics=state.metrics)
        return Results({one.label: dict(state.metrics[one.label]) for one in evaluators})

    @explain_call(ARGUMENTS)
    def predict(self, dataloader: Iterable[Any], *, to: str | Path | None = None) -> Any:
        """Call the model on every batch of a loader, and return its outputs on the CPU.

        Several processes share the batches, and each returns all outputs in their order.

        Args:
            dataloader: The batches, the same on every process.
            to: A folder or its URL to which the outputs are written as they are computed. Then it
                is returned, and nothing is kept in memory. Each batch has a file of safetensors,
                such as "part-00000000.safetensors", with the tensor `outputs`, or those by name. A
                call that was killed continues after the last file if it is repeated.

        Raises:
            FileExistsError: The folder has other files, or outputs of other weights.
            TypeError: An output has other values than tensors and numbers, which a file has not.

        Example:
            >>> import tempfile
            >>> from safetensors.torch import load_file
            >>> trainer = Trainer(torch.nn.Identity(), progress_bar=False)
            >>> folder = trainer.predict([torch.zeros(2), torch.ones(2)], to=tempfile.mkdtemp())
            >>> load_file(f"{folder}/part-00000001.safetensors")
            {'outputs': tensor([1., 1.])}
        """
        if to is None:
            return list(self.predict_each(dataloader))
        from composable.trainer.predictions import OutputFolder  # on use

        loader = check.check_loader("dataloader", dataloader)
        folder = OutputFolder.at(to, loader, self.state, self._options.processes)
        for _ in self._predicted(loader, folder.write, folder.start):
            pass
        return to

    @explain_call(ARGUMENTS)
    def predict_each(self, dataloader: Iterable[Any]) -> Iterator[Any]:
        """Yield what `predict` returns, output by output, and keep none.

        Of several processes, each yields all outputs, and all must take equally many. The iterator
        is a call of the Trainer: use it up, or close it, before another one.

        Args:
            dataloader: The batches, the same on every process.

        Example:
            >>> trainer = Trainer(torch.nn.Identity(), progress_bar=False)
            >>> [int(output.sum()) for output in trainer.predict_each([torch.ones(2)] * 3)]
            [2, 2, 2]
        """
        from composable.distributed.outputs import gather_outputs  # on use

        loader = check.check_loader("dataloader", dataloader)
        gather = partial(gather_outputs, processes=self._options.processes)
        return _one_by_one(self._predicted(loader, gather))

    def _predicted(self, loader: Any, take: "Take", start: int = 0) -> Generator[Any, None, None]:
        """Yield what `take` returns for each round of a prediction."""
        run = self._run
        with self._evaluating(), suppress(GeneratorExit):  # it may be closed early
            run.state = yield from run.evaluation.predict(self.state, loader, take, start)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluate or predict in the block, with the evaluated weights."""
        run = self._run
        with (
            run.engine.failing_together(),
            preserve_rng(),
            run.at_evaluated_weights(),
            self._session.running(),
        ):
            yield

    def export_weights(
        self, path: str | Path, *, part: str = "", overwrite: bool = False, tokenizer: Any = None
    ) -> str | Path:
        """Write the weights that `eval` measures, to use them without this library.

        A folder, or a repository of the Hugging Face Hub, also gets a model card: a `README.md`
        with the data, methods, results and versions of the run. If the parameters are sharded, all
        processes call this method.

        Args:
            path: A file that ends in ".safetensors", whose names are the keys of the model's state
                dict; or for a model of Transformers a folder, which `from_pretrained` reads, with
                the list `exported_files.txt`. Its parent folders are made. Or the URL of one, such
                as "hf://user/model" for a repository of the hub: it is created if it is missing,
                and other files in it stay.
            part: The name of a module of the model, such as "generator", to write its weights
                alone. Default: the whole model.
            overwrite: Replace an existing file. A folder that this method wrote is replaced in any
                case, and one with other files never. On the hub, the history has what is replaced.
            tokenizer: The tokenizer of Transformers to write to the folder.

        Returns:
            The path, or the URL; on the hub, with the commit.

        Raises:
            RuntimeError: It was called while the Trainer runs, or `from_pretrained` would not build
                the model, since layers of it were replaced.
            CheckpointExistsError: The file exists, or the folder has other files.
            UnsavableError: The state dict has other values than tensors, or `from_pretrained` would
                build another model.
            ValueError: The path is a folder, and the model is not one of Transformers; or the
                model has no such part, or there is no token for the hub.

        Example:
            >>> import tempfile
            >>> from safetensors.torch import load_file
            >>> trainer = Trainer(torch.nn.Linear(2, 1), progress_bar=False)
            >>> path = trainer.export_weights(tempfile.mkdtemp() + "/model.safetensors")
            >>> sorted(load_file(path))
            ['bias', 'weight']
        """
        from composable.trainer.exporting import export_run  # on use

        instead = "call it after fit, or use ExportForInference to export at intervals"
        self._check_idle("export_weights", instead)
        check_flag("overwrite", overwrite)
        self._run.state = self._run.weights.adopt_changes(self._run.state)
        return export_run(self._records, path, part, overwrite, tokenizer)

    def _check_idle(self, method: str, instead: str) -> None:
        """Raise a RuntimeError if a callback called a method that is for between two calls."""
        if self._session.in_call:
            raise RuntimeError(f"{method} was called while the Trainer runs; {instead}.")

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Let the model hold the training weights for the length of a call."""
        within = not self._run.weights.installed  # a callback called
        try:
            if not within:
                self._run.take_training_weights()
            yield
        finally:
            if not within:
                self._between_calls()

    def _between_calls(self) -> None:
        """Give the model, and the model that was passed, the evaluated weights and all layers."""
        self._run.state = self._run.weights.install(self._run.state)
        self._given.follow(self._run.state.model)

    def add_callback(
        self, callback: Callback | type[Callback] | Callable[..., Control | None]
    ) -> Callback:
        """Add a callback or a logger, which runs after the others, from the next call on.

        It does not run in a fit that is in progress, and misses the events of the constructor.

        Args:
            callback: A callback, a logger, a class of either, which is called without arguments,
                or a function `(event, state, logger) -> Control | None`.

        Returns:
            The callback that was added; of a class, its instance.

        Raises:
            TypeError: It is something else, or the class cannot be called without arguments.
            ValueError: It was added before.

        Example:
            >>> from composable import Callback, Trainer
            >>> class Count(Callback):
            ...     fits = 0
            ...
            ...     def fit_start(self, state, logger):
            ...         self.fits += 1
            >>> trainer = Trainer(torch.nn.Linear(2, 1), progress_bar=False)
            >>> count = trainer.add_callback(Count)
            >>> count.fits
            0
        """
        observer = as_observer(callback)
        self._session.add(observer)
        self._checkpoints.callbacks.load_waiting()
        return observer

    def save_checkpoint(
        self, path: str | Path, *, weights_only: bool = False, overwrite: bool = False
    ) -> Path:
        """Save the run between two calls of `fit`.

        Its model has the weights that `eval` measures; the trained weights, where they differ, are
        saved beside them.

        While `fit` runs, a callback requests `Control.SAVE` instead.

        Args:
            path: The checkpoint, a folder, or its URL; its parent folders are made.
            weights_only: Save the model alone.
            overwrite: Replace an existing checkpoint.

        Raises:
            RuntimeError: It was called while the Trainer runs.
            CheckpointError: The checkpoint cannot be written.
        """
        self._check_idle("save_checkpoint", "return Control.SAVE from a callback instead")
        check_flag("weights_only", weights_only)
        check_flag("overwrite", overwrite)
        from composable.storage.folders import as_file  # on use

        target = as_file("path", path)
        with self._training():
            return self._checkpoints.write(target, weights_only=weights_only, overwrite=overwrite)

    # --- what can be read at any time ---

    @property
    def plan(self) -> Plan:
        """The plan of a run that starts now, global callbacks included."""
        return self._session.plan.with_remarks(self.state)

    @property
    def state(self) -> State:
        """The state after the last finished batch."""
        return self._run.state

    @property
    def history(self) -> "InMemoryLogger":
        """Everything that was logged, also before a resume: the first `InMemoryLogger` of the run.

        Raises:
            AttributeError: The run has none.
        """
        for destination in self._session.own_plan.destinations:
            if destination.keeps_history:
                return destination  # type: ignore[return-value]
        raise AttributeError(
            "this run keeps no history; pass loggers=InMemoryLogger() to the Trainer."
        )

    @property
    def best(self) -> "Best | None":
        """The best result so far and its checkpoint; None without `save_best`, or before it."""
        return self._checkpoints.best

    def timeline(self) -> "Timeline":
        """Return when each algorithm is active over the run: see `Plan.timeline`."""
        return self.plan.timeline(self.state.max_duration, self.state.epoch_length)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        state, algorithms = self.state, ", ".join(one.name for one in self.plan.algorithms)
        now = state.timestamp
        return (
            f"<Trainer of {type(state.model).__name__}: epoch {now.epoch}, batch {now.batch}, "
            f"max_duration {state.max_duration}, algorithms [{algorithms}]>"
        )


def _one_by_one(rounds: Generator[list[Any], None, None]) -> Iterator[Any]:
    """Yield the outputs of each round; in between, the random generators are the caller's."""
    try:
        while True:
            with preserve_rng():
                found = next(rounds, None)
            if found is None:
                return
            yield from found
    finally:
        with preserve_rng():
            rounds.close()


def options_of(trainer: Trainer) -> TrainerOptions:
    """Return the arguments of a Trainer, for the packages above this one."""
    return trainer._options


def training_weights(trainer: Trainer) -> AbstractContextManager[None]:
    """Let the model of a Trainer hold the training weights for the length of a block."""
    return trainer._training()
