"""Row-wise Adagrad: one learning rate for each row of a table.

Duchi, Hazan and Singer, "Adaptive Subgradient Methods", JMLR 2011; one accumulator for a row, as in
Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning
Recommendation Models", ISCA 2022, https://arxiv.org/abs/2104.05158
"""

from typing import Any

import torch
from torch import Tensor

from composable._support.checks import check_range, parameters_of
from composable.optim.wrapping import BaseOptimizer


class RowAdagrad(BaseOptimizer):
    r"""Adagrad with one accumulator for each row, for tables of embeddings.

    With the gradient $g_i$ of row $w_i$, which has $d$ elements, learning rate $\eta$ and weight
    decay $\lambda$,

    $$s_i \leftarrow s_i + \lVert g_i \rVert^2 / d, \quad
    w_i \leftarrow (1 - \eta \lambda) \, w_i - \eta \, g_i / (\sqrt{s_i} + \epsilon)$$

    A row whose gradient is zero stays as it is, without decay. So sparse gradients, as from
    `torch.nn.Embedding(sparse=True)` and `NGramEmbeddings(sparse=True)`, train the same weights as
    dense ones up to rounding, and a step costs as much as the rows that it changes. The
    accumulators take one number a row, in at least float32.

    Args:
        params: Parameters, or groups of them. A row is one index of the first dimension.
        lr: The learning rate, 0 or more.
        eps: Is added to the root, 0 or more.
        weight_decay: The decoupled weight decay, 0 or more.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range.

    Example:
        >>> table = torch.nn.Embedding(9, 2, sparse=True)
        >>> optimizer = RowAdagrad(table.parameters(), lr=0.1)
        >>> table(torch.tensor([1, 4])).sum().backward()
        >>> optimizer.step()
    """

    own_dtypes = ("sum",)
    takes_sparse = True

    def __init__(
        self, params: Any, lr: float = 0.1, *, eps: float = 1e-10, weight_decay: float = 0.0
    ) -> None:
        params = parameters_of(params)
        check_range("lr", lr, 0)
        check_range("eps", eps, 0)
        check_range("weight_decay", weight_decay, 0)
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    def step_group(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update the rows that have a gradient.

        Raises:
            RuntimeError: An entry of a sparse gradient is not a row, or a parameter is complex.
        """
        for parameter in params:
            self._update(parameter, group)

    def _update(self, parameter: Any, group: dict[str, Any]) -> None:
        if parameter.is_complex():
            raise RuntimeError(
                "RowAdagrad does not support complex parameters: pass torch.view_as_real of them."
            )
        table = parameter if parameter.ndim else parameter.view(1)
        state = self.state[parameter]
        if not state:
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            state["sum"] = torch.zeros(len(table), dtype=dtype, device=parameter.device)
        gradient: Tensor = parameter.grad
        if gradient.is_sparse:
            rows, gradients = _rows(gradient)
            sums, table[rows] = _changed(table[rows], state["sum"][rows], gradients, group)
            state["sum"][rows] = sums
        else:
            state["sum"], changed = _changed(table, state["sum"], gradient.view_as(table), group)
            table.copy_(changed)


def _changed(
    table: Tensor, sums: Tensor, gradients: Tensor, group: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return the accumulators and the rows after a step."""
    lr, decay = group["lr"], 1 - group["lr"] * group["weight_decay"]
    by_row = (-1, *[1] * (gradients.ndim - 1))
    flat = gradients.flatten(1) if gradients.ndim > 1 else gradients[:, None]
    sums = sums + flat.to(sums.dtype).square().mean(-1)
    steps = gradients / (sums.sqrt() + group["eps"]).to(gradients.dtype).view(by_row)
    present = (flat != 0).any(-1).view(by_row)
    return sums, torch.where(present, table * decay - lr * steps, table)


def _rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of a sparse gradient, each once, and their gradients."""
    if gradient.sparse_dim() != 1:
        raise RuntimeError(
            f"RowAdagrad supports sparse gradients whose entries are rows (sparse_dim() == 1), not "
            f"sparse_dim() == {gradient.sparse_dim()}: pass gradient.to_dense()."
        )
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()
