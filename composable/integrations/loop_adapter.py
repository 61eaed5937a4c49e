"""The algorithms around the epochs, evaluations and checkpoints of an external loop."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn
from torch.optim import Optimizer

from composable._support.checks import check_count
from composable._support.printable import shorten
from composable.batches.precision import Precision
from composable.core.evaluation_mode import evaluation_mode
from composable.core.event import Event
from composable.core.time import Time, TimeUnit
from composable.data.fetching import loader_length
from composable.integrations._checkpoints import LoopCheckpoints
from composable.integrations._hooks import check_owner, own_optimizers, watch_steps
from composable.integrations._loaders import SeededLoader, iterate_batches
from composable.integrations._refusals import (
    check_agreement,
    check_divided,
    check_optimizer,
    check_same_place,
    check_unchanged,
    refuse_metrics,
    refuse_unfired,
)
from composable.integrations._saved_state import pack_state, place, saved_fields, unpack_state
from composable.integrations._step import StepEvents
from composable.resume.best import Best
from composable.trainer import arguments as check
from composable.trainer.evaluated_weights import EvaluatedWeights, averaging_names

_BETWEEN_BATCHES = (Event.FIT_START, Event.BEFORE_DATALOADER)


@attrs.define(eq=False)
class LoopAdapter(StepEvents):
    """Algorithms in an external training loop; `adapt_loop` returns it.

    A handwritten loop needs `model`, `epoch`, `loss`, `evaluating`, `save` and `resume`. `epoch`
    calls the other methods; an adapter of another trainer calls them itself, from the hooks of that
    trainer. An algorithm whose events a loop does not fire raises an error at the first step.
    """

    _resumed: bool = False
    """Whether a state was loaded, and no epoch has been started since."""
    _in_epoch: bool = False
    """Whether an epoch was started, and has not ended."""
    _lending: bool = False
    """Whether the model holds the weights for an evaluation."""
    _steps: ExitStack = attrs.field(factory=ExitStack)
    """Ends the watch over the steps of the optimizer."""
    _iteration: object = None
    """The iteration over `epoch` that watches the steps."""
    weights: EvaluatedWeights = attrs.field(init=False)
    log_interval: Time = attrs.field(init=False, default=Time(1, TimeUnit.BATCH))
    unlogged: Mapping[str, Any] = attrs.field(init=False, factory=dict)
    """The losses of updates since the last row of a log: none in an external loop."""
    """The weights for evaluations, and those that are trained."""
    _initial: Mapping[str, Any] = attrs.field(init=False)
    """The fields of the state when a training begins."""
    _loaded: Mapping[str, Any] | None = None
    """The fields in the last checkpoint."""
    _fixed_length: bool = attrs.field(init=False)
    """Whether the length of epochs differs from the loader's."""
    extra: dict[str, Any] = attrs.field(factory=dict)
    """The user's values, which `save` saves and `resume` restores."""
    checkpoints: LoopCheckpoints = attrs.field(init=False)
    """What saves and resumes this loop."""

    def __attrs_post_init__(self) -> None:
        self.weights = EvaluatedWeights(lambda: self.plan, strict=True)
        self._initial = saved_fields(self.state)
        self._fixed_length = self.state.epoch_length is not None
        self.checkpoints = LoopCheckpoints(self, self.extra)
        own_optimizers(self)

    # --- for a handwritten loop ---

    def epoch(
        self,
        loader: Iterable[Any],
        *,
        accumulate_batches: int = 1,
        others: Iterable["LoopAdapter"] = (),
    ) -> Iterator[Any]:
        """Iterate over a loader once, and return each batch as the algorithms change it.

        The order of the batches and the random numbers of the model are the same as in a `Trainer`
        with this seed: the global generators are seeded for every epoch and batch. During the
        iteration, hooks observe the steps of the optimizer, which must not step outside of it.

        A batch after which the optimizer does not step counts if the loop gets the next
        one. If the loop is left during a batch, by an exception or `break`, without its step, the
        clock, the seed and the memory of the algorithms are those before the batch; weights,
        buffers and gradients stay as they are. The epoch ends when the next one begins, or after
        its last batch.

        After `load_state_dict`, the first call returns the remaining batches of the epoch: none if
        the state was saved after its last step.

        Args:
            loader: The batches.
            accumulate_batches: The number of batches for each step of the optimizer; the last step
                of an epoch may have fewer. Divide the value of `loss` by it. All of them are
                fetched before the first one is returned, so that its share in the loss is known.
            others: Adapters of other optimizers that train on the same batches, as of the
                generator of a GAN beside its discriminator. They can't change the batches.

        Raises:
            ValueError: There is no optimizer, `accumulate_batches` is less than 1, or an adapter is
                at another batch.
            RuntimeError: An optimizer was passed to another adapter since, the epoch was started
                again during the iteration, or another adapter changes a batch.
        """
        check.check_loader("loader", loader)
        adapters, fetched = (self, *others), dict[int, list[Any]]()
        for adapter in adapters:
            adapter._check_followed("t.epoch(loader)")
            adapter.leave_batch()
            adapter._set_lengths(loader_length(loader), accumulate_batches)
            adapter._micro.fetched = fetched
            check_same_place(self.state.timestamp, adapter.state.timestamp)
        self._loaded = None  # only another trainer returns to it
        position = self.checkpoints.position.begin(loader, accumulate_batches)
        now = self.state.timestamp
        if self._resumed and now.batch_in_epoch == self.state.epoch_length:
            for adapter in adapters:
                adapter._resumed = False
                adapter.end_epoch()  # saved after its last batch: none remains
            return
        with self.checkpoints.watching(), ExitStack() as iterations:
            own = [iterations.enter_context(adapter._iterating()) for adapter in adapters]
            position |= {"accumulate_batches": accumulate_batches, "fetched": fetched}
            batches = self._batches(loader, **position)
            for batch in self.checkpoints.position.iterate(batches):
                for adapter in adapters[1:]:
                    check_unchanged(batch, adapter.start_batch(batch), adapter.plan)
                yield self.start_batch(batch)
                if [adapter._iteration for adapter in adapters] != own:
                    raise RuntimeError(
                        "t.epoch(loader) or t.load_state_dict(saved) was called during this "
                        "iteration, so the clock does not count its batches; iterate over "
                        "zip(loader, other_loader), or leave the loop before."
                    )
                for adapter in adapters:
                    adapter.end_complete_batch()
                self._checkpoint()
            for adapter in adapters:
                adapter.end_batch()
            self.checkpoints.after_batch(ends_epoch=True)
            for adapter in adapters:
                adapter.end_epoch()

    def _batches(self, loader: Any, **options: Any) -> Iterator[Any]:
        """Iterate over the batches of the epoch from the clock on."""
        now, count = self.state.timestamp, self._micro.accumulate_batches
        return iterate_batches(
            loader,
            self.state.key,
            epoch=now.epoch,
            first_step=(now.batch - now.batch_in_epoch) * count,
            skip=now.batch_in_epoch * count,
            **options,
        )

    def _checkpoint(self) -> None:
        """Save if that is due, unless a batch has further microbatches."""
        if self._last in _BETWEEN_BATCHES:
            self.checkpoints.after_batch()

    @contextmanager
    def _iterating(self) -> Iterator[object]:
        """Start an epoch, and leave its last batch when the iteration ends, however it does."""
        self.start_epoch()
        self.watch_steps()
        self._iteration = own = object()
        try:
            yield own
        finally:
            if self._iteration is own:  # otherwise a later iteration has left the batch
                self._iteration = None
                self._steps.close()
                self.leave_batch()
                now = self.state.timestamp
                if self._in_epoch and now.batch_in_epoch == self.state.epoch_length:
                    self.end_epoch()  # left after its last batch, as by zip

    def seeded(self, loader: Any) -> SeededLoader:
        """Return a loader for Lightning, which continues a training in the middle of an epoch.

        Each iteration is over the batches of the current epoch from the clock on, in the order and
        with the random numbers of `epoch`. So a training that was killed after any checkpoint has
        the same batches as one that was not.

        Args:
            loader: The only loader of the training. In several processes, it must be divided, as by
                a `DistributedSampler`: Lightning divides no loader of this type.

        Raises:
            ValueError: It has no length, so that Lightning would fetch a batch ahead.

        Example:
            >>> from composable.integrations import adapt_loop
            >>> t = adapt_loop([], torch.nn.Linear(4, 3), seed=17)
            >>> len(t.seeded(torch.utils.data.DataLoader(range(6), batch_size=2)))
            3
        """
        check.check_loader("loader", loader)
        if loader_length(loader) is None:
            raise ValueError(
                f"loader={shorten(loader)} must have a length: without one, Lightning fetches "
                "batches before the training begins; give the dataset or the loader a __len__."
            )
        return SeededLoader(loader, self._following)

    def _following(self, loader: Any) -> Iterator[Any]:
        """Iterate like `_batches`; nothing happens before the first batch is fetched."""
        self.resume_epoch()
        done = self.state.timestamp.batch_in_epoch * self._micro.accumulate_batches
        if done >= len(loader):
            raise RuntimeError(
                f"the loader in t.seeded(loader) has {len(loader)} batches, and the epoch is at "
                f"batch {done}: use one loader for the training, with the length that it had."
            )
        check_divided(loader)
        yield from self._batches(loader)

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """Give the model the averaged weights, in evaluation mode and without gradients.

        All holders of the model (you, Fabric, a trainer) see them; its own weights and modes are
        restored afterwards. A batch whose step was taken is ended first.
        """
        with self.evaluation_weights() as model, evaluation_mode(model):
            yield model

    def train_metrics(self, *, epoch: bool = False) -> dict[str, Any]:
        """Return the averages of `train_metrics=` since the last call; none without a step since.

        A batch whose step was taken is ended first. Under DDP, all processes call it.

        Args:
            epoch: Return the averages of the epoch so far instead, or of the last one.

        Raises:
            ValueError: There are no metrics of training.
        """
        if self.measures is None:
            raise ValueError("t.train_metrics() needs train_metrics=; pass it to adapt_loop.")
        self._end_stepped_batch()
        results = self.measures.results("train_epoch" if epoch else "train")
        if not epoch:
            self.measures.totals["train"].reset()
        return {name: torch.as_tensor(value).tolist() for name, value in results.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the clock, the seed and the memory of the algorithms: for a checkpoint.

        Save it next to the model and the optimizer. It consists of plain containers and tensors, so
        `torch.load` reads it with `weights_only=True`. A batch whose step was taken is ended first.

        Raises:
            RuntimeError: A batch was started and its step was not taken, or the model holds the
                weights of an evaluation.
        """
        refuse_metrics(self.measures, "t.state_dict() saves no averages; call t.save(folder)")
        self._end_savable_batch("t.state_dict()")
        return pack_state(self.state)

    def _end_savable_batch(self, call: str) -> None:
        if self._was_skipped:
            self.end_batch()
        self._end_stepped_batch()
        if self._last not in _BETWEEN_BATCHES:
            raise RuntimeError(
                f"{call} was called in the middle of a batch, which cannot be resumed; call it "
                "after optimizer.step()."
            )
        if self._lending:
            raise RuntimeError(
                f"{call} was called while the model holds the weights of an evaluation, which a "
                "checkpoint must not save for training; call it after t.evaluating()."
            )

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the value of `state_dict`; load the model and the optimizer as well.

        Args:
            saved: The value of `state_dict`, of an adapter with the same arguments. Its seed
                replaces this adapter's.

        Raises:
            ValueError: It is not the value of `state_dict`.
        """
        refuse_metrics(self.measures, "t.load_state_dict(saved) has no averages; call t.resume")
        self._loaded = unpack_state(saved)
        self.weights.forget()
        self.return_to(self._loaded)

    def return_to(self, fields: Mapping[str, Any], resumed: bool = True) -> None:
        """Restore the clock, the seed and the memory of a checkpoint or of the beginning."""
        self._steps.close()
        self._iteration = None
        self._resumed, self._in_epoch, self._stepped_early = resumed, False, 0
        self._forget_batch(self.state.evolve(**fields))
        self.state = place(self.state, memory=True)

    # --- checkpoints ---

    def save(
        self, folder: str | Path | None = None, *, metrics: Mapping[str, float] | None = None
    ) -> Path:
        """Save a checkpoint of the whole loop, atomically and with hashes.

        It has the model, the optimizers, the memory of the algorithms, the clock, the position in
        the loader of `epoch`, the global generators of random numbers, and `extra`. Call it after
        all that belongs to a batch or an epoch, such as a step of a scheduler. Under DDP, all
        processes call it, and rank 0 writes.

        Args:
            folder: The folder of the checkpoints; by default, where the loop saves already. To a
                second folder only these calls save, and it keeps all.
            metrics: Results of these weights, one of which may select the best checkpoint: the
                `metric` of a `CheckpointSaver` that was passed as `save_folder`.

        Returns:
            The path of the checkpoint.

        Raises:
            RuntimeError: A batch was started and its step was not taken, or the model holds the
                weights of an evaluation.
            CheckpointError: It cannot be written, or the folder has some of another run.
        """
        self._check_followed("t.save(folder)")
        self._end_savable_batch("t.save(folder)")
        if self._in_epoch and self._iteration is None and sys.exc_info()[0] is None:
            self.end_epoch()  # left by break: the next epoch would end it
        if folder is None and self.checkpoints.saver is None:
            raise ValueError("t.save() needs a folder: pass it here or in adapt_loop.")
        return self.checkpoints.save(folder, metrics)

    @property
    def best(self) -> Best | None:
        """The best checkpoint so far, and its result; None if no result selects one."""
        return self.checkpoints.best

    def resume(self, folder: str | Path, *, load_ignore_keys: Sequence[str] = ()) -> bool:
        """Restore the latest whole checkpoint of a folder in place, if there is one.

        The first `epoch` after it returns the remaining batches, so a loop that counts batches, or
        leaves an epoch early, counts from `t.state.timestamp.batch_in_epoch`, not from 0. The seed
        is read from the checkpoint. If this loop saves nowhere yet, it saves to this folder from
        now on.

        Args:
            folder: A folder of checkpoints, which may be missing or empty, or one checkpoint.
            load_ignore_keys: Patterns of entries that stay as they are: "optimizers".

        Returns:
            Whether there was a checkpoint. If not, training starts at the beginning.

        Raises:
            CheckpointError: It does not fit this loop, which is left as it was.
            RuntimeError: An epoch is being iterated over.
        """
        self._check_followed("t.resume(folder)")
        if self._iteration is not None:
            raise RuntimeError(
                "t.resume(folder) was called during an epoch, whose batches would follow another "
                "position; call it before the loop."
            )
        return self.checkpoints.resume(folder, load_ignore_keys)

    # --- for adapters, in the order of a step ---

    def follow(
        self,
        optimizer: Optimizer,
        *,
        loader_length: int | None = None,
        accumulate_batches: int = 1,
        precision: str | None = None,
    ) -> None:
        """Set what a loop creates itself: the optimizer, the batches of its epochs, its precision.

        Args:
            optimizer: The optimizer, also wrapped by Accelerate.
            loader_length: The number of batches of the loader.
            accumulate_batches: The number of batches for each step of the optimizer.
            precision: The precision of the loop; by default as passed to `adapt_loop`.
        """
        if precision is not None:
            self.state = self.state.evolve(precision=Precision(precision))
        self._steps.close()  # of a training that failed
        self.leave_batch()
        if self.weights.installed:  # trained before
            self.state = self.weights.remove(self.weights.adopt_changes(self.state))
        self.state = self.state.evolve(optimizers=(check_optimizer(optimizer, self.model),))
        own_optimizers(self)
        self._set_lengths(loader_length, accumulate_batches)
        self.state = place(self.state, memory=self._resumed)

    def start_at(self, step: int) -> None:
        """Start or resume a training where the loop does.

        Args:
            step: The number of batches that the loop has trained on. At 0, a training begins, also
                after another one: the clock, the seed and the memory are reset to the beginning. At
                the step of the last checkpoint that was loaded, they are reset to the checkpoint.

        Raises:
            RuntimeError: The algorithms are at another batch.
        """
        refuse_metrics(self.measures, "another trainer saves no averages; use its metrics")
        now = self.state.timestamp.batch
        if self._loaded and step == self._loaded["timestamp"].batch:
            self.return_to(self._loaded)
        elif not step and not self._resumed:
            self.return_to(self._initial, resumed=False)
        elif step != now:
            raise RuntimeError(
                f"the loop resumes at step {step}, and the algorithms are at batch {now}, so "
                "schedules and averages would be wrong; pass the value of t.state_dict() that was "
                "saved with this checkpoint to t.load_state_dict."
            )

    def check_modules(self, trained: nn.Module) -> None:
        """Check that the model that a loop trains holds modules of the adapter's model.

        Raises:
            ValueError: It does not.
        """
        if not {*map(id, trained.modules())} & {*map(id, self.model.modules())}:
            raise ValueError(
                f"{type(trained).__name__} has no module of t.model, so the changes of the "
                "algorithms to the model would have no effect; build it with t.model (or a part of "
                "it), not with the model that was passed to adapt_loop."
            )

    def start_epoch(self) -> None:
        """Start an epoch, and end one that was left early.

        Raises:
            RuntimeError: An algorithm replaced the model that the loop trains.
            ValueError: The processes have different seeds, or are at different batches.
        """
        self.leave_batch()
        check_owner(self)
        self.state = place(self.state, memory=self._resumed)
        check_agreement(self.state)
        if self.measures is not None:
            self.measures.to(self.state.device)
        resumed, self._resumed = self._resumed, False
        self._stepped_early = 0
        done = self.state.timestamp.batch_in_epoch
        self._in_epoch |= resumed and done not in (0, self.state.epoch_length)
        if self._in_epoch and (resumed or not done):
            return
        if done:
            self.end_epoch()
        if self.measures is not None:
            self.measures.totals["train_epoch"].reset()
        self._in_epoch, state = True, self.state
        if state.timestamp.epoch_in_iteration == 0:
            state = self._fire(Event.ITERATION_START, state)
        state = self._fire(Event.EPOCH_START, state)
        self._check_model(state, "at EPOCH_START")
        self._advance(Event.BEFORE_DATALOADER, self._fire(Event.BEFORE_DATALOADER, state))

    def resume_epoch(self) -> None:
        """Start an epoch if a state was loaded, and none has been started since."""
        if self._resumed:
            self.start_epoch()

    @contextmanager
    def evaluation_weights(self) -> Iterator[nn.Module]:
        """Give the model the averaged weights; the loop sets modes and gradients itself."""
        if self.weights.installed:  # after training
            yield self.state.model
            return
        self._end_stepped_batch()
        outer = self.state
        state = self._fire(Event.EVAL_BEFORE_ALL, outer)
        state = self._fire(Event.EVAL_START, state)
        self._lending = True
        try:
            self.weights.install(outer, state.model)
            yield outer.model
        finally:
            self.weights.remove(outer)
            self._lending = False
        state = self._fire(Event.EVAL_AFTER_ALL, self._fire(Event.EVAL_END, state))
        self.state = outer.evolve(memory=state.memory, metrics=state.metrics)

    @contextmanager
    def at_evaluated_weights(self) -> Iterator[None]:
        """Let the model hold the evaluated weights, to save it; no event is fired."""
        if self.weights.installed or self._lending:
            yield
            return
        outer = self.state
        try:
            self.weights.install(outer)
            yield
        finally:
            self.weights.remove(outer)

    def watch_steps(self, *, before: bool = True) -> None:
        """Fire the events of a step when the optimizer steps; see `_hooks.watch_steps`."""
        self._steps.close()
        self._steps = watch_steps(self, before=before)

    def rest(self) -> None:
        """Leave the evaluated weights in the model, after training or between two calls."""
        self._steps.close()
        self.leave_batch()
        if not self.weights.installed:
            self.state = self.weights.install(self.state)

    def restore_averages(self, saved: Mapping[str, Any]) -> None:
        """Restore the averages of `state_dict` alone, such as the best checkpoint's."""
        fields = unpack_state(saved)
        names = averaging_names(self.plan)
        memory = {name: value for name, value in fields["memory"].items() if name in names}
        self.state = self.state.evolve(
            averages=fields["averages"], memory={**self.state.memory, **memory}
        )
        self.state = place(self.state, memory=True)

    def check_evaluating(self) -> None:
        """Check that an evaluation is inside `evaluating` if an algorithm has weights for it.

        Raises:
            RuntimeError: It is not.
        """
        if not (self._lending or self.weights.installed):
            refuse_unfired(
                self.plan, (Event.EVAL_START,), "an evaluation", "t.evaluating() around it"
            )

    def end_epoch(self) -> None:
        """Count the epoch."""
        self.end_batch()
        self._in_epoch = False
        state = self.state.evolve(timestamp=self.state.timestamp.next_epoch())
        state = self._fire(Event.EPOCH_END, state)
        self.state = self._fire(Event.EPOCH_CHECKPOINT, state)

    def finish(self) -> None:
        """Fire the events at the end of training, and wait for a save in the background."""
        self.end_batch()
        if self._resumed and self.state.timestamp.batch_in_epoch == self.state.epoch_length:
            self.end_epoch()  # of a state that was saved after the last batch of the training
        state = self.state.evolve(timestamp=self.state.timestamp.next_iteration())
        for event in (Event.ITERATION_END, Event.ITERATION_CHECKPOINT, Event.FIT_END):
            state = self._fire(event, state)
        self.state = state
        self.checkpoints.finish()

    def end_step(self) -> None:
        """End the batch after the last microbatch of a step, also if the step was skipped.

        A loop whose own count of steps has changed calls it: a callback sees no skipped step.
        """
        if self._last in _BETWEEN_BATCHES:
            self.skip_step()
        else:
            self.end_batch()

    def _end_stepped_batch(self) -> None:
        if self._last is Event.BEFORE_ZERO_GRAD:
            self.end_batch()

    def _set_lengths(self, loader_length: int | None, accumulate_batches: int) -> None:
        check_count("accumulate_batches", accumulate_batches, 1)
        self._micro.accumulate_batches, self._micro.fetched = accumulate_batches, {}
        if not self._fixed_length:
            length = None if loader_length is None else -(-loader_length // accumulate_batches)
            self.state = self.state.evolve(epoch_length=length)
