"""Split the data of an evaluation into a validation and a test half."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from composable.core.key import Key
from composable.data.permutation import permute
from composable.metrics import Evaluator

__all__ = ["HALVES", "split_evaluators"]

HALVES = ("validation", "test")
"""The labels of the evaluators."""

_ADVICE = (
    "Pass two evaluators to the Trainer instead: eval_dataloader=[Evaluator('validation', ...), "
    "Evaluator('test', ...)]."
)


def split_evaluators(evaluators: Sequence[Evaluator]) -> tuple[Evaluator, ...]:
    """Split the only evaluator of a Trainer into two, with half of the examples each.

    The halves are drawn by a permutation that is the same in every trial, and keep the order of
    the data. A list of batches is split into two lists.

    Args:
        evaluators: The evaluators of the Trainer.

    Returns:
        The evaluators "validation" and "test".

    Raises:
        ValueError: There is not exactly one evaluator, or its loader has no data set that can be
            indexed, fewer than two examples, or a sampler that omits or repeats some.

    Example:
        >>> from composable import Evaluator
        >>> from composable.comparison.trials.splitting import split_evaluators
        >>> data = torch.utils.data.TensorDataset(torch.arange(10.0))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=5)
        >>> [len(one.dataloader.dataset) for one in split_evaluators([Evaluator("eval", loader)])]
        [5, 5]
    """
    if len(evaluators) != 1:
        labels = [one.label for one in evaluators]
        raise ValueError(
            f"split_evaluation=True splits one evaluator, and the Trainer has {labels}; pass "
            "split_evaluation=False, and name the metrics for tuning and for reporting."
        )
    (given,) = evaluators
    loaders = _halves(given.dataloader)
    return tuple(
        Evaluator(label, loader, metrics=given.metrics, eval_interval=given.eval_interval)
        for label, loader in zip(HALVES, loaders, strict=True)
    )


def _halves(loader: Any) -> list[Any]:
    if isinstance(loader, (list, tuple)):
        return [[loader[i] for i in half] for half in _split(len(loader), "batches")]
    if not isinstance(loader, DataLoader):
        raise ValueError(
            "split_evaluation=True needs a DataLoader of a data set with indices, and the "
            f"eval_dataloader is a {type(loader).__name__}. {_ADVICE}"
        )
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            "split_evaluation=True needs a data set with indices and a length, and that of the "
            f"eval_dataloader is a {type(dataset).__name__}. {_ADVICE}"
        )
    if loader.batch_size is None:
        raise ValueError(
            "split_evaluation=True needs a DataLoader with a batch_size, and the eval_dataloader "
            f"has a batch sampler of its own, or none. {_ADVICE}"
        )
    if not _takes_each_example_once(loader.sampler, len(dataset)):
        raise ValueError(
            "split_evaluation=True needs a DataLoader of all examples of its data set, and the "
            f"eval_dataloader has a {type(loader.sampler).__name__}. Pass a "
            f"torch.utils.data.Subset instead of a sampler. {_ADVICE}"
        )
    return [_part(loader, half) for half in _split(len(dataset), "examples")]


def _takes_each_example_once(sampler: Any, length: int) -> bool:
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and sampler.num_samples == length
    return isinstance(sampler, SequentialSampler)


def _split(length: int, what: str) -> list[list[int]]:
    if length < 2:
        raise ValueError(
            f"split_evaluation=True needs at least 2 {what}, and the eval_dataloader has {length}."
        )
    order = permute(torch.arange(length), length, Key(0).fold("split_evaluation")).tolist()
    return [sorted(order[: length // 2]), sorted(order[length // 2 :])]


def _part(loader: "DataLoader[Any]", indices: list[int]) -> "DataLoader[Any]":
    workers: dict[str, Any] = {}
    if loader.num_workers:
        workers = {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
            "worker_init_fn": loader.worker_init_fn,
        }
    return DataLoader(
        Subset(loader.dataset, indices),
        batch_size=loader.batch_size,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        **workers,
    )
