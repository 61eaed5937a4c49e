"""The laws of the exponential moving average."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import ema, ema_smoothing

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def named(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, 4, generator=generator).to(dtype),
        "bias": torch.randn((), generator=generator).to(dtype),
    }


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 0.5, 0.999, 1.0])
def test_floats_are_averaged_as_in_the_formula(smoothing):
    a, c = named(0), named(1)

    new = ema(a, c, smoothing=smoothing)

    assert_close(new, {name: smoothing * a[name] + (1 - smoothing) * c[name] for name in a})


def test_repeated_averages_weigh_the_past_by_powers():
    values = [named(seed, torch.float64) for seed in range(6)]
    average = values[0]

    for value in values[1:]:
        average = ema(average, value, smoothing=0.7)

    weights = [0.7**5] + [0.3 * 0.7 ** (5 - i) for i in range(1, 6)]
    expected = sum(w * v["weight"] for w, v in zip(weights, values, strict=True))
    assert_close(average["weight"], expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("smoothing", [0.1, 0.9, 0.9999])
def test_the_average_of_a_constant_is_that_constant(dtype, smoothing):
    constant = named(0, dtype)

    new = ema(constant, constant, smoothing=smoothing)

    assert all(torch.equal(new[name], constant[name]) for name in constant)


def test_smoothing_has_two_exact_ends():
    for name, value in ema(named(0), named(1), smoothing=1.0).items():
        assert torch.equal(value, named(0)[name])
    for name, value in ema(named(0), named(1), smoothing=0.0).items():
        assert torch.equal(value, named(1)[name])


def test_counts_and_masks_are_copied():
    average = {"count": torch.tensor(1), "mask": torch.tensor([True, False])}
    current = {"count": torch.tensor(500), "mask": torch.tensor([False, True])}

    new = ema(average, current, smoothing=0.99)

    assert new["count"] == 500
    assert new["mask"].tolist() == [False, True]
    assert new["count"] is not current["count"]
    current["count"] += 1
    assert new["count"] == 500


def test_the_count_of_batches_of_a_batchnorm_keeps_up():
    norm = nn.BatchNorm1d(2)
    average = {name: value.clone() for name, value in norm.state_dict().items()}

    for _ in range(5):
        norm(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))
        average = ema(average, norm.state_dict(), smoothing=0.9)

    assert average["num_batches_tracked"] == 5


def test_a_long_average_of_short_weights_sees_small_steps():
    average = {"w": torch.ones(1)}
    current = {"w": torch.full((1,), 2.0, dtype=torch.bfloat16)}

    new = ema(average, current, smoothing=0.9999)

    assert new["w"].dtype == torch.float32
    assert_close(new["w"], torch.tensor([1.0001]))


def test_each_dtype_is_averaged_in_its_own():
    a = {str(d): torch.zeros(2, dtype=d) for d in [*FLOATS, torch.complex64]}
    c = {str(d): torch.ones(2, dtype=d) for d in [*FLOATS, torch.complex64]}

    new = ema(a, c, smoothing=0.75)

    assert [value.dtype for value in new.values()] == [value.dtype for value in a.values()]
    assert all((value == 0.25).all() for value in new.values())


def test_the_result_is_new_and_detached_and_in_order():
    layer, average = nn.Linear(3, 2), nn.Linear(3, 2)
    current = dict(layer.named_parameters())
    before = {name: value.detach().clone() for name, value in current.items()}

    new = ema(dict(average.named_parameters()), current, smoothing=0.5)

    assert list(new) == ["weight", "bias"]
    assert not any(value.requires_grad for value in new.values())
    assert_close({name: value.detach() for name, value in current.items()}, before)


def test_nothing_to_average_is_nothing():
    assert ema({}, {}, smoothing=0.5) == {}
    assert ema({"w": torch.zeros(0)}, {"w": torch.zeros(0)}, smoothing=0.5)["w"].shape == (0,)


@pytest.mark.compile
def test_compiles_into_one_graph_also_under_vmap():
    def average(a, c):
        return ema(a, c, smoothing=0.9)

    for function in (average, torch.func.vmap(average)):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        a, c = {"w": torch.zeros(3, 4)}, {"w": torch.ones(3, 4)}
        assert_close(compiled(a, c), average(a, c))


def test_half_lives_give_the_smoothing():
    assert ema_smoothing(100, 100) == 0.5
    assert ema_smoothing(1000) ** 1000 == pytest.approx(0.5)
    assert ema_smoothing(half_life=10, update_interval=20) == 0.25


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_smoothing_is_a_share(smoothing):
    with pytest.raises(ValueError, match=r"smoothing=.* must be in \[0, 1\]"):
        ema({}, {}, smoothing=smoothing)


def test_names_must_agree():
    a, c = {"w": torch.zeros(1), "x": torch.zeros(1)}, {"w": torch.zeros(1)}
    with pytest.raises(ValueError, match="only average has x and only current has none"):
        ema(a, c, smoothing=0.5)


def test_of_many_wrong_names_a_few_are_shown():
    many = {f"layer{i}": torch.zeros(1) for i in range(9)}
    with pytest.raises(ValueError, match=r"layer0, .*, layer4 and 4 more"):
        ema(many, {}, smoothing=0.5)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"average\['w'\] has shape \(2,\), but current\['w'\]"):
        ema({"w": torch.zeros(2)}, {"w": torch.zeros(3)}, smoothing=0.5)


@pytest.mark.parametrize(("half_life", "interval"), [(0, 1), (-1, 1), (float("inf"), 1), (1, 0)])
def test_times_are_positive(half_life, interval):
    with pytest.raises(ValueError, match=r"(half_life|update_interval)=.* must be greater than 0"):
        ema_smoothing(half_life, interval)
