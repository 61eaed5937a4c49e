"""The laws of ghost batch normalisation: a slice is normalised as a batch is by torch's own."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.nn.functional import batch_norm
from torch.testing import assert_close

from composable.functional import GhostBatchNorm2d, ghost_batchnorm

NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def norm(dims=2, channels=3, **options):
    layer = NORMS[dims](channels, **options)
    if layer.affine:
        nn.init.uniform_(layer.weight, 0.5, 2, generator=torch.Generator().manual_seed(1))
        nn.init.uniform_(layer.bias, -1, 1, generator=torch.Generator().manual_seed(2))
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


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 8, 9, 11, 12])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_every_slice_is_normalised_by_itself(dims, batch):
    layer, x = norm(dims), randn(batch, 3, *[2] * dims)

    new = ghost_batchnorm(layer, ghost_batch_size=4)

    assert_close(new(x), one_by_one(layer, x, 4))


@pytest.mark.parametrize("batch", [2, 4, 5, 6, 8, 9, 13])
def test_vectors_are_sliced_and_a_last_single_one_joins_the_slice_before(batch):
    layer, x = norm(1), randn(batch, 3)

    assert_close(ghost_batchnorm(layer, ghost_batch_size=4)(x), one_by_one(layer, x, 4))


def test_an_affine_map_is_not_needed():
    layer, x = norm(affine=False), randn(6, 3, 2, 2)

    assert_close(ghost_batchnorm(layer, ghost_batch_size=4)(x), one_by_one(layer, x, 4))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_slice_is_the_batch_norm_to_the_bit(momentum):
    layer, x = norm(momentum=momentum), randn(6, 3, 2, 2)
    new = ghost_batchnorm(layer, ghost_batch_size=6)

    for _ in range(3):
        assert torch.equal(new(x), layer(x))
    for name, tensor in layer.state_dict().items():
        assert torch.equal(new.state_dict()[name], tensor)


@pytest.mark.parametrize("dims", [1, 2])
def test_running_statistics_follow_the_weighted_average_of_the_slices(dims):
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
def test_without_a_momentum_they_are_the_plain_average(dtype):
    new = ghost_batchnorm(norm(momentum=None).to(dtype), ghost_batch_size=2)
    batches = [randn(4, 3, 2, 2, dtype=dtype) + shift for shift in (0, 1, 5)]

    for batch in batches:
        new(batch)

    mean = torch.stack([batch.mean((0, 2, 3)) for batch in batches]).mean(0)
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {}
    assert_close(new.running_mean, mean, **tolerance)
    assert new.num_batches_tracked == 3


@pytest.mark.parametrize("batch", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_evaluation_is_that_of_the_batch_norm_at_any_batch_size(batch, momentum):
    layer = norm(momentum=momentum)
    layer(randn(8, 3, 2, 2))
    layer.eval()
    x = randn(batch, 3, 2, 2)

    assert torch.equal(ghost_batchnorm(layer, ghost_batch_size=4)(x), layer(x))


def test_without_running_statistics_evaluation_slices_too():
    layer, x = norm(track_running_stats=False), randn(8, 3, 2, 2)
    new = ghost_batchnorm(layer, ghost_batch_size=4)

    assert torch.equal(copy.deepcopy(new).eval()(x), new(x))
    assert_close(new(x), one_by_one(layer, x, 4))


def test_slices_of_a_single_value_have_no_variance():
    new = ghost_batchnorm(norm(1), ghost_batch_size=1)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        new(randn(3, 3))
    assert new(randn(3, 3, 2)).shape == (3, 3, 2)


def test_half_inputs_meet_full_parameters_as_in_mixed_precision():
    layer, x = norm(), randn(8, 3, 2, 2, dtype=torch.bfloat16)
    new = ghost_batchnorm(layer, ghost_batch_size=4)

    assert new(x).dtype == layer(x).dtype
    assert new.running_mean.dtype == torch.float32


def test_gradients_are_those_of_the_slices():
    layer, x = norm().double(), randn(6, 3, 2, 2, dtype=torch.float64).requires_grad_()
    new = ghost_batchnorm(layer, ghost_batch_size=4)

    assert gradcheck(lambda x: copy.deepcopy(new)(x), x)
    got = torch.autograd.grad(new(x).square().sum(), [x, new.weight, new.bias])
    expected = torch.autograd.grad(
        one_by_one(layer, x, 4).square().sum(), [x, layer.weight, layer.bias]
    )
    assert_close(got, expected)


def test_only_torchs_own_batch_norms_are_replaced():
    class Activated(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    class Named(nn.BatchNorm2d):
        pass

    others = [Activated(3), nn.SyncBatchNorm(3), nn.InstanceNorm2d(3), nn.GroupNorm(1, 3)]
    new = ghost_batchnorm(nn.Sequential(Named(3), *others))

    assert isinstance(new[0], Named)
    assert isinstance(new[0], GhostBatchNorm2d)
    assert [type(layer) for layer in new[1:]] == [type(layer) for layer in others]


def test_a_layer_built_by_hand_is_that_of_the_surgery():
    by_hand, x = GhostBatchNorm2d(3, eps=0.1, ghost_batch_size=2), randn(5, 3, 2, 2)
    new = ghost_batchnorm(nn.BatchNorm2d(3, eps=0.1), ghost_batch_size=2)

    assert torch.equal(by_hand(x), new(x))
    assert "eps=0.1" in repr(new)
    assert "ghost_batch_size=2" in repr(new)


def test_slices_are_one_operation_on_other_devices_however_many():
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
def test_slices_one_by_one_are_those_of_one_operation_to_the_bit(batch, affine, monkeypatch):
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


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ValueError, "ghost_batch_size=0 must be at least 1"),
        (2.5, TypeError, "ghost_batch_size=2.5 must be an integer"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_slice_has_examples(size, error, message):
    with pytest.raises(error, match=message):
        ghost_batchnorm(norm(), ghost_batch_size=size)
    with pytest.raises(error, match=message):
        GhostBatchNorm2d(3, ghost_batch_size=size)
