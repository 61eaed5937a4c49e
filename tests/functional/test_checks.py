"""The errors of single checks, and numbers of other kinds."""

from functools import partial
from math import inf, nan

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from composable._support.checks import (
    check_count,
    check_flag,
    check_one_of,
    check_order,
    check_range,
)
from composable.functional import ema_smoothing, smooth_labels

SMOOTH = partial(smooth_labels, torch.arange(4), num_classes=4)


@pytest.mark.parametrize(
    ("check", "values", "kind", "message"),
    [
        (partial(check_range, low=0, high=1), [-0.1, 1.1, nan], ValueError, r"in \[0, 1\]"),
        (partial(check_range, low=0, high=1), ["1", None, True], TypeError, r"a number in \[0, 1"),
        (partial(check_range, low=0, high=1, ends="[)"), [1.0], ValueError, r"in \[0, 1\)"),
        (partial(check_range, low=0, high=1, ends="(]"), [0, 1.5], ValueError, r"in \(0, 1\]"),
        (partial(check_range, low=0), [-1.0, nan], ValueError, "at least 0"),
        (partial(check_range, low=0, ends="[)"), [inf], ValueError, "at least 0 and finite"),
        (partial(check_range, low=0, ends="()"), [0], ValueError, "greater than 0"),
        (partial(check_range, low=0, ends="()"), [None], TypeError, "a number, greater than 0"),
        (partial(check_range, low=-inf, ends="()"), [inf, nan], ValueError, "finite"),
        (partial(check_range, low=-inf, ends="()"), ["10"], TypeError, "a finite number"),
        (check_count, [-1], ValueError, "at least 0"),
        (check_count, [1.0, "1", None, True], TypeError, "an integer, at least 0"),
        (partial(check_count, low=1, advice="pass 1"), [0], ValueError, "at least 1; pass 1"),
        (check_flag, [1, None, "yes"], TypeError, "True or False"),
        (partial(check_one_of, allowed="ab"), ["c", None, ["a"]], ValueError, r"one of \['a', 'b'"),
    ],
)
def test_error_names_the_argument_and_the_allowed_values(check, values, kind, message):
    for value in values:
        with pytest.raises(kind, match=rf"^rate=.* must be {message}") as caught:
            check("rate", value)
        assert str(caught.value).startswith(f"rate={value!r} must be")
        assert str(caught.value).endswith(".")


def test_accepts_numpy_numbers(unchecked):
    assert_close(SMOOTH(smoothing=np.float32(0.5)), SMOOTH(smoothing=0.5))
    assert ema_smoothing(np.int64(1), np.float64(1.0)) == 0.5


def test_two_arguments_out_of_order_are_both_named():
    with pytest.raises(ValueError, match=r"^start=0.9 must be at most end=0.5\.$"):
        check_order("start", 0.9, "end", 0.5)

    check_order("start", 0.5, "end", 0.5)
