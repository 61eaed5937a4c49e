"""Deterministic data order, batches and augmentation noise."""

from composable.data.order import (
    MovedGeneratorWarning,
    ReplayedBatchesWarning,
    get_generator_states,
    read_loader_state,
    seeded_batches,
    set_generator_states,
)
from composable.data.per_example import PerExample
from composable.data.sampler import GlobalBatchSampler

__all__ = [
    "GlobalBatchSampler",
    "MovedGeneratorWarning",
    "PerExample",
    "ReplayedBatchesWarning",
    "get_generator_states",
    "read_loader_state",
    "seeded_batches",
    "set_generator_states",
]
