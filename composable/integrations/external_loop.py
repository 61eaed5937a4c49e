"""Algorithms in external training loops.

`adapt_loop` returns an object that fires the events of a step around code outside of this library:
a handwritten loop, with or without Fabric or Accelerate, or another trainer.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from composable._support.checks import check_count, check_flags
from composable.batches.precision import Precision
from composable.batches.spec import BatchSpec
from composable.callbacks.checkpoint_saver import CheckpointSaver
from composable.core.event import Event
from composable.core.key import Key
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import TimeLike
from composable.engines.shares import LossShares
from composable.integrations._accumulation import Accumulation
from composable.integrations._refusals import (
    check_bare,
    check_optimizer,
    modules_only_in,
    refuse_requests,
)
from composable.integrations._saved_state import device_of
from composable.integrations._step import loss_in_precision
from composable.integrations.loop_adapter import LoopAdapter
from composable.losses.loss import call_of, loss_module
from composable.losses.mean import declared_by
from composable.losses.weights import LossWeights
from composable.plan.dispatch import Dispatcher
from composable.plan.plan import Plan
from composable.storage.folders import as_folder
from composable.trainer import arguments as check
from composable.trainer.parameters import surgery
from composable.utils.reproducibility import get_random_seed


def adapt_loop(  # noqa: PLR0913 (public options)
    algorithms: Any,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    loss_mean_over: Any = None,
    train_metrics: Mapping[str, Any] | None = None,
    max_duration: TimeLike | None = None,
    epoch_length: int | None = None,
    seed: int | None = None,
    precision: Any = "fp32",
    input_key: Any = 0,
    target_key: Any = 1,
    save_folder: str | Path | CheckpointSaver | None = None,
    autoresume: bool = False,
    extra: dict[str, Any] | None = None,
) -> LoopAdapter:
    """Prepare algorithms for an external training loop.

    Wrap the loader in `epoch`, compute the loss with `loss`, and keep the rest of the loop. The
    weights are bit-identical to a `Trainer`'s with the same arguments.

    Args:
        algorithms: A set of algorithms, or functions `(event, state) -> state`, in any order.
        model: The model. Train `LoopAdapter.model`, since surgery returns a new model.
        optimizer: Its optimizer, also wrapped by Accelerate. None if the loop creates it later and
            passes it to `LoopAdapter.follow`.
        loss_fn: `loss_fn(outputs, targets)`; by default the model's `loss(outputs, batch)`.
        loss_mean_over: What the loss is a mean over, as for the `Trainer`: with
            `accumulate_batches` or several processes, if it is not recognized.
        train_metrics: Metrics of training, by name, measured on the outputs that `loss` gets, and
            read by `LoopAdapter.train_metrics`: see `composable.metrics`.
        max_duration: The length of training, for algorithms that depend on it: "10ep", "1000ba".
        epoch_length: The number of steps in an epoch; by default from the length of the loader.
        seed: The seed of all randomness; drawn by the operating system if None.
        precision: The precision of the loop: "fp32", "amp_bf16", "amp_fp16", "bf16" or "fp16".
            The loss is computed in it, and algorithms that call the model do so in it. The loop
            itself calls the model, and scales the loss.
        input_key: The input of a batch, as for the `Trainer`.
        target_key: The target of a batch.
        save_folder: Save a checkpoint there at the end of every epoch, and after SIGTERM or Ctrl-C:
            a path, or a `CheckpointSaver` for another interval, a number to keep, or the best.
        autoresume: Continue from the latest whole checkpoint in `save_folder`, if there is one.
        extra: Values that checkpoints save too. Objects with a `state_dict`, such as a
            scheduler or a `GradScaler`, are restored in place; plain values are set in this
            dictionary. It may be changed during training, as `t.extra`.

    Raises:
        CheckpointError: A checkpoint does not fit the loop.
        UnsupportedRequestError: An algorithm requests something that an external loop cannot do:
            to compute gradients twice, as `SAM` does, or to step with other learning rates.
        ValueError: The model is wrapped for distributed training.

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
    if not isinstance(extra, dict | None):
        raise TypeError(f"extra={extra!r} must be a dictionary of names and values.")
    check_flags(autoresume=autoresume)
    metrics = check.train_metrics_by_name(train_metrics)
    if save_folder is None and autoresume:
        raise ValueError("autoresume=True needs a save_folder, from which training continues.")
    if not isinstance(save_folder, CheckpointSaver | None):
        save_folder = as_folder("save_folder", save_folder)
    spec = BatchSpec(input_key, target_key)
    model = given = check_bare(check.check_model("model", model))
    loss = check.check_loss_fn(loss_fn, model, spec)
    plan = Plan.compile(algorithms)
    refuse_requests(plan)
    if epoch_length is not None:
        check_count("epoch_length", epoch_length, 1)
    state = State(
        model=model,
        loss_fn=loss,
        loss_module=loss_module(loss, model),
        optimizers=() if optimizer is None else (check_optimizer(optimizer, model),),
        max_duration=None if max_duration is None else check.check_duration(max_duration),
        epoch_length=epoch_length,
        key=Key(get_random_seed() if seed is None else seed),
        device=device_of(model),
        precision=_check_precision(precision),
        batch_spec=spec,
        model_call=call_of(loss, model),
    )
    fire = Dispatcher(plan, Logger(())).fire
    for event in (Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD, Event.FIT_START):
        state = surgery(fire, event, state)
    weights = LossWeights(declared_by(loss_mean_over, state))
    adapter = LoopAdapter(
        plan,
        state,
        fire,
        Accumulation(LossShares(weights, loss_in_precision, logged=True)),
        replaced=modules_only_in(given, state.model),
        extra={} if extra is None else extra,
    )
    if metrics:
        from composable.trainer.train_metrics import TrainMetrics  # on use

        adapter.measures = TrainMetrics(metrics)
    if save_folder is not None:
        adapter.checkpoints.use(save_folder, "1ep")
    if autoresume and adapter.checkpoints.saver is not None:
        adapter.resume(adapter.checkpoints.saver.folder)
    return adapter


def _check_precision(value: Any) -> Precision:
    precision = Precision.of(value)
    if precision.name in ("amp", "tf32"):
        raise ValueError(
            f"precision={precision.name!r} is chosen by the external loop; pass the dtype in which "
            "it calls the model: 'fp32', 'amp_bf16' or 'amp_fp16'."
        )
    return precision
