"""An argument of the wrong type is refused by its name, whichever function it was given to."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import (
    MixUpDraw,
    apply_mixup,
    apply_selection,
    blurpool,
    clip_gradients,
    draw_mixup,
    draw_selection,
    ema,
    ema_smoothing,
    mixup,
    select_using_loss,
    should_select,
    smooth_labels,
)

X, Y = torch.eye(4), torch.arange(4)
NAMED = {"w": X}
DRAW = MixUpDraw(torch.tensor([1, 0, 3, 2]), torch.tensor(0.75))
SMOOTH = partial(smooth_labels, Y, num_classes=4)
CLIP = partial(clip_gradients, [X], threshold=1.0)

TENSOR, NUMBER = "must be a tensor, not ", "must be a number[, ]"
WHOLE, FLAG = "must be an integer", "must be True or False"
GENERATOR = r"must be a torch.Generator or None, not .*manual_seed\(seed\)"


@pytest.mark.parametrize(
    ("call", "argument", "values", "message"),
    [
        # mixup
        (lambda v: mixup(v, Y), "inputs", [(X, X), [X], None, 3], TENSOR),
        (lambda v: mixup(X, v), "targets", [(Y, Y), [0, 1, 2, 3], None], TENSOR),
        (lambda v: mixup(X, Y, alpha=v), "alpha", ["0.2", None, True, X, 1j], NUMBER),
        (lambda v: mixup(X, Y, per_sample=v), "per_sample", [1, None, "no"], FLAG),
        (lambda v: mixup(X, Y, generator=v), "generator", [0, "cpu"], GENERATOR),
        (lambda v: draw_mixup(v), "batch_size", [4.0, "4", True, None], WHOLE),
        (lambda v: apply_mixup(X, Y, v), "draw", [None, tuple(DRAW)], "must be a MixUpDraw"),
        (lambda v: apply_mixup(X, Y, DRAW._replace(weight=v)), "draw.weight", [0.5], TENSOR),
        (
            lambda v: apply_mixup(X, Y, DRAW._replace(permutation=v)),
            "draw.permutation",
            [[1, 0, 3, 2]],
            TENSOR,
        ),
        # smooth_labels
        (lambda v: smooth_labels(v), "targets", [[0, 1], (X, X), None], TENSOR),
        (lambda v: SMOOTH(smoothing=v), "smoothing", ["0.1", None, True, X], NUMBER),
        (lambda v: SMOOTH(num_classes=v), "num_classes", ["4", 4.0, True], WHOLE),
        (lambda v: smooth_labels(X, num_classes=v), "num_classes", ["4", 4.0, True], WHOLE),
        # ema
        (lambda v: ema(v, NAMED, smoothing=0.5), "average", [None, [X], nn.ReLU()], "a mapping of"),
        (lambda v: ema(NAMED, v, smoothing=0.5), "current", [None, [X], nn.ReLU()], "a mapping of"),
        (lambda v: ema({"w": v}, NAMED, smoothing=0.5), r"average\['w'\]", [1.0, None], TENSOR),
        (lambda v: ema(NAMED, {"w": v}, smoothing=0.5), r"current\['w'\]", [1.0, None], TENSOR),
        (lambda v: ema(NAMED, NAMED, smoothing=v), "smoothing", ["0.5", None, True, X], NUMBER),
        (lambda v: ema_smoothing(v), "half_life", ["10ba", None, True], NUMBER),
        (lambda v: ema_smoothing(1, v), "update_interval", ["1ba", None, True], NUMBER),
        # select_using_loss
        (lambda v: select_using_loss(v), "losses", [None, [0.5], 0.5], TENSOR),
        (lambda v: select_using_loss(X[0], keep=v), "keep", ["0.5", None, True, X], NUMBER),
        (lambda v: select_using_loss(X[0], generator=v), "generator", [0], GENERATOR),
        (lambda v: draw_selection(v), "batch_size", [4.0, "4", True, None], WHOLE),
        (lambda v: apply_selection(v, Y), "losses", [None, [0.5]], TENSOR),
        (lambda v: apply_selection(X[0], v), "draw", [None, [0]], TENSOR),
        (lambda v: should_select(v, 0), "elapsed", ["0.5", None, True], NUMBER),
        (lambda v: should_select(0.5, v), "batch_index", ["0", None, 1.5], WHOLE),
        (lambda v: should_select(0.5, 0, start=v), "start", ["0.5", None, True], NUMBER),
        (lambda v: should_select(0.5, 0, end=v), "end", ["0.5", None, True], NUMBER),
        (lambda v: should_select(0.5, 0, interrupt=v), "interrupt", ["2", None, 2.0], WHOLE),
        # clip_gradients
        (lambda v: clip_gradients(v, threshold=1.0), "grads", [None, X, 3, nn.ReLU()], "a mapping"),
        (lambda v: clip_gradients([None, v], threshold=1), r"grads\[1\]", [1.0, [X]], TENSOR),
        (lambda v: clip_gradients({"w": v}, threshold=1), r"grads\['w'\]", [1.0], TENSOR),
        (lambda v: CLIP(threshold=v), "threshold", ["1", None, True, X], NUMBER),
        (lambda v: CLIP(method="adaptive", params=v), "params", [3, X], "must be a mapping or a"),
        (lambda v: CLIP(method="adaptive", params=v), r"params\[0\]", [["w"]], TENSOR),
        # blurpool
        (lambda v: blurpool(v), "model", [None, "net", nn.ReLU, X], r"must be a torch.nn.Module"),
        (lambda v: blurpool(nn.ReLU(), replace_convs=v), "replace_convs", [1, None], FLAG),
        (lambda v: blurpool(nn.ReLU(), replace_maxpools=v), "replace_maxpools", [1, None], FLAG),
        (lambda v: blurpool(nn.ReLU(), blur_first=v), "blur_first", [1, None], FLAG),
        (lambda v: blurpool(nn.ReLU(), min_channels=v), "min_channels", ["16", 1.5], WHOLE),
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
