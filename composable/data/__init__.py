"""Deterministic order, batches and random numbers of data."""

from composable.data.order import (
    MovedGeneratorWarning,
    ReplayedBatchesWarning,
    read_generators,
    read_loader_state,
    seeded_batches,
    write_generators,
)
from composable.data.per_example import PerExample
from composable.data.sampler import GlobalBatchSampler

__all__ = [
    "GlobalBatchSampler",
    "MovedGeneratorWarning",
    "PerExample",
    "ReplayedBatchesWarning",
    "read_generators",
    "read_loader_state",
    "seeded_batches",
    "write_generators",
]
