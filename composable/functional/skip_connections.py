"""Skip connections with learned scales, from the embedding and between residual blocks.

Static: Pagliardini et al., "DenseFormer: Enhancing Information Flow in Transformers via Depth
Weighted Averaging", NeurIPS 2024, https://arxiv.org/abs/2402.02622; dynamic: Xiao et al.,
"MUDDFormer: Breaking Residual Bottlenecks in Transformers via Multiway Dynamic Dense Connections",
ICML 2025, https://arxiv.org/abs/2502.12170
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import check_flag, check_one_of, checked, minimum, optional, within
from composable._support.sampling import draw_weights
from composable._support.surgery import report_nothing

from ._reclass import reclass
from ._skips import Skips, add_skips
from ._trace import Trace, follow_calls
from .layers.residual import KNOWN, ResidualBlock
from .projections import is_transposed
from .replace_modules import replace_named
from .stochastic_depth import Target, describe_blocks

__all__ = ["skip_connections"]

SOURCES = ("embedding", "mirrored", "all")
TRANSFORMERS = ("transformers.", "timm.models.vision_transformer.")
BLOCKS = [
    *(block for block in KNOWN if block.name.startswith(TRANSFORMERS)),
    ResidualBlock(nn.TransformerEncoderLayer),
    ResidualBlock(nn.TransformerDecoderLayer),
]
ADVICE = "Pass the class of your blocks, of which a stack needs two: target=MyBlock"


@checked(
    sources=partial(check_one_of, allowed=SOURCES),
    dynamic=check_flag,
    last=optional(minimum(1)),
    hidden=minimum(1),
    scale=within(0, ends="()"),
    target=lambda _, target: describe_blocks(target),
)
def skip_connections(
    model: nn.Module,
    *,
    sources: str = "embedding",
    dynamic: bool = False,
    last: int | None = None,
    hidden: int = 64,
    scale: float = 0.1,
    target: Target | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Add skip connections with learned scales to the inputs of residual blocks.

    With the inputs $h_0, \dots, h_{n-1}$ of the $n$ blocks of a stack, where $h_0$ is the embedding
    and $h_i$ the output of the block before, block $i$ is called on

    $$a_i h_i + \sum_{j \in S_i} b_{ij} h_j$$

    with $S_i = \{0\}$ for "embedding", $\{n - 1 - i\}$ if that is below $i$ for "mirrored", as in a
    U-net, and $\{0, \dots, i - 1\}$ for "all". The scales $a_i = 1$ and $b_{ij} = 0$ are learned.

    With `dynamic`, a network computes them for each token, from its normalized inputs:

    $$(a_i - 1, b_{ij}) = s \left(W_2 \, \mathrm{gelu}(W_1 \, \mathrm{norm}(h_i)) + c\right)$$

    $W_2$ and $c$ start at zero. So the new model computes what the old one did until it is trained.
    The state dict gets `<block>.skip_scales`, or `.skip_down`, `.skip_up` and `.skip_bias`; all
    other keys stay the same.

    Blocks of one stack have the same parent, such as `model.h` with `model.h.0` and `model.h.1`.
    The scales are computed per token, so caches work. The inputs of all sources are kept in memory.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        sources: "embedding", "mirrored" or "all".
        dynamic: Whether the scales depend on the token.
        last: Number of blocks, from the end of each stack, that get skip connections. By default
            all blocks.
        hidden: Number of hidden features of the dynamic scales, at least 1.
        scale: Factor $s$ of the dynamic scales, above 0.
        target: The blocks: a class, or several. By default the layers of Hugging Face that
            `stochastic_depth` knows, the blocks of timm's vision transformers, and the layers of
            `nn.Transformer`.
        generator: Random number generator of $W_1$. Default: torch's global generator.

    Returns:
        The new model; `model` itself if it has these skip connections, or there are no two blocks.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, `sources` does not exist, the blocks have other skip
            connections, dynamic scales find no width, or the model is wrapped for distributed
            training.

    Warns:
        NoEffectWarning: Nothing was changed.

    Example:
        >>> blocks = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(3)))
        >>> new = skip_connections(blocks, sources="mirrored")
        >>> new[2].skips.sources, new[2].skip_scales.tolist()
        ((0,), [1.0, 0.0])
    """
    descriptions = BLOCKS if target is None else describe_blocks(target)
    setting = (sources, dynamic, last, *((hidden, scale) if dynamic else ()))
    stacks = _find_stacks(model, descriptions)
    if _is_converted(model, [name for stack in stacks for name in stack], setting):
        return model
    places: dict[str, Skips] = {}
    for stack in stacks:
        trace = Trace()
        found = [_sources(sources, i, len(stack), last) for i in range(len(stack))]
        used = {j for some in found for j in some}
        for i, name in enumerate(stack if used else ()):
            kept = tuple(j for j in sorted(used) if j <= i)
            places[name] = Skips(trace, i, found[i], kept, setting, scale if dynamic else None)

    def with_skips(name: str, module: nn.Module) -> nn.Module:
        new = reclass(module, WithSkips, prefix="WithSkips")
        new.skips = places[name]
        if new.skips.sources:
            add_scales = _add_dynamic_scales if dynamic else _add_scales
            add_scales(name, new, 1 + len(new.skips.sources), hidden, generator)
        new.register_forward_pre_hook(add_skips, with_kwargs=True)
        return new  # type: ignore[no-any-return]

    if not places:
        sought = f"stacks of blocks of the classes {', '.join(one.name for one in descriptions)}"
        report_nothing("skip_connections", sought, ADVICE)
        return model
    new = replace_named(model, places, with_skips)
    follow_calls(new, {name: skips.trace for name, skips in places.items()})
    return new


class WithSkips(nn.Module):
    """A block of a stack with skip connections; a base before the class of the block."""

    skips: Skips

    def extra_repr(self) -> str:
        own, sources = super().extra_repr(), f"skips_from={self.skips.sources}"
        return f"{own}, {sources}" if own else sources


def _find_stacks(model: nn.Module, blocks: list[ResidualBlock]) -> list[list[str]]:
    """Return the names of the blocks, grouped by their parents."""
    stacks: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if name and any(block.covers(type(module)) for block in blocks):
            stacks.setdefault(name.rpartition(".")[0], []).append(name)
    return list(stacks.values())


def _sources(sources: str, i: int, count: int, last: int | None) -> tuple[int, ...]:
    """Return the numbers of the blocks whose inputs block `i` adds."""
    if last is not None and i < count - last:
        return ()
    if sources == "all":
        return tuple(range(i))
    source = 0 if sources == "embedding" else count - 1 - i
    return (source,) if source < i else ()


def _is_converted(model: nn.Module, names: list[str], setting: tuple[Any, ...]) -> bool:
    """Return whether blocks have these skip connections.

    Raises:
        ValueError: They have others.
    """
    for name in names:
        skips = getattr(model.get_submodule(name), "skips", None)
        if isinstance(skips, Skips):
            if skips.setting != setting:
                raise ValueError(
                    f"{name} has skip connections of the setting {skips.setting}, not {setting}; "
                    "convert the original model instead."
                )
            return True
    return False


def _add_scales(name: str, block: Any, count: int, *_: Any) -> None:
    like = next((p for p in block.parameters() if p.is_floating_point()), torch.ones(()))
    scales = torch.zeros(count, device=like.device, dtype=like.dtype)
    scales[0] = 1
    block.skip_scales = nn.Parameter(scales)


def _add_dynamic_scales(
    name: str, block: Any, count: int, hidden: int, generator: torch.Generator | None
) -> None:
    weight, width = _width(name, block)
    down = draw_weights((hidden, width), generator=generator).to(weight)
    block.skip_down = nn.Parameter(down)
    block.skip_up = nn.Parameter(down.new_zeros(count, hidden))
    block.skip_bias = nn.Parameter(down.new_zeros(count))


def _width(name: str, block: nn.Module) -> tuple[Tensor, int]:
    """Return the first weight of a block, and the number of features that it is called on."""
    for module in block.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.is_floating_point():
            return weight, weight.shape[0] if is_transposed(module) else weight.shape[-1]
    raise ValueError(
        f"{name} has no weight, from which dynamic=True needs the width; pass dynamic=False."
    )
