"""`NoSync` raises for operations that wait for the device, and for no other."""

import pytest
import torch

from composable.testing import HostSyncError, NoSync

WAITING = {
    "item": lambda t: t.sum().item(),
    "bool": lambda t: bool(t.sum()),
    "int": lambda t: int(t.sum()),
    "float": lambda t: float(t.sum()),
    "tolist": torch.Tensor.tolist,
    "cpu": torch.Tensor.cpu,
    "numpy": torch.Tensor.numpy,
    "an index": lambda t: [0, 1, 2][t.sum().long() * 0],
    "a branch": lambda t: 1 if t.sum() > 0 else 0,
    "nonzero": torch.nonzero,
    "argwhere": torch.argwhere,
    "where with one argument": lambda t: torch.where(t > 0),
    "masked_select": lambda t: t.masked_select(t > 0),
    "indexing by a mask": lambda t: t[t > 0],
    "writing by a mask": lambda t: t.clone().__setitem__(t > 0, torch.zeros(2)),
    "unique": torch.unique,
    "equal": lambda t: torch.equal(t, t + 0),
    "allclose": lambda t: torch.allclose(t, t + 0),
    "repeat_interleave": lambda t: t.repeat_interleave(torch.tensor([1, 2])),
    "bincount": lambda t: t.long().abs().bincount(),
    "new_tensor": lambda t: t.new_tensor([1.0]),
    "tensor": lambda t: torch.tensor([1.0], device=t.device),
    "indexing by a list": lambda t: t[[0, 1]],
    "indexing by lists": lambda t: t[:, None][[0, 1], [0, 0]],
    "a copy": lambda t: t.to("meta"),
    "a copy to memory": lambda t: t.to("meta", non_blocking=True).copy_(t),
    "an index on the CPU": lambda t: torch.zeros(2, device="meta")[t.long()],
}
NOT_WAITING = [
    lambda t: t.shape[0] > 1,
    lambda t: t[torch.tensor([1, 0])],
    lambda t: torch.where(t > 0, t, 0.0),
    lambda t: t.repeat_interleave(torch.tensor([1, 2]), output_size=3),
    lambda t: t.masked_fill(t > 0, 0.0).topk(1),
    lambda t: torch.tensor([1.0]).to("meta", non_blocking=True).copy_(t[0], True),
    lambda t: torch.tensor([1.0], device="cpu"),
    lambda t: torch.as_tensor(t, device=t.device),
    lambda t: torch.full((2,), 0.5, device=t.device),
]


@pytest.mark.parametrize("waits", WAITING.values(), ids=WAITING)
def test_raises_for_an_operation_that_waits_until_the_block_ends(waits):
    with pytest.raises(HostSyncError, match="would make the host wait for the device"), NoSync():
        waits(torch.tensor([1.0, 2.0]))
    waits(torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("does_not_wait", NOT_WAITING)
def test_does_not_raise_for_other_operations(does_not_wait):
    with NoSync():
        does_not_wait(torch.tensor([1.0, 2.0]))
