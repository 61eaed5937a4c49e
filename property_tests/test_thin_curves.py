"""The laws of thinning: the drawn points of a curve are points of it, with its extremes."""

import math
import sys

from hypothesis import example, given
from hypothesis import strategies as st

from composable.report.curves import Curve, thin

values = st.floats(allow_nan=True, allow_infinity=True)
MOST = st.integers(1, 3)  # so that most curves are thinned
steps = st.lists(st.tuples(st.integers(1, 1000), values), max_size=300)


def curve_of(steps):
    """Build a curve from distances and values."""
    curve, batch = Curve(), 0
    for distance, value in steps:
        batch += distance
        curve.add(batch, value)
    return curve


@given(steps, MOST)
def test_drawn_points_are_points_of_the_curve_in_order(steps, most):
    curve = curve_of(steps)

    points = thin([curve], most)[0].points

    assert set(points) <= set(curve.finite())
    assert points == sorted(set(points))
    assert len(points) <= 2 * max(most, 1) + 2


@given(steps, MOST)
def test_the_lowest_and_the_highest_value_are_drawn(steps, most):
    curve = curve_of(steps)

    drawn = [value for _, value in thin([curve], most)[0].points]

    finite = [value for _, value in curve.finite()]
    assert (min(drawn, default=None), max(drawn, default=None)) == (
        min(finite, default=None),
        max(finite, default=None),
    )


@given(steps, MOST)
@example([(1, sys.float_info.max)] * 3, 1)
def test_means_are_finite_and_within_the_extremes(steps, most):
    curve = curve_of(steps)

    means = thin([curve], most)[0].means or []

    finite = [value for _, value in curve.finite()]
    for _, mean in means:
        assert math.isfinite(mean)
        slack = 1e-9 * max(map(abs, finite))
        assert min(finite) - slack <= mean <= max(finite) + slack


@given(st.lists(steps, min_size=1, max_size=3), MOST)
def test_curves_of_one_grid_have_their_means_at_common_batches(several, most):
    curves = [curve_of(steps) for steps in several]

    places = {batch for drawn in thin(curves, most) for batch, _ in drawn.means or []}

    assert len(places) <= most


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(-1, 1)), max_size=60))
def test_a_curve_has_each_batch_once_in_order_and_the_last_value(points):
    curve = Curve()
    for batch, value in points:
        curve.add(batch, value)

    batches = list(curve.batches)
    assert batches == sorted(set(batches))
    if points:
        assert (batches[-1], curve.values[-1]) == points[-1]
