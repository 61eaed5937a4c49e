"""The outputs of a prediction that several processes share."""

from collections.abc import Iterator, Sequence
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

    Tensors are sent as bytes, and numbers and strings as JSON. The containers around them are those
    of a process's own output, so nothing is unpickled.

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
    tensors = [tensor for _, output in own for tensor in tensors_of(output)]
    device = next((tensor.device for tensor in tensors_of(template)), torch.device("cpu"))
    found: list[tuple[int, Any]] = []
    for rank, described in enumerate(processes.gather(sent)):
        flat = (
            _bytes_of(tensors, device) if rank == processes.rank else _room_for(described, device)
        )
        dist.broadcast(flat, rank)
        if rank == processes.rank:
            found += own
            continue
        parts = _parts(flat, described)
        for one in described:
            found.append((one["number"], _rebuilt(template, one, parts)))
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


def _rebuilt(template: Any, described: dict[str, Any], parts: Iterator[Tensor]) -> Any:
    """Return a tree like the template, with the tensors and values of a description."""
    if _structure(template) != described["structure"]:
        raise ProcessError(
            f"the output of batch {described['number']} has the structure "
            f"{str(described['structure'])[:200]}, and that of another batch "
            f"{str(_structure(template))[:200]}; call predict in one process, or return the same "
            "containers for every batch."
        )
    values = iter(described["values"])
    return map_tensors(
        lambda _: next(parts),
        template,
        lambda leaf: next(values) if isinstance(leaf, _PLAIN) else leaf,
    )


def _bytes_of(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    flat = [one.detach().contiguous().reshape(-1).view(torch.uint8) for one in tensors]
    return torch.cat([torch.empty(0, dtype=torch.uint8, device=device), *flat])


def _sizes(described: list[dict[str, Any]]) -> list[tuple[list[int], torch.dtype, int]]:
    kinds = [(shape, getattr(torch, dtype)) for one in described for shape, dtype in one["tensors"]]
    return [(s, d, torch.Size(s).numel() * d.itemsize) for s, d in kinds]


def _room_for(described: list[dict[str, Any]], device: torch.device) -> Tensor:
    size = sum(size for *_, size in _sizes(described))
    return torch.empty(size, dtype=torch.uint8, device=device)


def _parts(flat: Tensor, described: list[dict[str, Any]]) -> Iterator[Tensor]:
    sizes = _sizes(described)
    for part, (shape, dtype, _) in zip(
        flat.split_with_sizes([size for *_, size in sizes]), sizes, strict=True
    ):
        yield part.clone().view(dtype).view(shape)  # aligned, and without the bytes of the others
