"""Activation checkpointing: compute activations again in the backward pass.

Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016,
https://arxiv.org/abs/1604.06174; selective: Korthikanti et al., "Reducing Activation Recomputation
in Large Transformer Models", MLSys 2023, https://arxiv.org/abs/2205.05198
"""

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import nn
from torch._ops import OpOverload

from composable._support.checks import check_count, check_flag, checked
from composable._support.surgery import check_unwrapped, report_nothing

from ._reclass import other_setting, reclass
from .layers.checkpointed import CheckpointedModule, Checkpointing
from .replace_modules import replace_named

__all__ = ["checkpoint_activations"]

Blocks: TypeAlias = type[nn.Module] | str | Iterable[type[nn.Module] | str]
Policy: TypeAlias = Iterable[str | OpOverload] | Callable[..., Any]


def check_blocks(name: str, value: Any) -> None:
    """Check the selection of blocks."""
    listed = listed_blocks(value) if isinstance(value, (type, Iterable)) else []
    kinds = [one for one in listed if isinstance(one, type) and issubclass(one, nn.Module)]
    if value is not None and not (listed and all(isinstance(o, str) or o in kinds for o in listed)):
        raise TypeError(
            f"{name}={value!r} must be classes of modules, or patterns of their names, such as "
            "'transformer.h.*'; None for the items of each ModuleList and Sequential."
        )


def check_policy(name: str, value: Any) -> None:
    """Check the selection of operators."""
    if value is None or (callable(value) and not isinstance(value, OpOverload)):
        return
    try:
        found = [] if isinstance(value, str) else [attrgetter(str(one))(torch.ops) for one in value]
    except (AttributeError, RuntimeError, TypeError):
        found = []
    if not found or not all(isinstance(one, OpOverload) for one in found):
        raise ValueError(
            f"{name}={value!r} must list operators whose results are kept, such as "
            "['aten.mm.default'], or be a function of a context, an operator and its arguments "
            "that returns a CheckpointPolicy."
        )


def listed_blocks(blocks: Any) -> list[Any]:
    """Return one or several selections of blocks as a list."""
    return [blocks] if isinstance(blocks, (str, type)) else list(blocks)


@checked(
    blocks=check_blocks,
    every=lambda name, value: check_count(name, value, 1),
    policy=check_policy,
    offload=check_flag,
)
def checkpoint_activations(
    model: nn.Module,
    blocks: Blocks | None = None,
    *,
    every: int = 1,
    policy: Policy | None = None,
    offload: bool = False,
) -> nn.Module:
    """Save the inputs of blocks only, and compute their activations again in the backward pass.

    Outputs, gradients, random numbers and buffers, such as running statistics, are bit-identical to
    the original model's; a compiled model computes them to rounding. Names of parameters and keys
    of the state dict don't change. In evaluation nothing is computed twice.

    Change the layers of the blocks first: other surgeries don't find a class that has changed.
    A block gets no cache of keys and values of Transformers.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        blocks: Classes of modules, or patterns of their names, such as "transformer.h.*". Of
            modules inside of one another the outermost is a block. Default: the items of each
            `nn.ModuleList` and `nn.Sequential` that have parameters.
        every: 1 for all blocks, 2 for every second one, and so on, from the first.
        policy: The operators whose results are saved, too, such as `["aten.mm.default"]`; or a
            function of PyTorch's selective checkpointing, which gets a context, an operator and its
            arguments, and returns a `torch.utils.checkpoint.CheckpointPolicy`. Default: none.
        offload: Keep the inputs of the blocks in the memory of the CPU, if they are on a GPU.

    Returns:
        The new model; `model` itself if it is checkpointed in this way already, or has no blocks.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `blocks` selects no module, `policy` no operator, the model is checkpointed with
            other options already, or is compiled or wrapped for distributed training.

    Warns:
        NoEffectWarning: The model has no blocks.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
        >>> changed = checkpoint_activations(model, every=2)
        >>> [type(layer).__name__ for layer in changed]
        ['CheckpointedLinear', 'Linear', 'CheckpointedLinear']
    """
    check_unwrapped(model)
    names = list(_outermost(model, blocks))
    if not names:
        if blocks is not None:
            raise ValueError(
                f"blocks={blocks!r} selects no module of {type(model).__name__}; use "
                "names or classes of model.named_modules()."
            )
        report_nothing("checkpoint_activations", "items of nn.ModuleList and nn.Sequential")
    kept: Any = policy if policy is None or callable(policy) else tuple(map(str, policy))
    options, chosen = Checkpointing(kept, offload), set(names[::every])
    modules = model.named_modules()
    before = {n: m.checkpointing for n, m in modules if isinstance(m, CheckpointedModule)}
    if before:
        if before != dict.fromkeys(chosen, options):
            raise other_setting("checkpointed blocks", [*before], "")
        return model

    def changed(_: str, module: Any) -> nn.Module:
        new = reclass(module, CheckpointedModule, prefix="Checkpointed")
        new.checkpointing = options
        return new  # type: ignore[no-any-return]

    return replace_named(model, chosen, changed, training_only=True)


def _outermost(model: nn.Module, blocks: Any) -> Iterator[str]:
    """Return the names of the blocks, without those inside of another one."""
    listed = None if blocks is None else listed_blocks(blocks)
    last: str | None = None
    for name, module in model.named_modules():
        inside = last is not None and name.startswith(f"{last}." if last else "")
        if not inside and _is_block(model, name, module, listed):
            last = name
            yield name


def _is_block(model: nn.Module, name: str, module: nn.Module, listed: list[Any] | None) -> bool:
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):  # they have no forward pass
        return False
    if listed is None:
        parent = model.get_submodule(name.rpartition(".")[0])
        has_parameters = any(True for _ in module.parameters())
        return bool(name) and has_parameters and isinstance(parent, (nn.ModuleList, nn.Sequential))
    return any(
        fnmatchcase(name, one) if isinstance(one, str) else isinstance(module, one)
        for one in listed
    )
