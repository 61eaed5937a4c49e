"""Linear cross-entropy: equal to a linear layer and the cross-entropy of torch."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear
from torch.testing import assert_close

import composable.functional as F

ROWS, FEATURES, CLASSES = 10, 6, 7


def arguments(dtype=torch.float64, *, bias=True, ignored=True):
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=dtype)
    targets = torch.arange(ROWS) % CLASSES
    if ignored:
        targets[[0, 4, 9]] = -100
    tensors = [draw(ROWS, FEATURES), draw(CLASSES, FEATURES), draw(CLASSES) if bias else None]
    return [t if t is None else t.requires_grad_() for t in tensors], targets


def capped(logits, softcap):
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def losses(targets, *, softcap=None, chunk_size=4, **options):
    """Return the loss of the function, and that of torch, as functions of the tensors."""

    def ours(x, weight, bias=None):
        how = {"bias": bias, "softcap": softcap, "chunk_size": chunk_size}
        return F.linear_cross_entropy(x, weight, targets, **how, **options)

    def theirs(x, weight, bias=None):
        return cross_entropy(capped(linear(x, weight, bias), softcap), targets, **options)

    return ours, theirs


def both(tensors, targets, **options):
    """Return loss and gradients of a weighted sum: those of the function, and those of torch."""
    needed = [t for t in tensors if t is not None]
    results = []
    for function in losses(targets, **options):
        loss = function(*tensors)
        shares = torch.arange(1.0, loss.numel() + 1, dtype=loss.dtype).reshape(loss.shape)
        results.append((loss, torch.autograd.grad((loss * shares).sum(), needed)))
    return results


@pytest.mark.parametrize("chunk_size", [1, 3, 10, 99])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("bias", "softcap"), [(False, None), (True, None), (True, 1.5)])
def test_equals_the_loss_of_all_logits(chunk_size, reduction, label_smoothing, bias, softcap):
    options = {"reduction": reduction, "label_smoothing": label_smoothing, "softcap": softcap}

    ours, theirs = both(*arguments(bias=bias), chunk_size=chunk_size, **options)

    assert_close(ours, theirs)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_equals_that_of_torch_in_chunks(label_smoothing):
    if not hasattr(nn, "LinearCrossEntropyOptions"):
        pytest.skip("this torch has no linear_cross_entropy")
    (x, weight, bias), targets = arguments()
    ours = F.linear_cross_entropy(x, weight, targets, bias=bias, label_smoothing=label_smoothing)

    theirs = torch.nn.functional.linear_cross_entropy(
        x, weight, targets, linear_bias=bias, label_smoothing=label_smoothing
    )

    assert_close(ours, theirs)


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_second_derivatives_are_those_of_all_logits(softcap):
    tensors, targets = arguments()
    ours, _ = losses(targets, softcap=softcap)

    assert torch.autograd.gradgradcheck(ours, tensors)


def test_rows_without_a_label_change_nothing():
    (x, weight, bias), targets = arguments()
    some = targets != -100
    call = partial(F.linear_cross_entropy, bias=bias, chunk_size=3)

    assert_close(call(x, weight, targets), call(x[some], weight, targets[some]))
    assert call(x, weight, torch.full_like(targets, -100)).isnan()
    other = torch.where(some, targets, 4)  # no label is 4
    assert_close(call(x, weight, other, ignore_index=4), call(x[some], weight, targets[some]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_sums_chunks_in_float32(dtype):
    tensors, targets = arguments(dtype)
    (ours, grads), _ = both(tensors, targets, chunk_size=1)
    exact = [t.detach().double().requires_grad_() for t in tensors]
    (_, expected), _ = both(exact, targets, chunk_size=1)

    assert ours.dtype == dtype
    assert [g.dtype for g in grads] == [dtype] * 3
    for grad, right in zip(grads, expected, strict=True):
        assert_close(grad.double(), right, rtol=2e-2, atol=2e-2)


def test_autocast_is_that_of_torch():
    with torch.autocast("cpu", torch.bfloat16):
        (ours, grads), (theirs, expected) = both(*arguments(torch.float32))

    assert ours.dtype == theirs.dtype == torch.float32
    assert_close(ours, theirs)
    assert_close(grads, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("softcap", [None, 15.0])
def test_no_tensor_of_all_logits_is_made(softcap):
    x, weight = torch.randn(4000, 4), torch.randn(50, 4)
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            made = result if isinstance(result, (tuple, list)) else [result]
            largest = max(largest, *(t.numel() for t in made if isinstance(t, torch.Tensor)), 0)
            return result

    x.requires_grad_()
    with Largest():
        F.linear_cross_entropy(
            x, weight, torch.arange(4000) % 50, chunk_size=100, softcap=softcap
        ).backward()

    assert largest == x.numel()


@pytest.mark.parametrize("low", ["inputs", "weight", "bias"])
def test_dtypes_that_differ_are_promoted_as_by_torch(low):
    (x, weight, bias), targets = arguments(torch.float32)
    named = {"inputs": x, "weight": weight, "bias": bias}
    mixed = {**named, low: named[low].detach().bfloat16().requires_grad_()}
    exact = {name: one.detach().float().requires_grad_() for name, one in mixed.items()}

    ours, theirs = (
        (loss, torch.autograd.grad(loss, list(given.values())))
        for given in (mixed, exact)
        for loss in [F.linear_cross_entropy(**given, targets=targets, chunk_size=3)]
    )

    assert ours[0].dtype == torch.float32
    assert_close(ours[0], theirs[0])
    for name, grad, right in zip(mixed, ours[1], theirs[1], strict=True):
        assert grad.dtype == mixed[name].dtype
        assert_close(grad.float(), right, rtol=1e-2, atol=1e-2)


def test_loss_on_the_device_meta_has_a_shape():
    x, weight, targets = torch.zeros(5, 4), torch.zeros(3, 4), torch.zeros(5).long()

    losses = F.linear_cross_entropy(
        *(one.to("meta") for one in (x, weight, targets)), reduction="none", chunk_size=2
    )

    assert (losses.device.type, losses.shape) == ("meta", (5,))


@pytest.mark.parametrize(("label_smoothing", "softcap"), [(0.0, None), (0.3, None), (0.3, 1.5)])
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1, 2)])
def test_forward_mode_is_that_of_all_logits(label_smoothing, softcap, which):
    tensors, targets = arguments()
    given = [tensor.detach() for tensor in tensors]
    draw = torch.Generator().manual_seed(1)
    tangents = [torch.randn(given[i].shape, generator=draw, dtype=torch.float64) for i in which]

    def along(loss):
        def of(*some):
            return loss(*(dict(zip(which, some, strict=True)).get(i, given[i]) for i in range(3)))

        return torch.func.jvp(of, tuple(given[i] for i in which), tuple(tangents))

    ours, theirs = map(along, losses(targets, label_smoothing=label_smoothing, softcap=softcap))

    assert_close(ours, theirs)


def test_hessian_is_that_of_all_logits():
    (x, weight, bias), targets = arguments()

    ours, theirs = (
        torch.func.hessian(lambda w, loss=loss: loss(x.detach(), w, bias.detach()))(weight.detach())
        for loss in losses(targets)
    )

    assert_close(ours, theirs)
