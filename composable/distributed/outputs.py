"""The outputs of a prediction that several processes share."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from composable._support.tree import children_of, leaves_of, map_tensors, tensors_of
from composable.distributed.processes import ProcessError, Processes

_PLAIN = (bool, int, float, str, type(None))


def gather_outputs(
    own: Sequence[tuple[Any, Any]], template: Any, processes: Processes
) -> list[Any]:
    """Return the outputs for all batches in their order, on every process.

    Tensors are sent as bytes, and numbers and strings as JSON. The containers around them come from
    a process's output, so nothing is unpickled.

    Args:
        own: The outputs of this process, with the numbers of their batches.
        template: An output of this process, whether or not it is one of those.
        processes: The processes.

    Raises:
        ProcessError: The outputs of two batches have different structures.
    """
    if not processes.several:
        return [output for _, output in own]
    sent = [_describe(number, output) for number, output in own]
    device = next((tensor.device for tensor in tensors_of(template)), torch.device("cpu"))
    found: list[tuple[int, Any]] = []
    for rank, described in enumerate(processes.gather(sent)):
        for i, one in enumerate(described):
            mine = rank == processes.rank
            tensors = list(tensors_of(own[i][1])) if mine else _room_for(one, device)
            for tensor in tensors:
                dist.broadcast(tensor.detach().contiguous().reshape(-1).view(torch.uint8), rank)
            found.append(own[i] if mine else (one["number"], _rebuilt(template, one, tensors)))
    return [output for _, output in sorted(found, key=lambda pair: pair[0])]


def _describe(number: int, output: Any) -> dict[str, Any]:
    tensors = list(tensors_of(output))
    return {
        "number": number,
        "structure": _structure(output),
        "tensors": [[list(one.shape), str(one.dtype).removeprefix("torch.")] for one in tensors],
        "values": [one for one in leaves_of(output) if isinstance(one, _PLAIN)],
    }


def _structure(tree: Any) -> Any:
    """Return the types and names of a tree, without its tensors and values."""
    if isinstance(tree, Tensor):
        return "tensor"
    children = children_of(tree)
    if children is None:
        return "value" if isinstance(tree, _PLAIN) else type(tree).__qualname__
    inner = [[str(name), _structure(child)] for name, child in children.items()]
    return [type(tree).__qualname__, inner]


def _rebuilt(template: Any, described: dict[str, Any], tensors: Sequence[Tensor]) -> Any:
    """Return a tree like the template, with the values of a description."""
    if _structure(template) != described["structure"]:
        raise ProcessError(
            f"the output of batch {described['number']} has the structure "
            f"{str(described['structure'])[:200]}, and that of another batch "
            f"{str(_structure(template))[:200]}; call predict in one process, or return the same "
            "containers for every batch."
        )
    parts, values = iter(tensors), iter(described["values"])
    return map_tensors(
        lambda _: next(parts),
        template,
        lambda leaf: next(values) if isinstance(leaf, _PLAIN) else leaf,
    )


def _room_for(described: dict[str, Any], device: torch.device) -> list[Tensor]:
    shapes = described["tensors"]
    return [torch.empty(shape, dtype=getattr(torch, name), device=device) for shape, name in shapes]
