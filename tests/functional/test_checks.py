"""An argument of the wrong type is refused by its name, whichever function it was given to."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from composable.functional import (
    MixUpDraw,
    apply_mixup,
    clip_gradients,
    ema,
    ema_smoothing,
    mixup,
    select_using_loss,
    smooth_labels,
)

X, Y = torch.eye(4), torch.arange(4)
NAMED = {"w": X}
DRAW = MixUpDraw(torch.tensor([1, 0, 3, 2]), torch.tensor(0.75))
SMOOTH = partial(smooth_labels, Y, num_classes=4)
CLIP = partial(clip_gradients, [X], threshold=1.0)

TENSOR = "must be a tensor, not "


@pytest.mark.parametrize(
    ("call", "argument", "values", "message"),
    [
        (lambda v: apply_mixup(X, Y, DRAW._replace(weight=v)), "draw.weight", [0.5], TENSOR),
        (
            lambda v: apply_mixup(X, Y, DRAW._replace(permutation=v)),
            "draw.permutation",
            [[1, 0, 3, 2]],
            TENSOR,
        ),
        (lambda v: ema({"w": v}, NAMED, smoothing=0.5), r"average\['w'\]", [1.0, None], TENSOR),
        (lambda v: ema(NAMED, {"w": v}, smoothing=0.5), r"current\['w'\]", [1.0, None], TENSOR),
        (lambda v: clip_gradients([None, v], threshold=1), r"grads\[1\]", [1.0, [X]], TENSOR),
        (lambda v: clip_gradients({"w": v}, threshold=1), r"grads\['w'\]", [1.0], TENSOR),
        (lambda v: CLIP(method="adaptive", params=v), r"params\[0\]", [["w"]], TENSOR),
    ],
)
def test_the_wrong_type_is_answered_with_the_right_one(unchecked, call, argument, values, message):
    for value in values:
        with pytest.raises(TypeError, match=rf"^{argument}[= ](?s:.*){message}"):
            call(value)


@pytest.mark.parametrize("method", [None, 3, ["norm"]])
def test_a_method_that_is_no_word_is_answered_with_the_words(unchecked, method):
    with pytest.raises(ValueError, match=r"must be one of \['norm', 'value', 'adaptive'\]"):
        CLIP(method=method)


def test_names_that_are_no_strings_are_shown_too(unchecked):
    with pytest.raises(ValueError, match="only average has 0 and only current has w"):
        ema({0: X}, NAMED, smoothing=0.5)


def test_a_number_may_be_one_of_numpy(unchecked):
    assert_close(SMOOTH(smoothing=np.float32(0.5)), SMOOTH(smoothing=0.5))
    assert ema_smoothing(np.int64(1), np.float64(1.0)) == 0.5


@pytest.mark.compile
def test_numbers_may_be_arguments_of_a_graph():
    @partial(torch.compile, fullgraph=True, backend="aot_eager", dynamic=True)
    def everything(x, y, number, count):
        mixed = mixup(x, y, alpha=number, per_sample=True)
        chosen = select_using_loss(x[0], keep=number)
        (clipped,) = clip_gradients([x], threshold=number)
        average = ema({"x": x}, {"x": clipped}, smoothing=number)["x"]
        return mixed.inputs, chosen, average, smooth_labels(y, smoothing=number, num_classes=count)

    for number in (0.25, 0.5, 0.75):
        _, chosen, average, smooth = everything(X, Y, number, 4)
        assert len(chosen) == 4 * number
        (clipped,) = clip_gradients([X], threshold=number)
        assert_close(average, ema({"x": X}, {"x": clipped}, smoothing=number)["x"])
        assert_close(smooth, SMOOTH(smoothing=number))
