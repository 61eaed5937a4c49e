"""Steps of Muon on several processes: functions that those processes import."""

from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from composable._support.dtensors import sharded_like, whole
from composable.distributed.starting import join_processes
from composable.optim import Muon, muon, muon_groups
from tests.support.parallel_messages import Messages

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
    with Messages() as messages, spy as iterate:
        for _ in range(STEPS):
            for p in model.parameters():
                p.grad = sharded_like(torch.randn(p.shape, generator=generator), p)
            optimizer.step()
    work = sum(call.args[0].numel() for call in iterate.call_args_list)
    weights = [whole(p).tolist() for p in model.parameters()]
    return {"weights": weights, "messages": dict(messages.counts), "work": work}


def _shard(model: nn.Module, how: str, size: int) -> None:
    hybrid = how == "hybrid"
    shape, names = ((2, size // 2), ("copies", "rows")) if hybrid else ((size,), ("rows",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)

    def columns(p: nn.Parameter) -> Shard | None:
        even = p.ndim == 2 and p.shape[1] % size == 0
        return Shard(1) if how == "columns" and even else None

    fully_shard(model, mesh=mesh, shard_placement_fn=columns)
