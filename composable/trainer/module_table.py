"""A table of the modules of a run, with their parameters and the shapes of their outputs."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from composable._support.extras import needs
from composable.data.grouping import batches_of
from composable.trainer.trial import TrialRun

__all__ = ["module_table"]


@torch.no_grad()
def module_table(trial: TrialRun, batches: Iterable[Any] | None, depth: int) -> str:
    """Return the table of torchinfo for a model, called as for the next batch of a run.

    Args:
        trial: The trial, which undoes what the calls change.
        batches: The batches, by default those that the run trains on next.
        depth: How many levels of modules it shows.
    """
    with needs("Trainer.summary", "summary"):
        import torchinfo
    run = trial.run
    batch = batches_of(next(trial.batches(batches)))[0]
    state = run.state.evolve_unchecked(batch=batch, outputs=None)
    if run.after_dataloader is not None:
        state = run.after_dataloader(state)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    hook = state.model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        run.engine.forward.outputs(state)
    finally:
        hook.remove()
    args, kwargs = calls[0]
    return str(
        torchinfo.summary(
            state.model,
            input_data=list(args),
            depth=depth,
            device=state.device,
            mode="eval",
            verbose=0,
            col_names=("output_size", "num_params", "trainable"),
            row_settings=("var_names",),
            **kwargs,
        )
    )
