"""SOAP before Muon: momentum that is preconditioned in the eigenbases of SOAP.

Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", 2024,
https://arxiv.org/abs/2409.11321; before Muon: records 278 and 321 of modded-nanogpt, 2026,
https://github.com/KellerJordan/modded-nanogpt/pull/278
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from composable._support.devices import compute_dtype

State: TypeAlias = dict[str, Any]

ROWS, COLUMNS = "soap_rows", "soap_columns"
"""The averages of G Gᵀ and of Gᵀ G."""
ROW_BASIS, COLUMN_BASIS = "soap_row_basis", "soap_column_basis"
SQUARES = "soap_squares"
"""The average of the squared momentum in the eigenbases."""
STATES = (ROWS, COLUMNS, ROW_BASIS, COLUMN_BASIS, SQUARES)
_LEAST = 1e-12
"""The least root of an average, and the least norm, by which is divided."""


def preconditioned(updates: Tensor, grads: Tensor, states: Sequence[State], beta2: float) -> Tensor:
    r"""Precondition momentum by the averages of SOAP, which are then updated.

    With the eigenbases $Q_L$ and $Q_R$ of the averages of $G G^T$ and $G^T G$, momentum $U$ becomes

    $$P = Q_L^T U Q_R, \qquad V \leftarrow \beta V + (1 - \beta) P^2, \qquad
    U' = Q_L \frac{P}{\sqrt V} Q_R^T$$

    scaled to the norm of $U$. The bases come from the steps before, each one step of a power
    iteration; in the first step $U$ stays what it is.

    Args:
        updates: Momentum of equal matrices `[matrices, stacked, rows, columns]`.
        grads: Their gradients, of the same shape.
        states: The state of each matrix, which gets the averages and bases.
        beta2: The share of the averages that a step keeps.
    """
    dtype = compute_dtype(updates.dtype)
    momentum, grads = updates.to(dtype), grads.to(dtype)
    rows, columns = grads @ grads.mT, grads.mT @ grads
    if ROWS not in states[0]:
        for name, basis, first in ((ROWS, ROW_BASIS, rows), (COLUMNS, COLUMN_BASIS, columns)):
            average = first * (1 - beta2)
            _store(states, name, average)
            _store(states, basis, torch.linalg.eigh(average)[1].flip(-1))
        _store(states, SQUARES, torch.zeros_like(momentum))
        return updates
    left, right, squares = (
        _stacked(states, name, dtype) for name in (ROW_BASIS, COLUMN_BASIS, SQUARES)
    )
    projected = left.mT @ momentum @ right
    squares = squares.lerp(projected.square(), 1 - beta2)
    result = left @ (projected / squares.sqrt().clamp(min=_LEAST)) @ right.mT
    result = result * (_norms(momentum) / _norms(result).clamp(min=_LEAST))
    rows = _stacked(states, ROWS, dtype).lerp(rows, 1 - beta2)
    columns = _stacked(states, COLUMNS, dtype).lerp(columns, 1 - beta2)
    left, order = _next_basis(rows, left)
    squares = squares.take_along_dim(order[..., :, None], -2)
    right, order = _next_basis(columns, right)
    squares = squares.take_along_dim(order[..., None, :], -1)
    found = {ROWS: rows, COLUMNS: columns, ROW_BASIS: left, COLUMN_BASIS: right, SQUARES: squares}
    for name, values in found.items():
        _store(states, name, values)
    return result.to(updates.dtype)


def _next_basis(average: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return the basis after a step of a power iteration, and the new order of its vectors."""
    product = average @ basis
    order = (basis * product).sum(-2).argsort(dim=-1, descending=True, stable=True)
    return torch.linalg.qr(product.take_along_dim(order[..., None, :], -1))[0], order


def _norms(matrices: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
    return norms


def _stacked(states: Sequence[State], name: str, dtype: torch.dtype) -> Tensor:
    return torch.stack([state[name].to(dtype) for state in states])


def _store(states: Sequence[State], name: str, values: Tensor) -> None:
    for state, value in zip(states, values, strict=True):
        state[name] = value.clone()  # a view would hold the values of all
