"""Orthogonalization of matrices by a Newton-Schulz iteration, for the update of Muon.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon/
"""

from collections.abc import Sequence
from math import inf
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor

from composable._support.checks import check_count, check_place, check_range, check_tensor

__all__ = ["orthogonalize"]

Triple: TypeAlias = tuple[float, float, float]
Coefficients: TypeAlias = Triple | Sequence[Triple]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(
    matrices: Float[Tensor, "*batch rows columns"],
    *,
    steps: int = 5,
    coefficients: Coefficients = COEFFICIENTS,
    eps: float = 1e-7,
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "*batch rows columns"]:
    r"""Replace all singular values of matrices by approximately 1.

    $$X_0 = \frac{G}{\max(\lVert G \rVert_F, \epsilon)}, \qquad
    X_{k+1} = a X_k + b (X_k X_k^T) X_k + c (X_k X_k^T)^2 X_k$$

    With the default coefficients, singular values do not converge to 1 but to values between about
    0.7 and 1.2, in fewer steps. A tall matrix is transposed during the iteration.

    Args:
        matrices: Matrices `[..., rows, columns]`. All are orthogonalized in one batch.
        steps: The number of iterations, 0 or more.
        coefficients: The coefficients $a$, $b$ and $c$; or three for each step, as
            `polar_express_coefficients` returns them; the last serve for all further steps.
        eps: The least norm $\epsilon$ by which a matrix is divided, above 0.
        dtype: The dtype of the computation, a floating-point one.

    Returns:
        A tensor of the shape and dtype of `matrices`. A zero matrix stays zero.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `matrices` has fewer than two dimensions, or a number is out of range.

    Example:
        >>> import torch
        >>> rotated = orthogonalize(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), steps=10)
        >>> [round(value, 1) for value in torch.linalg.svdvals(rotated).tolist()]
        [1.1, 0.7]
    """
    check_tensor("matrices", matrices)
    if not matrices.is_floating_point():
        raise TypeError(f"matrices must be floating-point, not {matrices.dtype}.")
    if matrices.ndim < 2:
        raise ValueError(
            f"matrices has shape {tuple(matrices.shape)}, but must have two dimensions or more; "
            "flatten a convolution's weight by weight.flatten(1)."
        )
    check_count("steps", steps)
    check_coefficients("coefficients", coefficients)
    check_range("eps", eps, 0, ends="()")
    check_place(None, dtype)
    return iterate(matrices, steps, coefficients, eps, dtype)


def iterate(
    matrices: Tensor,
    steps: int,
    coefficients: Coefficients,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """Orthogonalize matrices, without checks."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.to(dtype)
    product: Any = torch.baddbmm
    if matrices.ndim == 2:
        norms, product = torch.linalg.vector_norm(x.flatten()), torch.addmm
    else:
        x = x.flatten(0, -3)
        norms = torch.linalg.vector_norm(x.flatten(1), dim=1)[:, None, None]
    x = (x.mT if tall else x) / norms.clamp(min=eps)
    for a, b, c in _of_steps(coefficients, steps):
        gram = x @ x.mT
        x = product(x, product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.mT if tall else x
    return x.reshape(matrices.shape).to(matrices.dtype)


def _of_steps(coefficients: Coefficients, steps: int) -> list[Triple]:
    """Return the coefficients of each step."""
    several = cast(
        "Sequence[Triple]", coefficients if _are_several(coefficients) else [coefficients]
    )
    return [several[min(step, len(several) - 1)] for step in range(steps)]


def _are_several(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and bool(value) and isinstance(value[0], (tuple, list))


def check_coefficients(name: str, value: Any) -> None:
    """Raise an error unless a value is three numbers, or three for each step."""
    if _are_several(value):
        for i, one in enumerate(value):
            _check_triple(f"{name}[{i}]", one)
    else:
        _check_triple(name, value)


def _check_triple(name: str, value: Any) -> None:
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise TypeError(
            f"{name}={value!r} must be three numbers, such as {COEFFICIENTS}, or a list of three "
            "for each step."
        )
    for i, one in enumerate(value):
        check_range(f"{name}[{i}]", one, -inf, ends="()")
