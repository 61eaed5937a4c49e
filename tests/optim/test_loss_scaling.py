"""Loss scaling, against PyTorch's gradient scaler."""

from functools import partial

import pytest
import torch

from composable.optim.loss_scaling import unscale_, update_scale

ONE = torch.tensor(1.0)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finds_a_gradient_that_is_not_finite(value, dtype):
    gradients = [torch.ones(3, dtype=dtype), torch.tensor([1.0, value], dtype=dtype)]

    assert unscale_(gradients, ONE) == 1
    assert unscale_(gradients[:1], ONE) == 0
    assert unscale_([], ONE) == 0


def test_unscales_gradients_of_several_dtypes_in_place():
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    gradients = [torch.full((2, 3), 6.0, dtype=dtype) for dtype in kinds]
    unscale_(gradients, torch.tensor(4.0))

    for gradient, dtype in zip(gradients, kinds, strict=True):
        torch.testing.assert_close(gradient, torch.full((2, 3), 1.5, dtype=dtype), rtol=0, atol=0)


def test_unscales_a_sparse_gradient_whose_sum_overflows():
    indices = torch.zeros(1, 2, dtype=torch.long)
    sparse = partial(torch.sparse_coo_tensor, indices, size=(4,), check_invariants=True)
    gradient = sparse(torch.full((2,), 6e4).half())

    assert unscale_([gradient], ONE) == 1
    small = sparse(torch.full((2,), 2.0))
    assert unscale_([small], torch.tensor(4.0)) == 0
    assert small.to_dense()[0] == 1


@pytest.mark.parametrize("overflows", ["", "0", "2", "0123456789", "02468"])
@pytest.mark.parametrize(("growth", "backoff", "interval"), [(2.0, 0.5, 3), (1.7, 0.3, 1)])
def test_scale_is_that_of_the_gradient_scaler(overflows, growth, backoff, interval):
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler(
        "cpu", growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    scaler.scale(ONE)
    scale, streak = torch.tensor(65536.0), 0
    for step in range(10):
        overflow = str(step) in overflows
        weight.grad = torch.full((1,), torch.inf if overflow else 1.0)
        scaler.step(optimizer)
        scaler.update()
        scale, streak = update_scale(
            scale,
            streak,
            overflow=overflow,
            growth_factor=growth,
            backoff_factor=backoff,
            growth_interval=interval,
        )

        assert (scale.item(), streak) == (scaler.get_scale(), scaler._get_growth_tracker())


def test_scale_stays_finite():
    largest = torch.tensor(2.0**127)

    assert update_scale(largest, 0, overflow=False, growth_interval=1) == (largest, 0)
