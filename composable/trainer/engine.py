"""A run whose gradients and steps are computed by the engine of DeepSpeed."""

from typing import Any

from composable.core.state import State
from composable.distributed.deepspeed import DeepSpeed, DeepSpeedEngine
from composable.distributed.starting import form_group
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
    for name, allowed, why in (
        ("compile", (False,), "the engine compiles by its own configuration"),
        ("microbatch_size", (None,), "use grad_accum"),
        ("nonfinite_loss", ("raise", "ignore"), "the engine cannot drop gradients"),
    ):
        if getattr(options, name) not in allowed:
            raise ValueError(
                f"{name}={getattr(options, name)!r} cannot be combined with deepspeed_config: "
                f"{why}; use {' or '.join(map(repr, allowed))}."
            )
    if options.load_best_at_end and options.parallel.stage == 3:
        raise ValueError(
            "load_best_at_end=True cannot be combined with stage 3 of deepspeed_config, where each "
            "process has a part of the weights; use stage 0, 1 or 2, or load the best checkpoint "
            "in a new run."
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
    form_group()
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
