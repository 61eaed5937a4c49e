"""The laws of gradient clipping."""

from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import clip_gradients

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
METHODS = ["norm", "value", "adaptive"]


def tensors(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 3, 2, 2), (5, 4), (5,), ()]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def norm_of(grads):
    return torch.cat([grad.double().flatten() for grad in grads if grad is not None]).norm()


@pytest.mark.parametrize("threshold", [0.01, 1.0, 1e6])
@pytest.mark.parametrize("name", ["norm", "value"])
def test_agrees_with_torch(name, threshold):
    params = [nn.Parameter(torch.zeros_like(grad)) for grad in tensors()]
    for param, grad in zip(params, tensors(), strict=True):
        param.grad = grad.clone()
    getattr(nn.utils, f"clip_grad_{name}_")(params, threshold)

    clipped = clip_gradients(tensors(), threshold=threshold, method=name)

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


def test_what_starts_at_zero_still_trains():
    grad = torch.ones(4)

    clipped = clip_gradients([grad], threshold=0.01, method="adaptive", params=[torch.zeros(4)])

    assert_close(clipped[0].norm(), torch.tensor(0.01 * 1e-3))


def test_the_global_norm_is_bounded():
    assert norm_of(clip_gradients(tensors(), threshold=0.5)) <= 0.5


@pytest.mark.parametrize("method", METHODS)
def test_what_is_small_stays_exactly(method):
    clipped = clip_gradients(tensors(), threshold=1e6, method=method, params=tensors(1))

    assert all(torch.equal(a, b) for a, b in zip(clipped, tensors(), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_an_infinite_threshold_clips_nothing(method):
    clipped = clip_gradients(tensors(), threshold=float("inf"), method=method, params=tensors(1))

    assert all(torch.equal(a, b) for a, b in zip(clipped, tensors(), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_a_threshold_of_zero_leaves_nothing(method):
    clipped = clip_gradients(tensors(), threshold=0.0, method=method, params=tensors(1))

    assert all((new == 0).all() for new in clipped)


@pytest.mark.parametrize("method", METHODS)
def test_zeros_stay_zeros(method):
    zeros = [torch.zeros(3, 2), torch.zeros(())]

    clipped = clip_gradients(zeros, threshold=1.0, method=method, params=zeros)

    assert all(torch.equal(a, b) for a, b in zip(clipped, zeros, strict=True))


def test_the_norm_of_short_floats_does_not_overflow():
    clipped = clip_gradients([torch.full((100,), 300.0, dtype=torch.float16)], threshold=1.0)

    assert_close(clipped[0], torch.full((100,), 0.1, dtype=torch.float16), rtol=0.01, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_dtypes_may_be_mixed(method):
    grads = [torch.ones(2, dtype=dtype) for dtype in FLOATS]

    clipped = clip_gradients(grads, threshold=0.5, method=method, params=grads)

    assert [new.dtype for new in clipped] == FLOATS
    if method == "norm":
        assert norm_of(clipped) == pytest.approx(0.5, rel=0.01)


def test_weights_may_be_shorter_than_gradients_and_longer():
    for dtype in FLOATS:
        clipped = clip_gradients(
            [torch.ones(4)],
            threshold=0.5,
            method="adaptive",
            params=[torch.ones(4, dtype=dtype)],
        )
        assert_close(clipped[0], torch.full((4,), 0.5))


class Pair(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor | None


@pytest.mark.parametrize("method", METHODS)
def test_the_container_is_of_the_same_type_and_none_stays(method):
    grad = torch.ones(2)
    for grads in (
        [grad, None],
        (grad, None),
        Pair(grad, None),
        {"weight": grad, "bias": None},
        OrderedDict(weight=grad, bias=None),
    ):
        clipped = clip_gradients(grads, threshold=9.0, method=method, params=grads)
        values = list(clipped.values() if isinstance(clipped, dict) else clipped)
        assert type(clipped) is type(grads)
        assert torch.equal(values[0], grad)
        assert values[1] is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grads", [[], {}, (), [None], {"w": None}])
def test_no_gradients_are_no_trouble(method, grads):
    assert clip_gradients(grads, threshold=1.0, method=method, params=grads) == grads


def test_parameters_are_found_by_name_in_any_order():
    grads = {"a": torch.ones(2), "b": torch.ones(2)}
    params = {"b": torch.full((2,), 100.0), "a": torch.zeros(2)}

    clipped = clip_gradients(grads, threshold=1.0, method="adaptive", params=params)

    assert_close(clipped["a"].norm(), torch.tensor(1e-3))
    assert torch.equal(clipped["b"], grads["b"])


def test_a_norm_that_is_not_finite_is_as_in_torch():
    for bad, first in ((float("inf"), 0.0), (float("nan"), float("nan"))):
        clipped = clip_gradients([torch.tensor([1.0, bad])], threshold=1.0)[0]
        assert_close(clipped, torch.tensor([first, float("nan")]), equal_nan=True)


def test_adaptive_clipping_confines_nan_to_its_unit():
    grads = [torch.tensor([[float("nan"), 1.0], [3.0, 4.0]])]

    clipped = clip_gradients(grads, threshold=1.0, method="adaptive", params=[torch.ones(2, 2)])

    assert clipped[0][0].isnan().all()
    assert_close(clipped[0][1].norm(), torch.tensor(2.0).sqrt())


def test_values_bound_infinity_and_keep_nan():
    grads = [torch.tensor([float("inf"), -float("inf"), float("nan")])]

    clipped = clip_gradients(grads, threshold=2.0, method="value")

    assert_close(clipped[0], torch.tensor([2.0, -2.0, float("nan")]), equal_nan=True)


@pytest.mark.parametrize("threshold", [-1.0, float("nan")])
def test_the_threshold_is_not_negative(threshold):
    with pytest.raises(ValueError, match=r"threshold=.* must be at least 0"):
        clip_gradients(tensors(), threshold=threshold)


def test_the_method_exists():
    with pytest.raises(ValueError, match=r"method='l2' must be one of \['norm', 'value', 'adapt"):
        clip_gradients(tensors(), threshold=1.0, method="l2")


def test_adaptive_clipping_needs_the_parameters():
    with pytest.raises(ValueError, match=r'params=None must be .* method="adaptive"'):
        clip_gradients(tensors(), threshold=1.0, method="adaptive")


@pytest.mark.parametrize("params", [tensors()[:-1], tensors()[::-1], [None] * 4])
def test_parameters_match_the_gradients(params):
    with pytest.raises(
        ValueError, match=r"params \(\d\) and grads \(4\) must have the same number"
    ):
        clip_gradients(tensors(), threshold=1.0, method="adaptive", params=params)


def test_names_match_the_gradients():
    grads, params = {"w": torch.ones(1)}, {"v": torch.ones(1)}
    with pytest.raises(ValueError, match="only params has v and only grads has w"):
        clip_gradients(grads, threshold=1.0, method="adaptive", params=params)


@pytest.mark.parametrize("method", ["norm", "value", "adaptive"])
def test_a_sparse_gradient_is_refused_by_name(method):
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1, 3])).sum().backward()

    with pytest.raises(
        TypeError, match=r"^grads\['w'\] must be dense, not of layout torch.sparse_"
    ):
        clip_gradients(
            {"w": table.weight.grad}, threshold=1.0, method=method, params={"w": table.weight}
        )
