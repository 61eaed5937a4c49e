"""Functions of matrices, each of which one of several processes computes: its owner.

Matrices are divided among owners by batches. These are the same on any number of processes, so the
results have the same bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from composable._support.dtensors import local_part, sharded_like, whole

Compute = Callable[[list[Tensor]], Sequence[Tensor]]
Results = Iterator[tuple["Batch", Sequence[Tensor]]]


@attrs.frozen(eq=False)
class Batch:
    """Matrices of equal shape that are computed together.

    Args:
        indices: Their places in a list of all.
        cost: The time that they take, in any unit.
    """

    indices: Sequence[int]
    cost: float


def compute_by_owners(
    values: Sequence[Tensor],
    batches: Sequence[Batch],
    compute: Compute,
    *,
    group: Any = None,
    dtype: torch.dtype,
) -> Results:
    """Compute a function of matrices, and yield the results of each batch.

    The rows of a `DTensor` are sent to the owner, and the result's rows back: two messages for all
    matrices.

    Args:
        values: The matrices, each a `DTensor`, or a plain tensor that every process has.
        batches: All of them, in batches.
        compute: A function of the matrices of a batch.
        group: The processes that have the same plain tensors. With None, each computes all.
        dtype: The dtype in which matrices and results are sent.

    Returns:
        Batches, each with the parts of its results that this process has.
    """
    alike: dict[Any, list[Batch]] = {}
    for batch in batches:
        first: Any = values[batch.indices[0]]
        kind = (getattr(first, "device_mesh", None), getattr(first, "placements", None))
        alike.setdefault(kind, []).append(batch)
    for (mesh, placements), found in alike.items():
        if mesh is None and (group is None or values[found[0].indices[0]].is_meta):
            yield from _alone(values, found, compute)
        elif mesh is None:
            yield from _broadcast(values, found, compute, group, dtype)
        elif rows := _group_of_rows(mesh, placements):
            yield from _transposed(values, found, compute, rows, dtype)
        else:
            yield from _gathered(values, found, compute)


def _alone(
    values: Sequence[Tensor] | Mapping[int, Tensor], batches: Sequence[Batch], compute: Compute
) -> Results:
    """Compute all."""
    for batch in batches:
        yield batch, compute([values[i] for i in batch.indices])


def _broadcast(
    values: Sequence[Tensor],
    batches: Sequence[Batch],
    compute: Compute,
    group: Any,
    dtype: torch.dtype,
) -> Results:
    """Compute this process's batches, and send the results to all others: one message per owner."""
    owners, rank = _divide(batches, dist.get_world_size(group)), dist.get_rank(group)
    own = [tensor for _, found in _alone(values, owners[rank], compute) for tensor in found]
    for owner, theirs in enumerate(owners):
        shapes = [values[i].shape for i in _indices(theirs)]
        flat = torch.empty(sum(map(torch.Size.numel, shapes)), dtype=dtype, device=values[0].device)
        if owner == rank:
            _fill(flat, own)
        if len(flat):
            dist.broadcast(flat, group_src=owner, group=group)
        yield from _by_batch(theirs, _split(flat, shapes))


def _transposed(
    values: Sequence[Tensor],
    batches: Sequence[Batch],
    compute: Compute,
    group: Any,
    dtype: torch.dtype,
) -> Results:
    """Send rows to the owners of their matrices, and the rows of the results back."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    owners = _divide(batches, size)
    indices = [_indices(theirs) for theirs in owners]
    parts = {i: local_part(values[i]) for i in _indices(batches)}
    bounds = {i: _bounds(len(values[i]), size) for i in parts}

    def shapes(some: Sequence[int], of: int) -> list[torch.Size]:
        rows = ((bounds[i][of + 1] - bounds[i][of], i) for i in some)
        return [torch.Size((count, *values[i].shape[1:])) for count, i in rows]

    def exchange(sent: list[list[Tensor]], kinds: list[list[torch.Size]]) -> list[list[Tensor]]:
        device = parts[next(iter(parts))].device
        return _all_to_all(sent, kinds, group, dtype, device)

    received = exchange(
        [[parts[i] for i in theirs] for theirs in indices],
        [shapes(indices[rank], of) for of in range(size)],
    )
    rows_of = zip(*received, strict=True)
    own = {i: torch.cat(rows) for i, rows in zip(indices[rank], rows_of, strict=True)}
    results = [tensor for _, found in _alone(own, owners[rank], compute) for tensor in found]
    numbered = list(zip(indices[rank], results, strict=True))
    returned = exchange(
        [[one[bounds[i][to] : bounds[i][to + 1]] for i, one in numbered] for to in range(size)],
        [shapes(theirs, rank) for theirs in indices],
    )
    for theirs, found in zip(owners, returned, strict=True):
        yield from _by_batch(theirs, found)


def _gathered(values: Sequence[Tensor], batches: Sequence[Batch], compute: Compute) -> Results:
    """Compute all on every process, if matrices are divided in another way than by rows."""
    for batch in batches:
        matrices = [values[i] for i in batch.indices]
        results = compute([whole(matrix) for matrix in matrices])
        pairs = zip(results, matrices, strict=True)
        yield batch, [local_part(sharded_like(result, tensor)) for result, tensor in pairs]


def _group_of_rows(mesh: Any, placements: Any) -> Any:
    """Return the processes among which the rows of a `DTensor`, and nothing else, are divided."""
    divided = [dim for dim, one in enumerate(placements) if not one.is_replicate()]
    if len(divided) != 1:
        return None
    placement = placements[divided[0]]
    by_rows = type(placement).__name__ == "Shard" and placement.dim == 0
    return mesh.get_group(divided[0]) if by_rows else None


def _divide(batches: Sequence[Batch], size: int) -> list[list[Batch]]:
    """Divide batches among processes: the most expensive first, each to the one with the least."""
    owners: list[list[Batch]] = [[] for _ in range(size)]
    costs = [0.0] * size
    for batch in sorted(batches, key=lambda one: -one.cost):
        owner = costs.index(min(costs))
        owners[owner].append(batch)
        costs[owner] += batch.cost
    return owners


def _bounds(rows: int, size: int) -> list[int]:
    """Return where the rows of each process begin, as in a `DTensor`, and where the last end."""
    step = -(-rows // size)
    return [min(step * rank, rows) for rank in range(size + 1)]


def _indices(batches: Sequence[Batch]) -> list[int]:
    return [i for batch in batches for i in batch.indices]


def _by_batch(batches: Sequence[Batch], results: Sequence[Tensor]) -> Results:
    remaining = iter(results)
    for batch in batches:
        yield batch, [next(remaining) for _ in batch.indices]


# --- messages ---


def _all_to_all(
    sent: list[list[Tensor]],
    shapes: list[list[torch.Size]],
    group: Any,
    dtype: torch.dtype,
    device: torch.device,
) -> list[list[Tensor]]:
    """Send tensors to each process, and return each process's, of known shapes: one message."""
    lengths = [sum(tensor.numel() for tensor in row) for row in sent]
    counts = [sum(map(torch.Size.numel, row)) for row in shapes]
    flat = torch.empty(sum(lengths), dtype=dtype, device=device)
    _fill(flat, [tensor for row in sent for tensor in row])
    received = torch.empty(sum(counts), dtype=dtype, device=device)
    dist.all_to_all_single(received, flat, counts, lengths, group=group)
    pairs = zip(torch.split(received, counts), shapes, strict=True)
    return [_split(tensor, row) for tensor, row in pairs]


def _split(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _fill(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy tensors into a flat one, one after another."""
    for part, tensor in zip(_split(flat, [one.shape for one in tensors]), tensors, strict=True):
        part.copy_(tensor)
