"""Polar Express: the best coefficients for each step of the iteration of `orthogonalize`.

Amsel, Persson, Musco and Gower, "The Polar Express: Optimal Matrix Sign Methods and Their
Application to the Muon Algorithm", 2025, https://arxiv.org/abs/2505.16932
"""

from math import inf, sqrt

import torch

from composable._support.checks import check_count, check_range

from .orthogonalize import Triple

_ENOUGH = 100
"""More exchanges than Remez' algorithm takes for any interval in float64."""
_NARROW = 1e-5
"""The relative width of an interval below which its polynomial is Newton and Schulz's."""


def polar_express_coefficients(
    steps: int = 5, *, lower: float = 1e-3, safety: float = 0.02, cushion: float = 0.02
) -> tuple[Triple, ...]:
    r"""Compute coefficients of `orthogonalize` that are the best ones for each step.

    Singular values are in $[l, 1]$ at first. The polynomial $p(x) = a x + b x^3 + c x^5$ of a step
    is the one with the least $\max |1 - p(x)|$ over the interval in which they are; they are then
    in $[p(l), 2 - p(l)]$, the interval of the next step.

    Args:
        steps: The number of steps, at least 1.
        lower: The least singular value $l$ that becomes nearly 1, relative to the norm of the
            matrix, in (0, 1].
        safety: The share by which singular values may exceed the interval of a step by rounding, at
            least 0: all polynomials but the last are evaluated at $x / (1 + \text{safety})$.
        cushion: The least ratio of the ends of an interval for which a polynomial is computed, in
            [0, 1]: for less it is computed for a narrower interval, so that large singular values
            don't become small ones in between.

    Returns:
        $a$, $b$ and $c$ of each step, for `coefficients=` of `orthogonalize`, or `ns_coefficients=`
        of `composable.optim.Muon`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Example:
        >>> first, *_, last = polar_express_coefficients(5)
        >>> [round(value, 4) for value in first], [round(value, 4) for value in last]
        ([8.1566, -22.4833, 15.8788], [2.3465, -1.7098, 0.4232])
    """
    check_count("steps", steps, 1)
    check_range("lower", lower, 0, 1, ends="(]")
    check_range("safety", safety, 0, ends="[)")
    check_range("cushion", cushion, 0, 1)
    low, high = float(lower), 1.0
    found = []
    for step in range(steps):
        triple = _best(max(low, cushion * high), high)
        # Centered on 1 again over the whole interval, if it was narrowed.
        triple = _times(triple, 2 / (_value(triple, low) + _value(triple, high)))
        if step < steps - 1:
            triple = _of_argument(triple, 1 / (1 + safety))
        found.append(triple)
        low = _value(triple, low)
        high = 2 - low
    return tuple(found)


def _best(low: float, high: float) -> Triple:
    """Return the odd polynomial of degree 5 that is nearest to 1 on an interval.

    Its error is of equal size, with alternating signs, at both ends and at two points within, at
    which the derivative is 0.
    """
    if low > (1 - _NARROW) * high:
        return _of_argument((15 / 8, -10 / 8, 3 / 8), 1 / high)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    inner, error = [(3 * low + high) / 4, (low + 3 * high) / 4], inf
    for _ in range(_ENOUGH):
        x = torch.tensor([low, *inner, high], dtype=torch.float64)
        rows = torch.stack([x, x**3, x**5, signs], 1)
        a, b, c, new = torch.linalg.solve(rows, torch.ones_like(x)).tolist()
        if abs(new - error) < 1e-15:
            break
        root, error = sqrt(9 * b * b - 20 * a * c), new
        inner = [sqrt((-3 * b + sign * root) / (10 * c)) for sign in (-1, 1)]
    return a, b, c


def _value(triple: Triple, x: float) -> float:
    a, b, c = triple
    return a * x + b * x**3 + c * x**5


def _times(triple: Triple, factor: float) -> Triple:
    a, b, c = triple
    return a * factor, b * factor, c * factor


def _of_argument(triple: Triple, factor: float) -> Triple:
    """Return the polynomial of x times a factor."""
    a, b, c = triple
    return a * factor, b * factor**3, c * factor**5
