"""Histograms of tensors."""

from typing import Any

import attrs
import torch
from torch import Tensor

_NUM_BINS = 64


@attrs.frozen
class Histogram:
    """The distribution of the finite values of a tensor."""

    edges: tuple[float, ...]
    """The borders of the bins, one more than there are bins; of no values, empty."""
    counts: tuple[int, ...]
    """Number of values in each bin."""
    minimum: float
    maximum: float
    total: float
    """The sum of the values."""
    total_of_squares: float
    num_values: int
    num_nonfinite: int
    """Number of values that are NaN or infinite; they are in no bin."""

    @property
    def counted(self) -> dict[str, list[Any]]:
        """The edges and the counts, as JSON has them."""
        return {"edges": list(self.edges), "counts": list(self.counts)}

    @classmethod
    def of(cls, values: Tensor, num_bins: int = _NUM_BINS) -> "Histogram":
        """Count the values in bins of equal width, on their device.

        Example:
            >>> from composable.loggers._histograms import Histogram
            >>> found = Histogram.of(torch.tensor([0.0, 0.1, 1.0, torch.nan]), num_bins=2)
            >>> found.edges, found.counts, found.num_nonfinite
            ((0.0, 0.5, 1.0), (2, 1), 1)
        """
        values = values.detach().flatten()
        if values.dtype is not torch.float64:
            values = values.float()
        finite = values[values.isfinite()]
        excluded = values.numel() - finite.numel()
        if not finite.numel():
            return cls((), (), 0.0, 0.0, 0.0, 0.0, 0, excluded)
        low, high = (float(value) for value in torch.stack(finite.aminmax()).tolist())
        if low == high:  # one bin around a single value
            low, high = low - 0.5, high + 0.5
        counts = _counts(finite, low, high, num_bins)
        edges = [low + (high - low) * i / num_bins for i in range(num_bins)]
        wide = finite.double()
        return cls(
            (*edges, high),
            tuple(counts.tolist()),
            float(finite.min()),
            float(finite.max()),
            float(wide.sum()),
            float(wide.square().sum()),
            finite.numel(),
            excluded,
        )


def _counts(values: Tensor, low: float, high: float, num_bins: int) -> Tensor:
    # torch.histc has no deterministic implementation on CUDA, and bincount has.
    place = (values.double() - low) / (high - low) * num_bins
    return torch.bincount(place.long().clamp(0, num_bins - 1), minlength=num_bins)
