"""Algorithms in external training loops.

`adapt_loop` returns an object that fires the events of a step around code outside of this library:
a handwritten loop, with or without Fabric or Accelerate, or another trainer.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composable.checkpoint.errors import CheckpointError
from composable.checkpoint.tree import pack, unpack
from composable.core.batch import BatchSpec, count_examples
from composable.core.event import Event
from composable.core.key import Key
from composable.core.logger import Logger
from composable.core.loss import ModelLoss, check_loss
from composable.core.state import State
from composable.core.time import TimeLike, Timestamp
from composable.data.order import seeded_batches
from composable.optim.building import check_optimizers
from composable.plan.dispatch import Dispatcher
from composable.plan.plan import Plan
from composable.trainer import arguments as check
from composable.trainer.evaluation import evaluation_mode
from composable.trainer.parameters import (
    drop_batch,
    frozen_parameters,
    surgery,
    write_gradients,
)
from composable.utils.reproducibility import get_random_seed, seed_step

__all__ = ["LoopAdapter", "UnsupportedRequestError", "adapt_loop"]

_OF_THE_BATCH = (
    Event.AFTER_DATALOADER,
    Event.BATCH_START,
    Event.BEFORE_TRAIN_BATCH,
    Event.BEFORE_FORWARD,
)
_OF_THE_LOSS = (
    Event.AFTER_FORWARD,
    Event.BEFORE_LOSS,
    Event.AFTER_LOSS,
    Event.BEFORE_BACKWARD,
)
_BETWEEN_BATCHES = (Event.FIT_START, Event.BEFORE_DATALOADER)
_SAVED: dict[str, type] = {
    "timestamp": Timestamp,
    "previous_timestamp": Timestamp,
    "key": Key,
    "memory": dict,
    "metrics": dict,
}
_REQUESTS = {
    "second_pass": "a second pass over the batch, at other weights",
    "lr_override": "a step with other learning rates",
}


class UnsupportedRequestError(RuntimeError):
    """An algorithm requests something that only the `Trainer` of this library can do."""


def adapt_loop(  # noqa: PLR0913 (public options)
    algorithms: Any,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    max_duration: TimeLike | None = None,
    epoch_length: int | None = None,
    seed: int | None = None,
    input_key: Any = 0,
    target_key: Any = 1,
) -> "LoopAdapter":
    """Prepare algorithms for an external training loop.

    Wrap the loader in `epoch`, compute the loss with `loss`, and keep the rest of the loop. The
    weights are bit-identical to those of a `Trainer` with the same arguments.

    Args:
        algorithms: A set of algorithms, or functions `(event, state) -> state`, in any order.
        model: The model. Train `LoopAdapter.model`, since surgery returns a new model.
        optimizer: Its optimizer, also wrapped by Accelerate. None if the loop creates it later and
            passes it to `LoopAdapter.follow`.
        loss_fn: `loss_fn(outputs, targets)`, a mean over the examples; by default the model's
            `loss(outputs, batch)`.
        max_duration: The length of training, for algorithms that depend on it: "10ep", "1000ba".
        epoch_length: The number of batches in an epoch; by default the length of the loader.
        seed: The seed of all randomness; drawn by the operating system if None.
        input_key: The input of a batch, as for the `Trainer`.
        target_key: The target of a batch.

    Raises:
        UnsupportedRequestError: An algorithm requests something that an external loop cannot do:
            to compute gradients twice, as `SAM` does, or to step with other learning rates.

    Example:
        >>> from composable.algorithms import EMA, GradientClipping, MixUp
        >>> from composable.integrations import adapt_loop
        >>> loader = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> t = adapt_loop(
        ...     [MixUp(), EMA("10ba"), GradientClipping("norm", 1.0)],
        ...     model,
        ...     optimizer,
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     seed=17,
        ... )
        >>> model = t.model  # after surgery
        >>> for epoch in range(2):
        ...     for inputs, _ in t.epoch(loader):
        ...         loss = t.loss(model(inputs))
        ...         loss.backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> t.state.timestamp.batch
        10
        >>> with t.evaluating():  # with the averaged weights
        ...     outputs = model(loader[0][0])
    """
    spec = BatchSpec(input_key, target_key)
    model = given = check.check_model(model)
    loss = check.check_loss_fn(loss_fn, model, spec)
    plan = Plan.compile(algorithms)
    for algorithm in plan.algorithms:
        for request in _REQUESTS.keys() & set(algorithm.writes):
            _refuse_request(request, algorithm.name)
    state = State(
        model=model,
        loss_fn=loss,
        optimizers=() if optimizer is None else (_check_optimizer(optimizer, model),),
        max_duration=None if max_duration is None else check.check_duration(max_duration),
        epoch_length=check.check_positive("epoch_length", epoch_length),
        key=Key(get_random_seed() if seed is None else seed),
        device=_device_of(model),
        batch_spec=spec,
        model_takes_batch=isinstance(loss, ModelLoss),
    )
    fire = Dispatcher(plan, Logger(())).fire
    for event in (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.FIT_START):
        state = surgery(fire, event, state)
    return LoopAdapter(plan, state, fire, replaced=_modules_only_in(given, state.model))


@attrs.define(eq=False)
class LoopAdapter:
    """Algorithms in an external training loop; `adapt_loop` returns it.

    A handwritten loop needs `model`, `epoch`, `loss` and `evaluating`. `epoch` calls the other
    methods; an adapter of another trainer calls them itself, from the hooks of that trainer. An
    algorithm whose events a loop does not fire raises an error at the first step.
    """

    plan: Plan
    """The plan of the algorithms."""
    state: State
    """The state of the run."""
    _fire: Callable[[Event, State], State]
    _last: Event = Event.FIT_START
    """The last event of the batch, as far as the next call depends on it."""
    _outer: State | None = None
    """The state at `BATCH_START`, with the batch before mixing."""
    _whole: State | None = None
    """The state before `BEFORE_FORWARD`."""
    _replaced: list[nn.Module] = attrs.field(factory=list)
    """The modules of the given model that surgery replaced, until the first step."""
    _watched: ExitStack = attrs.field(factory=ExitStack)
    """Removes the hooks of the replaced modules."""
    _resumed: bool = False
    """Whether a state was loaded, and no epoch has been started since."""
    _frozen: ExitStack = attrs.field(factory=ExitStack)
    """Restores the parameters that are frozen in this batch."""
    _started: float = 0.0
    _samples: int = 0
    _lending: bool = False
    """Whether the model holds the weights for an evaluation."""

    @property
    def model(self) -> nn.Module:
        """The model to train: the given one, or the result of surgery."""
        return self.state.model

    # --- for a handwritten loop ---

    def epoch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterate over a loader once, and return each batch as the algorithms change it.

        The order of the batches and the random numbers of the model are those of a `Trainer` with
        this seed: the global generators are seeded for every epoch and batch. During the
        iteration, hooks observe the steps of the optimizer. An epoch that is left by `break` ends
        when the next one begins.

        After `load_state_dict` in the middle of an epoch, the first call returns the remaining
        batches of that epoch.

        Args:
            loader: The batches, one for each step of the optimizer.

        Raises:
            ValueError: There is no optimizer.
        """
        check.check_loader("loader", loader)
        self._check_followed("t.epoch(loader)")
        (optimizer,) = self.state.optimizers
        if self.state.epoch_length is None:
            self.state = self.state.evolve(epoch_length=check.length_of(loader))
        self.start_epoch()
        now = self.state.timestamp
        hooks = (
            optimizer.register_step_pre_hook(self._before_hook),
            optimizer.register_step_post_hook(self._after_hook),
        )
        try:
            for batch in seeded_batches(
                loader,
                self.state.key,
                epoch=now.epoch,
                first_step=now.batch - now.batch_in_epoch,
                skip=now.batch_in_epoch,
            ):
                yield self.start_batch(batch)
                self.end_batch()
        finally:
            for hook in hooks:
                hook.remove()
            self._watched.close()
            self._frozen.close()
        self.end_epoch()

    def loss(self, outputs: Any) -> Tensor:
        """Compute the loss of the current batch, for `backward`.

        Args:
            outputs: The outputs of the model for the batch of `epoch` or `start_batch`.

        Raises:
            RuntimeError: There is no batch, or its loss has been computed already.
            ValueError: There is no loss function.
        """
        if self._last is not Event.BEFORE_FORWARD:
            raise RuntimeError(
                "t.loss(outputs) was called twice for one batch, or without one; call it once for "
                "every batch of t.epoch(loader). Microbatches are not supported; use larger "
                "batches, or the Trainer's grad_accum."
            )
        state = self._fire(Event.AFTER_FORWARD, self.state.evolve(outputs=outputs))
        state = self._fire(Event.BEFORE_LOSS, state)
        if state.loss_fn is None:
            raise ValueError(
                f"t.loss(outputs) needs a loss; pass loss_fn to adapt_loop, or give "
                f"{type(state.model).__name__} a method loss(outputs, batch)."
            )
        loss = check_loss(state.loss_fn(state.outputs, state.batch))
        state = self._fire(Event.AFTER_LOSS, state.evolve(loss=loss))
        self._advance(Event.BEFORE_BACKWARD, self._fire(Event.BEFORE_BACKWARD, state))
        return self.state.loss  # type: ignore[return-value]

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """Give the model the averaged weights, in evaluation mode and without gradients.

        All holders of the model (you, Fabric, a trainer) see them; its own weights and modes are
        restored afterwards. A batch whose step was taken is ended first.
        """
        with self.evaluation_weights() as model, evaluation_mode(model):
            yield model

    def state_dict(self) -> dict[str, Any]:
        """Return the clock, the seed and the memory of the algorithms: for a checkpoint.

        Save it next to the model and the optimizer. It consists of plain containers and tensors, so
        `torch.load` reads it with `weights_only=True`. A batch whose step was taken is ended first.

        Raises:
            RuntimeError: A batch was started and its step was not taken, or the model holds the
                weights of an evaluation.
        """
        if self._last is Event.BEFORE_ZERO_GRAD:
            self.end_batch()
        if self._last not in _BETWEEN_BATCHES:
            raise RuntimeError(
                "t.state_dict() was called in the middle of a batch, which cannot be resumed; call "
                "it after optimizer.step()."
            )
        if self._lending:
            raise RuntimeError(
                "t.state_dict() was called while the model holds the weights of an evaluation, "
                "which a checkpoint must not save for training; call it after t.evaluating()."
            )
        tensors, data = pack({name: getattr(self.state, name) for name in _SAVED})
        return {"tensors": tensors, "data": data}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the value of `state_dict`; load the model and the optimizer as well.

        Args:
            saved: The value of `state_dict`, of an adapter with the same arguments. Its seed
                replaces that of this adapter.

        Raises:
            ValueError: It is not the value of `state_dict`.
        """
        try:
            state = unpack(saved["tensors"], saved["data"])
            valid = {name: type(state[name]) for name in _SAVED} == _SAVED
        except (CheckpointError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"saved must be the value of t.state_dict(): {error!r}") from error
        if not valid or state.keys() != _SAVED.keys():
            raise ValueError(
                f"saved must be the value of t.state_dict(), with {', '.join(_SAVED)}."
            )
        self._frozen.close()
        self._outer = self._whole = None
        self._resumed = True
        self._advance(Event.BEFORE_DATALOADER, self.state.evolve(**state))
        self._place()

    # --- for adapters, in the order of a step ---

    def follow(self, optimizer: Optimizer, *, epoch_length: int | None = None) -> None:
        """Set the optimizer of a loop that creates it itself, and the length of its epochs."""
        self.state = self.state.evolve(
            optimizers=(_check_optimizer(optimizer, self.model),),
            epoch_length=self.state.epoch_length or epoch_length,
        )
        self._place()

    def check_clock(self, step: int) -> None:
        """Check that the algorithms resume where the loop does.

        Args:
            step: The number of batches that the loop has trained on. 0 starts a training.

        Raises:
            RuntimeError: The algorithms are at another batch.
        """
        now = self.state.timestamp.batch
        if step and step != now:
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
        """
        self.end_batch()
        self._place()
        resumed, self._resumed = self._resumed, False
        if self.state.timestamp.batch_in_epoch not in (0, self.state.epoch_length) and resumed:
            return
        if self.state.timestamp.batch_in_epoch:
            self.end_epoch()
        state = self.state
        if state.timestamp.epoch_in_iteration == 0:
            state = self._fire(Event.ITERATION_START, state)
        state = self._fire(Event.EPOCH_START, state)
        if state.model is not self.model:
            raise RuntimeError(
                "an algorithm replaced the model at EPOCH_START, and the external loop still "
                "trains the old one; in an external loop, models can be replaced at INIT only."
            )
        self._advance(Event.BEFORE_DATALOADER, self._fire(Event.BEFORE_DATALOADER, state))

    def start_batch(self, batch: Any) -> Any:
        """Start a batch, and return it as the algorithms change it.

        Raises:
            ValueError: There is no optimizer.
            RuntimeError: An algorithm requests something that this loop does not support.
        """
        self._check_followed("t.start_batch(batch)")
        self.end_batch()
        self._started = time.perf_counter()
        self._samples = count_examples(self.state.batch_spec.inputs(batch))
        state = self._fire(Event.AFTER_DATALOADER, self.state.evolve(batch=batch))
        self._outer = state = self._fire(Event.BATCH_START, state)
        self._whole = state = self._fire(Event.BEFORE_TRAIN_BATCH, state)
        state = self._fire(Event.BEFORE_FORWARD, state)
        if state.model is not self.model:
            raise RuntimeError(
                "an algorithm replaced the model during training, and the external loop still "
                "trains the old one; in an external loop, models can be replaced at INIT only. "
                "StochasticDepth replaces it in its warm-up: pass drop_warmup=0.0."
            )
        if state.second_pass is not None:
            _refuse_request("second_pass")
        if state.frozen:
            self._frozen.enter_context(frozen_parameters(state))
        self._advance(Event.BEFORE_FORWARD, state)
        for module in self._replaced:
            self._watched.callback(module.register_forward_pre_hook(_refuse_replaced).remove)
        seed_step(self.state.key, self.state.timestamp.batch)
        return self.state.batch

    def before_step(self) -> None:
        """Let algorithms change the gradients, right before the optimizer's step.

        Raises:
            RuntimeError: An algorithm acts at an event that this loop does not fire, or this is the
                second call for a step.
        """
        if self._last is Event.BEFORE_OPTIMIZER_STEP:
            raise RuntimeError(
                "t.before_step() was called twice for one step; use one LoopAdapterCallback. The "
                "mixins add it themselves."
            )
        self._watched.close()
        self._replaced = []
        started = self._last in (Event.BEFORE_FORWARD, Event.BEFORE_BACKWARD)
        if not started:
            self._refuse(_OF_THE_BATCH, "a step", "t.start_batch(batch)")
            self._refuse((Event.BATCH_END,), "a step", "t.start_batch(batch)", reads="batch")
        if self._last is not Event.BEFORE_BACKWARD:
            self._refuse(_OF_THE_LOSS, "a step", "t.loss(outputs)")
            self._refuse((Event.INIT,), "a step", "t.loss(outputs)", writes="loss_fn")
        state = self._fire(Event.BEFORE_OPTIMIZER_STEP, self._after_backward())
        if state.lr_override is not None:
            _refuse_request("lr_override")
        if state.gradients is not None:
            write_gradients(state)
        self._advance(Event.BEFORE_OPTIMIZER_STEP, state)

    def after_step(self) -> None:
        """Fire the events after the optimizer's step."""
        state = self._fire(Event.AFTER_OPTIMIZER_STEP, self.state)
        self._advance(Event.BEFORE_ZERO_GRAD, self._fire(Event.BEFORE_ZERO_GRAD, state))

    def end_batch(self) -> None:
        """Count the batch and update averages; do nothing if no batch was started."""
        state = self.state
        if self._last is Event.BEFORE_ZERO_GRAD:
            state = self._fire(Event.AFTER_ZERO_GRAD, state.evolve(gradients=None))
        elif self._last in (Event.BEFORE_FORWARD, Event.BEFORE_BACKWARD):
            state = self._after_backward()  # the loop skipped the step
        else:
            return
        seconds = time.perf_counter() - self._started if self._outer is not None else 0.0
        now = state.timestamp.next_batch(self._samples, seconds=seconds)
        state = state.evolve(timestamp=now, previous_timestamp=state.timestamp, frozen=frozenset())
        self._frozen.close()
        self._watched.close()
        state = self._fire(Event.BATCH_CHECKPOINT, self._fire(Event.BATCH_END, state))
        self._outer = self._whole = None
        state = self._fire(Event.BEFORE_DATALOADER, drop_batch(state))
        self._advance(Event.BEFORE_DATALOADER, state)

    @contextmanager
    def evaluation_weights(self) -> Iterator[nn.Module]:
        """Give the model the averaged weights; the loop sets modes and gradients itself."""
        self.end_batch()
        outer = self.state
        state = self._fire(Event.EVAL_BEFORE_ALL, outer)
        state = self._fire(Event.EVAL_START, state)
        self._lending = True
        try:
            with _lent(outer.model, state.model):
                yield outer.model
        finally:
            self._lending = False
        state = self._fire(Event.EVAL_AFTER_ALL, self._fire(Event.EVAL_END, state))
        self.state = outer.evolve(memory=state.memory, metrics=state.metrics)

    def check_evaluating(self) -> None:
        """Check that an evaluation is inside `evaluating` if an algorithm has weights for it.

        Raises:
            RuntimeError: It is not.
        """
        if not self._lending:
            self._refuse((Event.EVAL_START,), "an evaluation", "t.evaluating() around it")

    def end_epoch(self) -> None:
        """Count the epoch."""
        self.end_batch()
        state = self.state.evolve(timestamp=self.state.timestamp.next_epoch())
        state = self._fire(Event.EPOCH_END, state)
        self.state = self._fire(Event.EPOCH_CHECKPOINT, state)

    def finish(self) -> None:
        """Fire the events at the end of training."""
        self.end_batch()
        state = self.state.evolve(timestamp=self.state.timestamp.next_iteration())
        for event in (Event.ITERATION_END, Event.ITERATION_CHECKPOINT, Event.FIT_END):
            state = self._fire(event, state)
        self.state = state

    # --- helpers ---

    def _advance(self, event: Event, state: State) -> None:
        self._last, self.state = event, state

    def _place(self) -> None:
        """Follow the model to its device, with the memory that was loaded."""
        device = _device_of(self.model)
        self.state = self.state.evolve(device=device)
        if self._resumed:
            self.state = self.state.evolve(memory=_moved(self.state.memory, device))

    def _check_followed(self, call: str) -> None:
        if not self.state.optimizers:
            raise ValueError(
                f"{call} needs an optimizer; pass it to adapt_loop, or call t.follow(optimizer) "
                "first. In another trainer, LoopAdapterCallback does so: add it, or the mixin."
            )

    def _after_backward(self) -> State:
        """Return the state after the backward pass, with the original batch."""
        state, whole, outer = self.state, self._whole, self._outer
        if self._last is Event.BEFORE_BACKWARD:
            state = state.evolve(loss=state.loss.detach())  # type: ignore[union-attr]
        if whole is not None:
            state = state.evolve(batch=whole.batch, loss_fn=whole.loss_fn)
        state = self._fire(Event.AFTER_TRAIN_BATCH, self._fire(Event.AFTER_BACKWARD, state))
        if outer is not None:
            state = state.evolve(batch=outer.batch, loss_fn=outer.loss_fn)
        return state

    def _refuse(
        self,
        events: Iterable[Event],
        what: str,
        call: str,
        *,
        reads: str | None = None,
        writes: str | None = None,
    ) -> None:
        """Raise if an algorithm acts, reads or writes at an event that this loop does not fire."""
        for event in events:
            for algorithm in self.plan.transforms(event):
                if writes is not None and writes not in algorithm.writes:
                    continue
                if reads is not None and reads not in algorithm.reads:
                    continue
                raise RuntimeError(
                    f"{algorithm.name} acts at {event.name}, and this loop made {what} without "
                    f"{call}; call it, use the mixin of composable.integrations, or drop "
                    f"{algorithm.name}. See docs/integrations.md for what works where."
                )

    def _before_hook(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(value is not None for value in (*args[1:], kwargs.get("closure"))):
            raise TypeError(
                "optimizer.step(closure) computes the gradients inside the step, where algorithms "
                "cannot change them; call loss.backward() before optimizer.step()."
            )
        self.before_step()

    def _after_hook(self, *_: Any) -> None:
        self.after_step()


def _refuse_request(request: str, who: str = "an algorithm") -> None:
    raise UnsupportedRequestError(
        f"{who} requests {_REQUESTS[request]} (state.{request}), which an external loop does not "
        "support; use the Trainer, or write it into the loop with the function of "
        "composable.functional. See docs/integrations.md for what works where."
    )


def _check_optimizer(optimizer: Any, model: nn.Module) -> Optimizer:
    """Return the optimizer, without a wrapper such as Accelerate's, which has no hooks."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer={optimizer!r} must be a torch.optim.Optimizer of the model's parameters."
        )
    check_optimizers([optimizer], model)
    return optimizer


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _modules_only_in(model: nn.Module, other: nn.Module) -> list[nn.Module]:
    """List the modules of a model that another model does not have."""
    others = {id(module) for module in other.modules()}
    return [module for module in model.modules() if id(module) not in others]


def _refuse_replaced(module: nn.Module, inputs: Any) -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"the loop calls {type(module).__name__} of the model that was passed to adapt_loop, "
            "which the algorithms have replaced; train t.model instead."
        )


def _moved(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, Mapping):
        return {key: _moved(value, device) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_moved(value, device) for value in tree)
    return tree.to(device) if isinstance(tree, Tensor) else tree


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@contextmanager
def _lent(model: nn.Module, other: nn.Module) -> Iterator[None]:
    """Copy the tensors of another model into a model, and restore its own afterwards."""
    if other is model:
        yield
        return
    kept = {name: tensor.detach().clone() for name, tensor in _tensors_of(model).items()}
    theirs = _tensors_of(other)
    if theirs.keys() != kept.keys():
        raise RuntimeError(
            "an algorithm replaced the model at EVAL_START by one with other parameters or "
            f"buffers, {sorted(theirs.keys() ^ kept.keys())}, which the loop's model cannot hold; "
            "in an external loop, evaluate that model yourself."
        )
    try:
        _copy_into(model, theirs)
        yield
    finally:
        _copy_into(model, kept)


@torch.no_grad()
def _copy_into(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in _tensors_of(model).items():
        tensor.copy_(tensors[name])
