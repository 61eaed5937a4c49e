"""A run whose gradients and steps are computed by the engine of DeepSpeed."""

from typing import Any

from composable.core.state import State
from composable.distributed.deepspeed import DeepSpeed, DeepSpeedEngine
from composable.plan.compatibility import occurrences
from composable.plan.plan import Plan

__all__ = ["check_engine_options", "start_engine"]


def check_engine_options(options: Any) -> None:
    """Check that the arguments of the Trainer do not contradict its use of DeepSpeed.

    Args:
        options: The `TrainerOptions`, whose `parallel` is a `DeepSpeed`.

    Raises:
        ValueError: They do.
    """
    if not options.processes.several:
        raise ValueError(
            "deepspeed_config needs several processes, such as those of `composable launch -n 2`."
        )
    for name, allowed, why in (
        ("compile", (False,), "the engine compiles by its own configuration"),
        ("microbatch_size", (None,), "use grad_accum"),
        ("saver", (None,), "a checkpoint of the engine cannot be resumed yet"),
        ("autoresume", (False,), "a checkpoint of the engine cannot be resumed yet"),
        ("nonfinite_loss", ("raise", "ignore"), "the engine cannot drop gradients"),
    ):
        if getattr(options, name) not in allowed:
            raise ValueError(
                f"{name}={getattr(options, name)!r} cannot be combined with deepspeed_config: "
                f"{why}; use {' or '.join(map(repr, allowed))}."
            )
    stage = options.parallel.stage
    if options.save_folder is not None and not (options.save_weights_only and stage < 3):
        raise ValueError(
            f"save_folder={str(options.save_folder)!r} with stage {stage} of deepspeed_config "
            "needs save_weights_only=True and a stage below 3: the optimizer's state, and with "
            "stage 3 the weights, are divided among the processes."
        )
    if options.load_path is not None and not options.load_weights_only:
        raise ValueError(
            f"load_path={str(options.load_path)!r} with deepspeed_config needs "
            "load_weights_only=True: a run with DeepSpeed cannot be resumed yet."
        )


def start_engine(options: Any, state: State, plan: Plan) -> DeepSpeedEngine:
    """Build the engine of a run, after all algorithms that replace layers.

    Args:
        options: The `TrainerOptions`.
        state: The state, with the model and one optimizer.
        plan: The algorithms.

    Raises:
        ValueError: The configuration contradicts the run, or an algorithm does.
    """
    strategy: DeepSpeed = options.parallel
    for algorithm in plan.algorithms:
        for occurrence in occurrences(algorithm):
            strategy.check_algorithm(occurrence.algorithm)
    if len(state.optimizers) != 1:
        raise ValueError(
            f"optimizers has {len(state.optimizers)} optimizers, and deepspeed_config needs one."
        )
    if state.loss_module is not None and any(True for _ in state.loss_module.parameters()):
        raise ValueError(
            "loss_fn is a module with parameters, which DeepSpeed's engine would not train; make "
            "it a part of the model."
        )
    processes = options.processes.size
    size = getattr(options.train_dataloader, "batch_size", None)
    if size is not None:
        size *= (processes if options.is_local else 1) * options.accumulate_batches
    config = strategy.complete(
        precision=state.precision,
        processes=processes,
        batch_size=size,
        grad_accum=(options.grad_accum or 1) * options.accumulate_batches,
    )
    return DeepSpeedEngine(state.model, state.optimizers[0], config)
