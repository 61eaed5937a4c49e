"""Dropout in one call for several seeds, with the masks of separate runs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from composable.comparison.seeds.stacking import NotStackable

__all__ = ["DRAWS", "SeededDropout"]

DRAWS = "the model draws random numbers in its forward pass, other than by dropout"


class SeededDropout(TorchFunctionMode):
    """A mode in which dropout under `torch.func.vmap` draws a mask for each seed.

    It replaces `torch.nn.functional.dropout`, `dropout1d`, `dropout2d` and `dropout3d`. Each mask
    is drawn with the generator of its seed as outside of vmap, so it has the same bits.

    Args:
        generators: The states of torch's global generator, one for each seed.
    """

    def __init__(self, generators: Sequence[Tensor]) -> None:
        super().__init__()
        self.generators = list(generators)
        """The states after the masks that have been drawn."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DROPOUTS:
            return self._drop(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _drop(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or not 0 < p < 1:  # nothing is drawn, or `p` is wrong
            return func(input, p, training, inplace)
        draw = partial(self._draw, partial(func, p=p, training=True))
        masks: Tensor = _Masks.apply(input.detach(), draw)  # type: ignore[no-untyped-call]
        return input.mul_(masks) if inplace else input * masks

    def _draw(self, dropout: Callable[[Tensor], Tensor], inputs: Sequence[Tensor]) -> Tensor:
        """Return the factors of the inputs of all seeds."""
        masks = []
        for i, one in enumerate(inputs):
            torch.set_rng_state(self.generators[i])
            masks.append(dropout(torch.ones_like(one)))  # in memory like the inputs, as is the draw
            self.generators[i] = torch.get_rng_state()
        return torch.stack(masks)


_DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d}


class _Masks(torch.autograd.Function):
    """The masks of all seeds; a function for the sake of its rule, which has the whole tensor."""

    @staticmethod
    def forward(input: Tensor, draw: Any) -> Tensor:
        raise NotStackable("the model drops out of a tensor that is the same for all seeds")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, input: Tensor, draw: Any) -> tuple[Tensor, int]:
        if info.randomness != "error":  # of a call of vmap in the model
            raise NotStackable(DRAWS)
        return draw(input.unbind(in_dims[0])), 0
