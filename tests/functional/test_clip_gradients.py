"""Gradient clipping; test_averages.py has the laws of all functions of named tensors."""

from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import clip_gradients
from tests.support.tensors import FLOATS, seeded

INF, NAN = float("inf"), float("nan")
every_method = pytest.mark.parametrize("method", ["norm", "value", "adaptive"])


def tensors(seed=0, dtype=torch.float32):
    generator, shapes = seeded(seed), [(4, 3, 2, 2), (5, 4), (5,), ()]
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def norm_of(grads):
    return torch.cat([grad.double().flatten() for grad in grads]).norm()


@pytest.mark.parametrize("threshold", [0.01, 1.0, 1e6])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("norm", torch.float32), ("value", torch.float32), ("norm", torch.complex64)],
)
def test_agrees_with_torch(name, dtype, threshold):
    params = [nn.Parameter(torch.zeros_like(grad)) for grad in tensors(dtype=dtype)]
    for param, grad in zip(params, tensors(dtype=dtype), strict=True):
        param.grad = grad
    getattr(nn.utils, f"clip_grad_{name}_")(params, threshold)

    clipped = clip_gradients(tensors(dtype=dtype), threshold=threshold, method=name)

    assert_close(clipped, [param.grad for param in params])


def test_units_are_clipped_as_in_the_paper():
    grads, params = tensors(0), tensors(1)

    clipped = clip_gradients(grads, threshold=0.1, method="adaptive", params=params)

    for grad, param, new in zip(grads, params, clipped, strict=True):
        units = [slice(None)] if grad.ndim < 2 else [[row] for row in range(len(grad))]
        for unit in units if grad.ndim else [...]:
            bound = 0.1 * max(param[unit].norm(), 1e-3)
            size = grad[unit].norm()
            expected = grad[unit] * bound / size if size > bound else grad[unit]
            assert_close(new[unit], expected)


@every_method
def test_small_gradients_are_not_modified_and_a_threshold_of_zero_clips_to_zero(method):
    zeros = [torch.zeros(3, 2), torch.zeros(())]
    for grads, threshold in [(tensors(), 1e6), (tensors(), INF), (zeros, 1.0), (zeros, 0.0)]:
        clipped = clip_gradients(grads, threshold=threshold, method=method, params=grads)
        assert all(torch.equal(a, b) for a, b in zip(clipped, grads, strict=True))

    clipped = clip_gradients(tensors(), threshold=0.0, method=method, params=tensors(1))
    assert all((new == 0).all() for new in clipped)


def test_norm_of_half_precision_does_not_overflow():
    clipped = clip_gradients([torch.full((100,), 300.0, dtype=torch.float16)], threshold=1.0)

    assert_close(clipped[0], torch.full((100,), 0.1, dtype=torch.float16), rtol=0.01, atol=0)


@every_method
def test_accepts_mixed_dtypes(method):
    grads = [torch.ones(2, dtype=dtype) for dtype in FLOATS]

    clipped = clip_gradients(grads, threshold=0.5, method=method, params=grads[::-1])

    assert [new.dtype for new in clipped] == FLOATS
    if method == "norm":
        assert norm_of(clipped) == pytest.approx(0.5, rel=0.01)
    else:
        assert_close(clipped, [grad / 2 for grad in grads])


class Pair(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor | None


GRAD = torch.ones(2)
CONTAINERS = [[GRAD, None], (GRAD, None), Pair(GRAD, None), OrderedDict(weight=GRAD, bias=None)]


@every_method
@pytest.mark.parametrize("grads", [*CONTAINERS, {"w": GRAD}, [], {}, (), [None], {"w": None}])
def test_containers_keep_their_type_and_none_stays(method, grads):
    clipped = clip_gradients(grads, threshold=9.0, method=method, params=grads)

    assert type(clipped) is type(grads)
    pairs = [list(x.values()) if isinstance(x, dict) else list(x) for x in (grads, clipped)]
    assert str(pairs[0]) == str(pairs[1])


@every_method
@pytest.mark.parametrize("iterate", [iter, lambda held: (one for one in held)])
def test_gradients_of_an_iterator_are_clipped_as_those_of_a_list(method, iterate):
    grads, params = tensors(), tensors(1)
    options = {"threshold": 0.1, "method": method}

    found = clip_gradients(iterate(grads), params=iterate(params), **options)

    assert type(found) is list
    assert_close(found, clip_gradients(grads, params=params, **options), rtol=0, atol=0)


@every_method
def test_a_single_tensor_is_clipped_as_the_only_one(method):
    grad, param, options = tensors()[0], tensors(1)[0], {"threshold": 0.1, "method": method}

    found = clip_gradients(grad, params=param, **options)

    assert_close([found], clip_gradients([grad], params=[param], **options), rtol=0, atol=0)


def test_adaptive_clipping_of_complex_gradients_is_that_of_their_real_view():
    grad, param = tensors(dtype=torch.complex64)[1], 0.1 * tensors(dtype=torch.complex64)[1]

    found, real = (
        clip_gradients(view(grad), threshold=0.5, method="adaptive", params=view(param))
        for view in (lambda x: x, torch.view_as_real)
    )

    assert_close(torch.view_as_real(found), real)


def test_parameters_are_found_by_name_in_any_order():
    grads = {"a": torch.ones(2), "b": torch.ones(2)}
    params = {"b": torch.full((2,), 100.0), "a": torch.zeros(2)}

    clipped = clip_gradients(grads, threshold=1.0, method="adaptive", params=params)

    assert_close(clipped["a"].norm(), torch.tensor(1e-3))  # what starts at zero still trains
    assert torch.equal(clipped["b"], grads["b"])


@pytest.mark.parametrize(
    ("method", "grad", "expected"),
    [
        ("norm", [1.0, INF], [0.0, NAN]),  # as in torch
        ("norm", [1.0, NAN], [NAN, NAN]),
        ("adaptive", [[NAN, 1.0], [3.0, 4.0]], [[NAN, NAN], [0.6 * 2**0.5, 0.8 * 2**0.5]]),
        ("value", [INF, -INF, NAN], [1.0, -1.0, NAN]),
    ],
)
def test_non_finite_gradients_stay_in_place(method, grad, expected):
    grads = [torch.tensor(grad)]
    params = [torch.ones_like(grads[0])]

    clipped = clip_gradients(grads, threshold=1.0, method=method, params=params)

    assert_close(clipped[0], torch.tensor(expected), equal_nan=True)


@pytest.mark.parametrize("method", ["norm", "value"])
def test_sparse_gradients_are_clipped_like_dense_ones(method):
    values = torch.tensor([[3.0, -1.0], [0.5, 2.0], [1.0, 1.0]])
    sparse = torch.sparse_coo_tensor([[4, 1, 4]], values, (6, 2), check_invariants=True)
    dense = torch.tensor([2.0])

    clipped, other = clip_gradients([sparse, dense], threshold=1.5, method=method)

    expected = clip_gradients([sparse.to_dense(), dense], threshold=1.5, method=method)
    assert clipped.is_coalesced()
    assert_close([clipped.to_dense(), other], expected)
