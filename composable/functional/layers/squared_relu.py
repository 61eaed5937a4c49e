"""Squared rectified linear units."""

from jaxtyping import Float
from torch import Tensor, nn

from composable._support.checks import check_range


class SquaredReLU(nn.Module):
    r"""Square the (leaky) rectified inputs: $\max(x, s x)^2$.

    Args:
        slope: Slope $s$ of negative inputs before the square, in [0, 1]. With 0, negative inputs
            give 0.

    Example:
        >>> import torch
        >>> SquaredReLU(slope=0.5)(torch.tensor([-2.0, 0.0, 3.0]))
        tensor([1., 0., 9.])
    """

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        check_range("slope", slope, 0, 1)
        self.slope = slope

    def forward(self, inputs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the activations."""
        if self.slope:
            return nn.functional.leaky_relu(inputs, self.slope).square()
        return nn.functional.relu(inputs).square()

    def extra_repr(self) -> str:
        """Return the slope."""
        return f"slope={self.slope}"
