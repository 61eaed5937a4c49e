"""What the functions refuse: arguments that are valid alone, and not together.

property_tests/test_refused_arguments.py has the invalid values of single arguments.
"""

from functools import partial
from math import inf

import pytest
import torch
from torch.nn.functional import cross_entropy

import composable.functional as F
from tests.support.tensors import noise, uniform

IMAGES = F.images
X, Y = uniform(4, (5, 6)), torch.arange(4)
BYTES, GREY_OR_RGB = noise(4, 3, 5, 5), r"1 or 3 channels for \w+, not 2"
PAIR = F.MixedTargets(Y, Y, torch.ones(4))
DENSE = F.MixedTargets(torch.eye(3), torch.eye(3), torch.tensor(1.0))
DRAW = F.MixUpDraw(torch.tensor([1, 0, 3, 2]), torch.tensor(0.75))
LOSS = F.jensen_shannon_loss
RESIZE = partial(F.resize_batch, scale_factor=0.5, resize_targets=True)
TEXTS = {"input_ids": torch.zeros(3, 7), "attention_mask": torch.zeros(3, 6)}
SHORTEN = partial(F.set_sequence_length, length=2, preserve_end_of_sequence=True)
CLIP = partial(F.clip_gradients, threshold=1.0)
ADAPTIVE = partial(CLIP, method="adaptive")
GRADS = [torch.ones(2), torch.ones(3)]

REFUSED = [
    # draws of another batch, and targets of another one
    (F.mixup, (X.byte(), Y), r"floating-point dtype, not torch.uint8; .*\.float\(\) / 255"),
    (F.mixup, ((X, X), Y), "inputs must be a tensor, not a tuple.*apply_mixup"),
    (F.cutmix, ((X, X), Y), "inputs must be a tensor, not a tuple.*apply_cutmix"),
    (F.mixup, (X[0, 0, 0, 0], Y), "must have the same size in dimension 0"),
    *(
        (function, (X, y), "must have the same size in dimension 0")
        for function in (F.mixup, F.cutmix, F.colout)
        for y in (Y[:3], Y[0])
    ),
    (F.apply_mixup, (X, Y, F.draw_mixup(3)), "draw has 3 partners, but inputs has 4 examples"),
    (F.apply_mixup, (X, Y, DRAW._replace(weight=0.5)), "^draw.weight must be a tensor, not a fl"),
    (F.apply_mixup, (X, Y, DRAW._replace(permutation=[1])), "^draw.permutation must be a tensor"),
    (F.apply_cutmix, (X, Y, F.draw_cutmix(3, (5, 6))), "draw has 3 partners, but inputs has 4"),
    (F.apply_cutmix, (Y[:, None], Y, F.draw_cutmix(4, (5, 6))), "draw has a box of 2 dimensions"),
    (F.apply_cutout, (X, F.draw_cutout(3, (5, 6))), "draw has holes for 3 examples, but .* has 4"),
    (F.apply_cutout, (Y[:, None], F.draw_cutout(4, (5, 6))), "does not match inputs of shape"),
    (
        F.apply_random_translation,
        (X, F.draw_random_translation(3, (5, 6))),
        "does not match inputs of shape",
    ),
    (F.apply_colout, (Y[:, None], None, F.draw_colout((5, 6))), "draw has rows and columns, but"),
    (F.apply_colout, (X, None, F.draw_colout((5, 6), batch_size=9)), "draw is for 9 examples, but"),
    (F.apply_colout, (X, None, (1, 2)), "a ColOutDraw, not a tuple; draw_colout returns one"),
    (F.apply_randaugment, (X, F.draw_randaugment(5)), r"draw is for \(5,\) images, but .* has 4"),
    (F.apply_augmix, (X, F.draw_augmix(5)), "draw is for 5 images, but images has 4"),
    (F.apply_augmix, (X, None), "draw must be an AugMixDraw, not None; draw_augmix returns one"),
    # images
    (F.randaugment, (torch.zeros(40, 2, 5, 6),), GREY_OR_RGB + '.*augmentations="safe"'),
    (F.augmix, (torch.zeros(40, 2, 5, 6),), GREY_OR_RGB + '.*augmentations="safe"'),
    (IMAGES.color, (X[:, :2], 1.0), GREY_OR_RGB),
    (IMAGES.contrast, (X[:, :2], 1.0), GREY_OR_RGB),
    *(
        (operation, (BYTES[0],), r"images\[")
        for operation in (IMAGES.equalize, IMAGES.autocontrast)
    ),
    *(
        (operation, (BYTES > 9,), "not torch.bool")
        for operation in (IMAGES.equalize, IMAGES.autocontrast)
    ),
    *((IMAGES.posterize, (BYTES, bits), rf"bits={bits} must be in \[1, 8\]") for bits in (0, 9)),
    *((IMAGES.solarize, (BYTES, to), rf"threshold={to} must be in \[0, 256\]") for to in (-1, 257)),
    *(
        (getattr(IMAGES, name), (BYTES, inf), r"\w+=inf must be .*finite")
        for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y", "color")
    ),
    *(
        (getattr(IMAGES, name), (BYTES, -0.1), "factor=-0.1 must be at least 0")
        for name in ("color", "contrast", "brightness", "sharpness")
    ),
    (
        IMAGES.sharpness,
        (BYTES, torch.ones(3)),
        r"factor must be a number, or have shape \(4,\), .*\(3,",
    ),
    (IMAGES.sharpness, (BYTES, torch.ones(4, 1)), r"factor must be .* not \(4, 1\)"),
    (RESIZE, (X,), r"targets must .* \[batch, ..., 5, 6\].* not None"),
    (RESIZE, (X, Y), r"not \(4,\); use resize_targets=False"),
    (RESIZE, (X, X[0, 0]), r"targets must have .* not \(5, 6\)"),
    (RESIZE, (X[..., None, None], X[..., None, None]), 'spatial dim.* not 4; use mode="crop"'),
    # targets and losses
    (PAIR.soft, (), "num_classes=None must be an integer for targets of class indices"),
    (DENSE.soft, (4,), "num_classes=4 must match"),
    (PAIR.loss, (cross_entropy, torch.zeros(4, 4)), r"one weight per example .*, not shape \(\)"),
    (F.smooth_labels, (Y,), r"num_classes=None.*torch.int64.*outputs.shape\[1\]"),
    (
        partial(F.smooth_labels, num_classes=4),
        (torch.eye(3),),
        "=4 .* the 3 classes .* dimension 1",
    ),
    (F.smooth_labels, (torch.tensor(0.5),), "targets must have a dimension of classes"),
    (LOSS, (torch.zeros(2, 3),), "others must have the logits of at least one"),
    (LOSS, (torch.zeros(2, 3), torch.zeros(2, 4)), r"others\[0\] has \(2, 4\)"),
    (LOSS, (torch.zeros(3), torch.zeros(3)), r"\[batch, classes, ...\], but logits has \(3,\)"),
    (LOSS, (Y[None], Y[None]), "logits must have a floating-point dtype, not torch.int64"),
    (F.select_using_loss, (torch.zeros(()),), r'one loss per example.*reduction="none"'),
    (F.apply_selection, (torch.zeros(4, 2), Y), r'one loss per example.*reduction="none"'),
    (partial(F.should_select, start=0.6, end=0.5), (0.5, 0), "start=0.6 must be at most end=0.5"),
    # sequences
    (SHORTEN, ({},), "batch must have sequences.* a dict without tensors"),
    (SHORTEN, ({"y": torch.zeros(3)},), r"batch must have sequences.* it has y: \(3,\)"),
    (SHORTEN, ("text",), "batch must have sequences.* a str without tensors"),
    (SHORTEN, (TEXTS,), r"must come with an attention_mask of shape \(3, 7\)"),
    # named tensors
    *(
        (function, arguments, message)
        for function, first, second in [
            (partial(F.ema, smoothing=0.5), "average", "current"),
            (partial(F.swa, count=3), "average", "current"),
            (F.sam_perturbation, "params", "grads"),
        ]
        for arguments, message in [
            (([X], {"w": X}), f"^{first} must be a mapping of names to tensors, not a list"),
            (({"w": X}, X), f"^{second} must be a mapping of names to tensors, not a Tensor"),
            (({"w": X}, None), f"^{second} must be a mapping of names to tensors, not None"),
            (({"w": 1.0}, {"w": X}), rf"^{first}\['w'\] must be a tensor, not a float"),
            (({"w": X}, {"w": 1}), rf"^{second}\['w'\] must be a tensor, not an int"),
            (({"w": X}, {}), f"only {first} has w and only {second} has none"),
            (({0: X}, {"w": X}), f"only {first} has 0 and only {second} has w"),
            (({f"layer{i}": X for i in range(9)}, {}), "layer0, .*, layer4 and 4 more"),
            (({"w": X}, {"w": X[0]}), r"\['w'\] has shape .*, but .*\['w'\] has \("),
        ]
    ),
    # gradients
    (CLIP, ([None, 1.0],), r"^grads\[1\] must be a tensor, not a float; pass None"),
    (CLIP, ({"w": [X]},), r"^grads\['w'\] must be a tensor, not a list; pass None"),
    (
        partial(CLIP, method="adaptive"),
        ({"w": X.to_sparse()},),
        r"^grads\['w'\] .* torch.sparse_coo",
    ),
    (ADAPTIVE, (GRADS,), 'params=None must be .* method="adaptive"'),
    *(
        (
            partial(ADAPTIVE, params=params),
            (GRADS,),
            rf"\({len(params)}\) and grads \(2\) must have",
        )
        for params in (GRADS[:1], GRADS[::-1], [None] * 2)
    ),
    (partial(ADAPTIVE, params={"v": X}), ({"w": X},), "only params has v and only grads has w"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), REFUSED)
def test_rejects_arguments_that_do_not_match(function, arguments, message, unchecked):
    with pytest.raises((TypeError, ValueError), match=message):
        function(*arguments)


@pytest.mark.parametrize("index", [3, -1])
def test_rejects_class_index_out_of_range(index):
    with pytest.raises(RuntimeError, match="out of bounds"):
        F.smooth_labels(torch.tensor([0, index]), num_classes=3)
