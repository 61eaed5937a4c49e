"""The schedule of the batch size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable.functional import warmed_up_batch_size

sizes = st.integers(1, 100)


@given(st.integers(0, 10**6), st.integers(0, 10**6), sizes, sizes, sizes)
def test_size_grows_in_steps_from_one_end_to_the_other(samples, duration, low, more, step):
    how = {"min_batch_size": low, "max_batch_size": low + more, "step_size": step}
    size = warmed_up_batch_size(samples, duration=duration, **how)

    assert low <= size <= low + more
    assert size <= warmed_up_batch_size(samples + 1, duration=duration, **how)
    if samples >= duration:
        assert size == low + more
    else:
        exact = low + samples * more / duration
        assert (size - low) % step == 0
        assert exact - step - 1e-6 < size <= exact + 1e-6


@pytest.mark.parametrize(("samples", "size"), [(0, 8), (79, 24), (80, 32), (10**9, 32)])
def test_known_sizes(samples, size):
    grow = {"duration": 80, "min_batch_size": 8, "max_batch_size": 32, "step_size": 8}

    assert warmed_up_batch_size(samples, **grow) == size
