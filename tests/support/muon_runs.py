"""Steps of Muon on several processes: functions that those processes import."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from composable._support.dtensors import sharded_like
from composable.distributed.starting import join_processes
from composable.optim import Muon, muon, muon_groups

STEPS = 3


def matrices() -> nn.Module:
    """Build a model with equal, stacked and uneven matrices, one with a row, and a convolution."""
    torch.manual_seed(0)
    blocks = [nn.Linear(6, 6, bias=False) for _ in range(3)]
    others = [nn.Linear(6, 9), nn.Linear(9, 1), nn.Linear(1, 5), nn.MultiheadAttention(6, 2)]
    return nn.Sequential(*blocks, *others, nn.Conv1d(6, 7, 3), nn.Linear(7, 3))


class Experts(nn.Module):
    """Five experts in one parameter, before the last layer of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4, 6))


@contextmanager
def counted_messages() -> Iterator[list[str]]:
    """Yield the names of the collectives that are called in the block."""
    names, found = ("all_to_all_single", "broadcast", "all_reduce", "all_gather"), []
    saved = {name: getattr(dist, name) for name in names}

    def counting(name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            found.append(name)
            return saved[name](*args, **options)

        return call

    try:
        for name in names:
            setattr(dist, name, counting(name))
        yield found
    finally:
        for name in names:
            setattr(dist, name, saved[name])


def steps(how: str, dtype: str, *, experts: bool = False, **options: Any) -> dict[str, Any]:
    """Step with given gradients, and return the parameters, the messages and the work.

    Args:
        how: "copies", whose work is shared; "rows", "hybrid" or "columns" of a sharded model.
        dtype: The dtype in which matrices are orthogonalized.
        experts: Whether the model has experts, too.
        options: Arguments of Muon.
    """
    processes = join_processes()
    model = matrices()
    if experts:
        model.insert(0, Experts())
    if how != "copies" and processes.several:
        _shard(model, how, processes.size)
    optimizer = Muon(
        muon_groups(model, stacked={"*.in_proj_weight": 3}),
        lr=0.02,
        dtype=getattr(torch, dtype),
        process_group="default" if how == "copies" and processes.several else None,
        **options,
    )
    generator = torch.Generator().manual_seed(1)
    spy = mock.patch.object(muon, "iterate", wraps=muon.iterate)
    with counted_messages() as found, spy as iterate:
        for _ in range(STEPS):
            for p in model.parameters():
                p.grad = sharded_like(torch.randn(p.shape, generator=generator), p)
            optimizer.step()
    work = sum(call.args[0].numel() for call in iterate.call_args_list)
    whole = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
    return {"weights": [one.tolist() for one in whole], "messages": found, "work": work}


def _shard(model: nn.Module, how: str, size: int) -> None:
    hybrid = how == "hybrid"
    shape, names = ((2, size // 2), ("copies", "rows")) if hybrid else ((size,), ("rows",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)

    def columns(p: nn.Parameter) -> Shard | None:
        even = p.ndim == 2 and p.shape[1] % size == 0
        return Shard(1) if how == "columns" and even else None

    fully_shard(model, mesh=mesh, shard_placement_fn=columns)
