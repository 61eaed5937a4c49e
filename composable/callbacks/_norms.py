"""Norms of tensors that may be sparse or sharded."""

from collections.abc import Iterable

from torch import Tensor

from composable._support import foreach
from composable._support.dtensors import whole


def l2_norms(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the L2 norm of each tensor, for 16-bit tensors in float32.

    The norm of a sharded tensor is that of the whole tensor; every process must call the function.

    Args:
        tensors: Dense or sparse tensors of any shape, dtype and device.

    Example:
        >>> from composable.callbacks._norms import l2_norms
        >>> l2_norms([torch.tensor([3.0, 4.0]), torch.zeros(2, 2)])
        [tensor(5.), tensor(0.)]
    """
    detached = (one.detach() for one in tensors)
    dense = [one.coalesce().values() if one.is_sparse else one for one in detached]
    return [whole(norm) for norm in foreach.l2_norms(dense)]
