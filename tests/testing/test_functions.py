"""`check_function`: every property can be lacking, is found to be, and the methods have them."""

import random
from functools import partial

import attrs
import pytest
import torch
from torch import nn

import composable.functional as F
from composable.testing import PropertyViolation, check_function
from composable.testing.functions import Answer, FunctionReport
from composable.testing.problems import feature_maps, image_batch
from composable.testing.properties import PROPERTIES, NotApplicableError, Subject


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@attrs.frozen
class Result:
    images: torch.Tensor


def undoes(images):
    images.mul_(2)
    return images.div_(2) + 0


def strides(model):
    model[4].stride = (1, 1)
    return model


def draws_in_python(images, *, generator=None):
    return images * random.random()


def draws_in_torch(images):
    return images * torch.rand(())


def adds_dropout(model):
    return nn.Sequential(model, nn.Dropout())


def promotes(images):
    return images.float().mean((2, 3))


def branches(images):
    return images * 2 if images.sum() > 0 else images


def wrong_gradient(images):
    return images.detach() + 2 * (images - images.detach())


def standardizes(images):
    return (images - images.mean(0)) / images.var(0, correction=0).sqrt()


def knows_that_it_is_mapped(images):
    return images * 2 if torch._C._functorch.is_batchedtensor(images) else images * 3


def knows_that_it_is_compiled(images):
    return images * 2 if torch.compiler.is_compiling() else images * 3


# A property, a function that lacks it, and what the error says.
LACKING = [
    ("pure", lambda images: images.mul_(2), "writes to a tensor"),
    ("pure", undoes, "writes to a tensor"),
    ("pure", lambda tensors: tensors.pop("b"), "modifies a container"),
    ("pure", strides, "modifies the model"),
    ("generator", draws_in_python, "with the same generator, its result depends"),
    ("generator", draws_in_torch, "with the same arguments, its result depends"),
    ("global_generators", draws_in_torch, "uses torch's global generator"),
    ("global_generators", draws_in_python, "uses python's global generator"),
    ("global_generators", adds_dropout, "the model that it returns uses torch's global"),
    ("float16", promotes, "returns torch.float32 for torch.float16"),
    ("bfloat16", lambda images: (images.float(), images.mean()), "float32 for torch.bfloat16"),
    ("float64", promotes, "returns torch.float32 for torch.float64"),
    ("channels_last", lambda images: images.contiguous() * 1.0, "channels-first"),
    ("no_sync", lambda images: images * images.max().item(), "item would make the host wait"),
    ("no_sync", branches, "__bool__ would make the host wait"),
    ("no_sync", lambda images: images[images > 0], "indexing by a mask"),
    (
        "no_sync",
        lambda images: images + torch.zeros(()).to(images.device),
        "a copy to meta without",
    ),
    ("gradients", wrong_gradient, "Jacobian mismatch"),
    ("gradients", lambda images: images.detach() * 2, "no result has a gradient"),
    ("vmap", branches, "data-dependent control flow"),
    ("vmap", knows_that_it_is_mapped, "not close"),
    ("batch_of_one", standardizes, "not finite"),
    ("empty_batch", lambda images: images.flatten(1).amax(0), "amax"),
]
COMPILED = [
    ("compile", branches, "Data-dependent branching"),
    ("compile", lambda images: Result(images * 2), ""),
    ("compile", knows_that_it_is_compiled, "not close"),
]
GIVEN = {
    "model": lambda size: (feature_maps(),),
    "tensors": lambda size: ({"w": randn(3), "b": randn(3)},),
    "images": lambda size: (image_batch(size)[0],),
}


def subject_of(function, arguments=None):
    make = arguments or GIVEN[function.__code__.co_varnames[0]]
    return Subject(function, make, lambda size: image_batch(size)[0])


@pytest.mark.parametrize(
    ("name", "function", "why"),
    [*LACKING, *(pytest.param(*row, marks=pytest.mark.compile) for row in COMPILED)],
)
def test_finds_a_property_that_a_function_lacks(name, function, why):
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- torch has a class for each reason
        PROPERTIES[name](subject_of(function))

    assert not isinstance(caught.value, NotApplicableError)
    assert why in str(caught.value)


def test_each_property_is_lacked_by_a_function():
    assert {name for name, *_ in LACKING + COMPILED} == set(PROPERTIES)


def test_a_property_may_not_apply():
    def noise(images, *, generator):
        return images + torch.randn(images.shape, generator=generator)

    indices = subject_of(lambda labels: len(labels), lambda size: (torch.arange(size),))
    for name in ("generator", "float16", "channels_last", "gradients"):
        with pytest.raises(NotApplicableError):
            PROPERTIES[name](indices)
    for name in ("compile", "vmap"):
        with pytest.raises(NotApplicableError, match="it requires a generator"):
            PROPERTIES[name](subject_of(noise))
    for name in ("generator", "global_generators", "gradients"):
        assert PROPERTIES[name](subject_of(noise)) is None


def test_a_view_of_channels_last_images_is_channels_last():
    assert PROPERTIES["channels_last"](subject_of(lambda images: images[:, :, 1:5, 2:6])) is None


def blends(images, draw):
    return images * (draw >= 0.7), draw.float()


def with_a_draw(size):
    return image_batch(size)[0], torch.full((), 0.7, dtype=torch.float64)


@pytest.mark.parametrize(
    "arguments",
    [with_a_draw, lambda size: dict(zip(("images", "draw"), with_a_draw(size), strict=True))],
)
def test_a_draw_keeps_its_dtype(arguments):
    subject = subject_of(blends, arguments)

    assert PROPERTIES["float16"](subject) is None
    assert PROPERTIES["gradients"](subject) is None
    assert dict(subject.drawn().arguments()).keys() == {"images"}


@pytest.mark.parametrize("name", ["vmap", "gradients"])
def test_a_model_with_dropout_draws_the_same_for_each_call(name):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(192, 2))

    assert PROPERTIES[name](subject_of(lambda model: model, lambda size: (model,))) is None


class Follows(nn.Module):
    """Follows the mean of its inputs, and faster where they are mapped."""

    def __init__(self, mapped_share):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.mapped_share = mapped_share

    def forward(self, images):
        mapped = torch._C._functorch.is_batchedtensor(images)
        share = self.mapped_share if mapped else 0.1
        self.mean.add_(share * (images.mean((0, 2, 3)) - self.mean))
        return images + 1


def test_buffers_that_a_model_updates_are_mapped_and_compared():
    def subject(mapped_share):
        return subject_of(lambda model: model, lambda size: (Follows(mapped_share),))

    assert PROPERTIES["vmap"](subject(0.1)) is None
    with pytest.raises(AssertionError, match="not close"):
        PROPERTIES["vmap"](subject(0.2))


# The report


ROW = FunctionReport(
    "f",
    {"pure": Answer("yes"), "vmap": Answer("no", "it loops"), "float16": Answer("not applicable")},
)


@pytest.mark.parametrize(
    ("reasons", "error", "message"),
    [
        ({}, PropertyViolation, r"f has unexpected properties:\n  vmap: no: it loops$"),
        ({"vmap": "-", "pure": "-"}, PropertyViolation, "pure: .*; remove it from except_"),
        ({"vmap": "-", "float16": "-"}, PropertyViolation, "float16: .*; remove it from except_"),
        ({"fast": ""}, ValueError, r"contains \['fast'\]: each name must be one of \['pure'"),
    ],
)
def test_require_accepts_a_lacking_property_only_with_a_reason(reasons, error, message):
    with pytest.raises(error, match=message):
        ROW.require(except_=reasons)

    assert ROW.require(except_={"vmap": "it must"}) is ROW
    assert str(ROW) == "f\n  pure     yes\n  vmap     no: it loops\n  float16  not applicable"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (partial(F.ema, smoothing=0.9), r"ema\(smoothing=0.9\) requires \['average', 'current'\]"),
        (F.smooth_labels, "num_classes=None"),
    ],
)
def test_a_function_that_cannot_be_called_is_an_error(function, message):
    with pytest.raises(ValueError, match=message):
        check_function(function)


@pytest.mark.compile
def test_modules_are_called_on_the_given_inputs():
    report = check_function(
        lambda model: nn.Sequential(model, nn.Linear(2, 2)),
        lambda size: (nn.Linear(4, 2),),
        inputs=lambda size: randn(size, 4),
        name="doubled",
    )

    # Its new layer is drawn from the global generator.
    lacking = {"generator", "global_generators", "float16", "bfloat16", "float64"}
    assert {name for name, a in report.answers.items() if a.verdict == "no"} == lacking
    assert str(report).startswith("doubled\n")
