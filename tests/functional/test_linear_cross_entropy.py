"""Linear cross-entropy: equal to a linear layer and the cross-entropy of torch."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear
from torch.testing import assert_close

import composable.functional as F
from tests.support.runs import make_trainer

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


def both(chunk_size, tensors, targets, softcap=None, **options):
    """Return loss and gradients of a weighted sum: those of the function, and those of torch."""
    x, weight, bias = tensors
    ours = F.linear_cross_entropy(
        x, weight, targets, bias=bias, chunk_size=chunk_size, softcap=softcap, **options
    )
    theirs = cross_entropy(capped(linear(x, weight, bias), softcap), targets, **options)
    needed = [t for t in tensors if t is not None]
    results = []
    for loss in (ours, theirs):
        shares = torch.arange(1.0, loss.numel() + 1, dtype=loss.dtype).reshape(loss.shape)
        results.append((loss, torch.autograd.grad((loss * shares).sum(), needed)))
    return results


@pytest.mark.parametrize("chunk_size", [1, 3, 10, 99])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("bias", "softcap"), [(False, None), (True, None), (True, 1.5)])
def test_equals_the_loss_of_all_logits(chunk_size, reduction, label_smoothing, bias, softcap):
    ours, theirs = both(
        chunk_size,
        *arguments(bias=bias),
        softcap=softcap,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )

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

    def loss(x, weight, bias):
        return F.linear_cross_entropy(x, weight, targets, bias=bias, chunk_size=4, softcap=softcap)

    assert torch.autograd.gradgradcheck(loss, tensors)


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
    (x, weight, bias), targets = arguments(dtype)
    (ours, grads), _ = both(1, (x, weight, bias), targets)
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    (_, expected), _ = both(1, exact, targets)

    assert ours.dtype == dtype
    assert [g.dtype for g in grads] == [dtype] * 3
    for grad, right in zip(grads, expected, strict=True):
        assert_close(grad.double(), right, rtol=2e-2, atol=2e-2)


def test_autocast_is_that_of_torch():
    tensors, targets = arguments(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        (ours, grads), (theirs, expected) = both(4, tensors, targets)

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


class Scored(nn.Module):
    """A model that returns hidden states, and defines its loss."""

    def __init__(self, chunked):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head, self.chunked = nn.Linear(4, 5), nn.Linear(5, 3), chunked

    def forward(self, batch):
        return self.hidden(batch[0]).relu()

    def loss(self, outputs, batch):
        if self.chunked:
            return F.linear_cross_entropy(
                outputs, self.head.weight, batch[1], bias=self.head.bias, chunk_size=3
            )
        return cross_entropy(self.head(outputs), batch[1])


def test_model_that_defines_its_loss_trains_as_with_all_logits():
    chunked, plain = (
        make_trainer(Scored(which), loss_fn=None).fit().model.state_dict()
        for which in (True, False)
    )

    assert_close(chunked, plain)
    assert not torch.equal(chunked["head.weight"], Scored(True).head.weight)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inputs": torch.zeros(3)}, r"inputs must be \[..., features\], .* inputs \(3,\)"),
        ({"weight": torch.zeros(2, 5)}, r"weight \(2, 5\)"),
        ({"targets": torch.zeros(3, 1).long()}, r"targets \(3, 1\)"),
        ({"bias": torch.zeros(3)}, r"bias \(3,\)"),
        ({"targets": torch.zeros(3)}, "targets must be class indices of an integer dtype"),
        ({"weight": torch.zeros(2, 4).long()}, "weight must have a floating-point dtype"),
    ],
)
def test_rejects_shapes_and_dtypes_that_do_not_match(given, message, unchecked):
    valid = {"inputs": torch.zeros(3, 4), "weight": torch.zeros(2, 4)}
    with pytest.raises(ValueError, match=message):
        F.linear_cross_entropy(**{**valid, "targets": torch.zeros(3).long(), **given})


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
            changed = [*given]
            for i, one in zip(which, some, strict=True):
                changed[i] = one
            return loss(*changed)

        return torch.func.jvp(of, tuple(given[i] for i in which), tuple(tangents))

    ours = along(
        lambda x, weight, bias: F.linear_cross_entropy(
            x,
            weight,
            targets,
            bias=bias,
            label_smoothing=label_smoothing,
            softcap=softcap,
            chunk_size=4,
        )
    )
    theirs = along(
        lambda x, weight, bias: cross_entropy(
            capped(linear(x, weight, bias), softcap), targets, label_smoothing=label_smoothing
        )
    )

    assert_close(ours, theirs)


def test_hessian_is_that_of_all_logits():
    (x, weight, bias), targets = arguments()
    x, bias = x.detach(), bias.detach()

    ours, theirs = (
        torch.func.hessian(loss)(weight.detach())
        for loss in (
            lambda w: F.linear_cross_entropy(x, w, targets, bias=bias, chunk_size=4),
            lambda w: cross_entropy(linear(x, w, bias), targets),
        )
    )

    assert_close(ours, theirs)
