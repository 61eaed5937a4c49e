"""The skip connections into one block of a stack."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm

from ._trace import Trace


@dataclass(frozen=True, eq=False)
class Skips:
    """What a block adds to its inputs, and what it keeps for later blocks.

    The block has the scales as direct parameters, and no submodule, since a block may be a
    container that calls all of its submodules.

    Args:
        trace: The tensors that the blocks of the stack share.
        index: Number of the block in its stack.
        sources: Numbers of the earlier blocks whose inputs it adds.
        kept: Numbers of the blocks up to this one whose inputs a block of the stack adds.
        setting: The hyperparameters with which the stack is converted.
        scale: Factor of dynamic scales; None for static ones.
    """

    trace: Trace
    index: int
    sources: tuple[int, ...]
    kept: tuple[int, ...]
    setting: tuple[Any, ...]
    scale: float | None

    def __call__(self, block: Any, inputs: Tensor) -> Tensor:
        """Return the inputs of the block with the skip connections."""
        trace = self.trace
        for j in self.kept:  # a skipped block returns its inputs
            if j == self.index or j not in (trace.kept or ()):
                trace.keep(j, inputs)
        earlier = [trace.get(j, inputs, "skip_connections") for j in self.sources]
        if not earlier:
            return inputs
        if self.scale is None:
            own, *scales = block.skip_scales.unbind()
            return _weighted_sum(own * inputs, scales, earlier)
        hidden = gelu(linear(rms_norm(inputs, inputs.shape[-1:]), block.skip_down))
        gates = self.scale * linear(hidden, block.skip_up, block.skip_bias)
        own, *scales = gates.to(inputs.dtype).unsqueeze(-2).unbind(-1)
        return _weighted_sum(inputs + own * inputs, scales, earlier)


def add_skips(block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Add the skip connections to the inputs of a block, as a hook before its forward method."""
    if args:
        return (block.skips(block, args[0]), *args[1:]), kwargs
    if "hidden_states" not in kwargs:
        raise TypeError(f"{type(block).__name__} must be called with its inputs first.")
    return args, {**kwargs, "hidden_states": block.skips(block, kwargs["hidden_states"])}


def _weighted_sum(start: Tensor, scales: list[Tensor], terms: list[Tensor]) -> Tensor:
    for scale, term in zip(scales, terms, strict=True):
        start = start + scale * term
    return start
