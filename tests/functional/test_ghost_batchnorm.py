"""Ghost batch normalization: a slice is normalized as torch normalizes a batch."""

import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm
from torch.testing import assert_close

from composable.functional import GhostBatchNorm2d, ghost_batchnorm
from tests.support.tensors import randn, seeded

NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def norm(dims=2, channels=3, **options):
    layer = NORMS[dims](channels, **options)
    if layer.affine:
        nn.init.uniform_(layer.weight, 0.5, 2, generator=seeded(1))
        nn.init.uniform_(layer.bias, -1, 1, generator=seeded(2))
    return layer


def slices(x, size):
    """Slice a batch: the last slice is shorter, or joins the one before if it has one value."""
    parts = list(x.split(size))
    if len(parts) > 1 and parts[-1][:, 0].numel() == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def one_by_one(layer, x, size):
    parts = slices(x, size)
    return torch.cat([batch_norm(p, None, None, layer.weight, layer.bias, True) for p in parts])


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13])
@pytest.mark.parametrize(("dims", "size"), [(1, ()), (1, (2,)), (2, (2, 2)), (3, (2, 2, 2))])
def test_each_slice_is_normalized_by_itself(dims, size, batch):
    if batch == 1 and not size:
        return  # a single value has no variance
    x = randn(batch, 3, *size)

    for layer in (norm(dims), norm(dims, affine=False)):
        new = ghost_batchnorm(layer, ghost_batch_size=4)
        assert_close(new(x), one_by_one(layer, x, 4))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_slice_equals_batch_norm_exactly(momentum):
    layer, x = norm(momentum=momentum), randn(6, 3, 2, 2)
    new = ghost_batchnorm(layer, ghost_batch_size=6)

    for _ in range(3):
        assert torch.equal(new(x), layer(x))
    for name, tensor in layer.state_dict().items():
        assert torch.equal(new.state_dict()[name], tensor)


@pytest.mark.parametrize("dims", [1, 2])
def test_running_statistics_are_weighted_averages_of_the_slices(dims):
    layer, x = norm(dims, momentum=0.3), randn(11, 3, *[5] * dims)
    parts = [part.transpose(0, 1).flatten(1) for part in x.split(4)]
    shares = torch.tensor([4, 4, 3]) / 11
    mean = sum(share * part.mean(1) for share, part in zip(shares, parts, strict=True))
    var = sum(share * part.var(1) for share, part in zip(shares, parts, strict=True))

    new = ghost_batchnorm(layer, ghost_batch_size=4)
    new(x)

    assert_close(new.running_mean, 0.3 * mean)
    assert_close(new.running_var, 0.7 + 0.3 * var)
    assert new.num_batches_tracked == 1
    assert_close(mean, x.transpose(0, 1).flatten(1).mean(1))  # the mean is that of the batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_running_mean_without_momentum_is_the_plain_average(dtype):
    new = ghost_batchnorm(norm(momentum=None).to(dtype), ghost_batch_size=2)
    batches = [randn(4, 3, 2, 2, dtype=dtype) + shift for shift in (0, 1, 5)]

    for batch in batches:
        new(batch)

    mean = torch.stack([batch.mean((0, 2, 3)) for batch in batches]).mean(0)
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {}
    assert_close(new.running_mean, mean, **tolerance)


@pytest.mark.parametrize("batch", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_evaluation_equals_batch_norm_at_any_batch_size(batch, momentum):
    layer = norm(momentum=momentum)
    layer(randn(8, 3, 2, 2))
    layer.eval()
    x = randn(batch, 3, 2, 2)

    assert torch.equal(ghost_batchnorm(layer, ghost_batch_size=4)(x), layer(x))


def test_evaluation_without_running_statistics_uses_slices():
    layer, x = norm(track_running_stats=False), randn(8, 3, 2, 2)

    new = ghost_batchnorm(layer, ghost_batch_size=4).eval()

    assert_close(new(x), one_by_one(layer, x, 4))


def test_takes_half_precision_inputs_with_float32_parameters():
    layer, x = norm(), randn(8, 3, 2, 2, dtype=torch.bfloat16)
    new = ghost_batchnorm(layer, ghost_batch_size=4)

    assert new(x).dtype == layer(x).dtype
    assert new.running_mean.dtype == torch.float32


def test_rejects_slices_of_a_single_value():
    new = ghost_batchnorm(norm(1), ghost_batch_size=1)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        new(randn(3, 3))
    assert new(randn(3, 3, 2)).shape == (3, 3, 2)


def test_other_normalizations_are_not_replaced():
    others = [nn.SyncBatchNorm(3), nn.InstanceNorm2d(3), nn.GroupNorm(1, 3)]
    new = ghost_batchnorm(nn.Sequential(nn.BatchNorm2d(3), *others))

    assert [type(layer) for layer in new] == [GhostBatchNorm2d, *map(type, others)]


def test_number_of_operations_on_other_devices_does_not_depend_on_slices():
    calls = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    new = ghost_batchnorm(norm(), ghost_batch_size=2).to("meta")
    counts = []
    for batch in (4, 64):
        calls.clear()
        with Count():
            new(torch.empty(batch, 3, 2, 2, device="meta"))
        counts.append(len(calls))

    assert counts[0] == counts[1]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("batch", [8, 9, 11])
def test_loop_over_slices_equals_one_operation_exactly(batch, affine, monkeypatch):
    module = sys.modules["composable.functional.ghost_batchnorm"]
    x, results = randn(batch, 3, 5, 5), []
    assert module._one_by_one(x)
    for one_by_one in (True, False):
        monkeypatch.setattr(module, "_one_by_one", lambda _, chosen=one_by_one: chosen)
        inputs = x.clone().requires_grad_()
        new = ghost_batchnorm(norm(affine=affine), ghost_batch_size=4)
        outputs = new(inputs)
        outputs.backward(x.flip(0))
        results.append([outputs, inputs.grad, *new.buffers()])
        results[-1] += [parameter.grad.clone() for parameter in new.parameters()]

    for ours, other in zip(*results, strict=True):
        assert torch.equal(ours, other)


@pytest.mark.parametrize("size", [0, 2.5])
@pytest.mark.usefixtures("unchecked")
def test_layer_rejects_invalid_slice_size(size):
    with pytest.raises((TypeError, ValueError), match=f"ghost_batch_size={size} must be"):
        GhostBatchNorm2d(3, ghost_batch_size=size)
