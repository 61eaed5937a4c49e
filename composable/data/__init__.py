"""Deterministic order of batches."""

from composable.data.order import seeded_batches

__all__ = ["seeded_batches"]
