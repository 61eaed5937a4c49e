"""Gradient clipping takes tensors, iterators and complex gradients, as the one of PyTorch does."""

import pytest
import torch
from torch import nn

from composable.functional import clip_gradients, weight_standardization


def gradients(dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(3, 2, dtype=dtype, generator=draw), torch.randn(4, generator=draw)]


OPTIONS = [{"method": "norm"}, {"method": "value"}, {"method": "adaptive"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("iterate", [iter, lambda held: (one for one in held)])
def test_clips_gradients_of_an_iterator(iterate, options):
    given = {"threshold": 0.1, **options}
    params = gradients() if options["method"] == "adaptive" else None
    expected = clip_gradients(gradients(), params=params, **given)

    found = clip_gradients(iterate(gradients()), params=params and iterate(params), **given)

    assert type(found) is list
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_clips_a_single_tensor(options):
    grad, params = gradients()[0], gradients()[0] if options["method"] == "adaptive" else None

    found = clip_gradients(grad, threshold=0.1, params=params, **options)

    several = None if params is None else [params]
    (expected,) = clip_gradients([grad], threshold=0.1, params=several, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_clips_complex_gradients_by_their_norm_as_torch_does():
    params = [nn.Parameter(one) for one in gradients(torch.complex64)]
    for param, grad in zip(params, gradients(torch.complex64), strict=True):
        param.grad = grad
    nn.utils.clip_grad_norm_(params, 0.5)

    found = clip_gradients(iter(gradients(torch.complex64)), threshold=0.5)

    torch.testing.assert_close(found, [param.grad for param in params])


def test_adaptive_clipping_of_complex_gradients_is_that_of_their_real_view():
    grad, param = gradients(torch.complex64)[0], 0.1 * gradients(torch.complex64)[0]

    found = clip_gradients(grad, threshold=0.5, method="adaptive", params=param)

    real = clip_gradients(
        torch.view_as_real(grad), threshold=0.5, method="adaptive", params=torch.view_as_real(param)
    )
    torch.testing.assert_close(torch.view_as_real(found), real)


@pytest.mark.parametrize(
    ("grads", "options", "message"),
    [
        (gradients(torch.complex64), {"method": "value"}, r"grads\[0\] must be real .*complex64"),
        (nn.Linear(2, 2).parameters(), {}, r"grads\[0\] must be a gradient, not a parameter"),
        ({"w": nn.Linear(2, 2).weight}, {}, r"grads\['w'\] must be a gradient"),
        ((one for one in ["a"]), {}, r"grads\[0\] must be a tensor"),
        ("ab", {}, "grads must be a tensor, or a mapping.* not a str"),
        (3, {}, "grads must be a tensor, or a mapping.* not an int"),
    ],
)
def test_rejects_what_is_no_gradient(grads, options, message):
    with pytest.raises(TypeError, match=message):
        clip_gradients(grads, threshold=1.0, **options)


@pytest.mark.parametrize("training", [True, False])
def test_weight_standardization_keeps_the_mode_of_every_module(training):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)).train(training)

    new = weight_standardization(model)

    assert {module.training for module in new.modules()} == {training}
