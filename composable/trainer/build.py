"""Build a run from options: the state, the surgery, the optimizers, the parts."""

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from composable.core.event import Event
from composable.core.key import Key
from composable.core.state import State
from composable.data.prefetch import Copies, CopyStream, has_streams
from composable.distributed.shards import Shards
from composable.distributed.signals import Signals
from composable.engines.build import engine_type
from composable.engines.engine import Engine, Setup
from composable.engines.initialization import has_meta_tensors
from composable.engines.shares import LossShares
from composable.losses.loss import call_of, loss_module
from composable.losses.mean import declared_by, with_count
from composable.losses.weights import LossWeights
from composable.optim.building import build_optimizers
from composable.optim.learning_rates import LearningRates
from composable.optim.multi import base_optimizers
from composable.optim.stepping import needs_closure
from composable.plan.declarations import as_list
from composable.plan.dispatch import Dispatcher
from composable.plan.plan import Plan
from composable.trainer import arguments as check
from composable.trainer.evaluation import EvaluationLoop
from composable.trainer.guards import NonFiniteGuard
from composable.trainer.microbatches import Microbatches
from composable.trainer.options import TrainerOptions
from composable.trainer.parameters import is_surgery, surgery
from composable.trainer.run import Progress, Run
from composable.trainer.training_data import TrainingData
from composable.utils.reproducibility import get_random_seed

if TYPE_CHECKING:
    from composable.resume.foreign import ForeignPoint
    from composable.resume.verify import ResumePoint

    Point: TypeAlias = ResumePoint | ForeignPoint | None


def build_state(options: TrainerOptions, plan: Plan, point: "Point") -> State:
    """Return the state before `INIT`.

    Args:
        options: The arguments of the `Trainer`.
        plan: Its plan, which is checked against the run.
        point: The checkpoint to resume from, which determines the seed.

    Raises:
        ValueError: The plan does not fit the run.
    """
    seed = check.check_seed(options.seed, None if point is None else point.seed)
    if seed is None:
        seed = options.processes.broadcast(get_random_seed())
    loss, precision = options.loss, options.precision.on(options.device)
    module = loss_module(loss, options.model)
    state = State(
        model=precision.convert(moved(options.model, options.device)),
        loss_fn=loss,
        loss_module=module if module is None else moved(module, options.device),
        max_duration=options.max_duration,
        epoch_length=options.epoch_length,
        key=Key(seed),
        device=options.device,
        precision=precision,
        batch_spec=options.batch_spec,
        model_call=call_of(loss, options.model),
    )
    check.check_windows(plan, options.count_tokens, options.iteration_length)
    if options.train_dataloader is not None:
        plan.report_idle(state, check.absent_events(options.evaluators, options.schedulers))
    return state


def moved(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module in place, but for tensors on the meta device, which the engine initializes."""
    if not has_meta_tensors(module):
        return module.to(device)
    module._apply(  # type: ignore[no-untyped-call]
        lambda tensor: tensor if tensor.is_meta else tensor.to(device)
    )
    return module


def load_given_weights(options: TrainerOptions, state: State) -> None:
    """Load the weights of `load_path`; of a model that is sharded, the part of this process."""
    from composable.checkpoint.weights import load_path_weights  # on use: it is slow to import
    from composable.resume.select import latest_weights

    path = latest_weights(options.load_source)  # type: ignore[arg-type]  # there is one
    load_path_weights(state.model, path, options.load_ignore_keys)


def loads_late(engine: Engine, state: State, plan: Plan) -> bool:
    """Return whether the weights of `load_path` are loaded when the model was placed."""
    if has_meta_tensors(state.model):
        return True
    return engine.loads_parts and not any(map(is_surgery, plan.transforms(Event.AFTER_LOAD)))


def _copies(engine: Engine, device: torch.device, updates: Any) -> Copies | None:
    """Return how batches are copied ahead of their steps; None if none is fetched ahead."""
    if has_streams(device):
        return CopyStream(device)
    return Copies() if engine.carries and not updates else None


def after_load(dispatcher: Dispatcher, state: State) -> State:
    """Fire `AFTER_LOAD` when the model was placed.

    Raises:
        ValueError: An algorithm replaced the model.
    """
    model = state.model
    state = dispatcher.fire(Event.AFTER_LOAD, state)
    if state.model is not model:
        raise ValueError(
            "an algorithm replaced the model at AFTER_LOAD. The weights of a model that was built "
            "on the meta device are loaded when it is complete: let it act at BEFORE_LOAD."
        )
    return state


def build_run(options: TrainerOptions, state: State, dispatcher: Dispatcher, point: "Point") -> Run:
    """Fire `INIT` and `BEFORE_LOAD`, and `AFTER_LOAD` unless the run is resumed; build the parts.

    Args:
        options: The arguments of the `Trainer`.
        state: What `build_state` returned.
        dispatcher: Fires the events.
        point: The checkpoint to resume from; without one, `load_path` gives the weights.
    """
    given = as_list(options.optimizers)
    instances = tuple(one for one in given if isinstance(one, torch.optim.Optimizer))
    state = surgery(dispatcher.fire, Event.INIT, state.evolve(optimizers=instances))
    schedulers = options.schedulers
    if options.updates:
        from composable.trainer import updates  # on use

        optimizers = updates.build_update_optimizers(options.updates, state.model)
        schedulers = [*as_list(schedulers), *updates.update_schedules(options.updates, optimizers)]
    else:
        optimizers = build_optimizers(
            given,
            state.model,
            state.loss_module,
            decay_norms_and_biases=options.decay_norms_and_biases,
        )
    state = state.evolve(optimizers=optimizers)
    check.check_eps(state.optimizers, state.precision)
    rates = LearningRates.build(
        schedulers, state.optimizers, every_batch=options.step_schedulers_every_batch
    )
    check.check_schedules(state, rates)
    state = surgery(dispatcher.fire, Event.BEFORE_LOAD, state.evolve(schedulers=rates.all))
    engine = _engine(options, None if point is None else point.num_shards)
    if any(map(needs_closure, base_optimizers(optimizers))):
        from composable.trainer.closures import check_closures  # on use

        check_closures(state, in_parts=engine.reads_parts)
    state = _prepare(options, engine, state, dispatcher, point)
    declared = declared_by(options.loss_mean_over, state)
    state, weights = with_count(state, declared), LossWeights(declared, bool(options.compile))
    weights.agree = engine.agree_on_calls
    engine.shares = LossShares(weights, engine.forward.loss)
    return Run(
        state=state,
        dispatcher=dispatcher,
        data=TrainingData(
            options.train_dataloader,
            options.count_tokens,
            options.accumulate_batches,
            options.epoch_batches,
            _copies(engine, state.device, options.updates),
            engine=engine,
        ),
        rates=rates,
        evaluation=EvaluationLoop(dispatcher, engine, options.evaluators, weights),
        guard=NonFiniteGuard(
            options.nonfinite_loss, options.nonfinite_loss != "raise" or state.device.type == "cpu"
        ),
        microbatches=Microbatches(
            options.grad_accum,
            None if options.microbatch_size == "auto" else options.microbatch_size,  # type: ignore[arg-type]
            auto=options.microbatch_size == "auto",
            groups=engine.has_shards or options.accumulate_batches > 1,
        ),
        progress=Progress(options.max_duration, whole=state.max_duration),
        log_interval=options.log_interval,
        iteration_length=options.iteration_length,
        loss_scaler=engine.scaler,
        loss_shares=engine.shares,
        engine=engine,
        updates=updates.updates_of_run(options, engine, state) if options.updates else (),
    )


def _engine(options: TrainerOptions, saved: int | None) -> Engine:
    """Return the engine before it is prepared; a run that is resumed keeps its saved shards."""
    strategy, processes = options.parallel, options.processes
    shards = Shards(strategy.shard_count(processes, saved), processes)
    kind = engine_type(strategy, processes, shards.count)
    engine: Engine = kind(strategy, shards, Signals(shared=processes.several), options.is_local)
    return engine


def _prepare(
    options: TrainerOptions,
    engine: Engine,
    state: State,
    dispatcher: Dispatcher,
    point: "Point",
) -> State:
    """Load the weights of `load_path`, and prepare the engine; fire `AFTER_LOAD`."""
    loads = options.load_path is not None and point is None
    load = partial(load_given_weights, options) if loads else None
    late = load is not None and loads_late(engine, state, dispatcher.plan)
    if load is not None and not late:
        load(state)
    if point is None and not late:  # otherwise when the values are loaded
        state = surgery(dispatcher.fire, Event.AFTER_LOAD, state)
    size = getattr(options.train_dataloader, "batch_size", None)
    if size is not None:
        size *= (options.processes.size if options.is_local else 1) * options.accumulate_batches
    setup = Setup(
        given=options.model,
        algorithms=dispatcher.plan.algorithms,
        compile=options.compile,
        resumes=point is not None and point.run is not None,  # all values are restored
        load=load if late else None,
        fits_memory=options.microbatch_size == "auto",
        batch_size=size,
        grad_accum=(options.grad_accum or 1) * options.accumulate_batches,
    )
    state = engine.prepare(state, setup)
    return after_load(dispatcher, state) if late else state
