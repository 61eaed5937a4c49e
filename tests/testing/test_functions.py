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
from composable.testing.properties import PROPERTIES, NotApplicable, Subject, no_sync_on


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# Functions that lack one property each.


def writes_in_place(images):
    return images.mul_(2)


def writes_and_undoes(images):
    images.mul_(2)
    return images.div_(2) + 0


def drops_a_key(tensors):
    return tensors.pop("b")


def changes_the_model(model):
    model[4].stride = (1, 1)
    return model


def adds_dropout(model):
    return nn.Sequential(model, nn.Dropout())


def ignores_its_generator(images, *, generator=None):
    return images * random.random()


def needs_no_generator_but_draws(images):
    return images * torch.rand(())


def promotes(images):
    return images.float().mean((2, 3))


def promotes_the_images(images):
    return images.to(torch.float32), images.mean()


def channels_first(images):
    return images.contiguous() * 1.0


def branches(images):
    return images * 2 if images.sum() > 0 else images


def wrong_gradient(images):
    return images.detach() + 2 * (images - images.detach())


def detaches(images):
    return images.detach() * 2


def takes_the_positive(images):
    return images[images > 0]


def reads_a_number(images):
    return images * images.max().item()


def standardizes(images):
    return (images - images.mean(0)) / images.var(0, correction=0).sqrt()


def takes_the_largest(images):
    return images.flatten(1).amax(0)


def knows_that_it_is_compiled(images):
    return images * 2 if torch.compiler.is_compiling() else images * 3


def knows_that_it_is_mapped(images):
    return images * 2 if torch._C._functorch.is_batchedtensor(images) else images * 3


@attrs.frozen
class Result:
    images: torch.Tensor


def returns_an_attrs_class(images):
    return Result(images * 2)


LACKING = [
    ("pure", writes_in_place, None, "writes to a tensor"),
    ("pure", writes_and_undoes, None, "writes to a tensor"),
    ("pure", drops_a_key, lambda size: ({"w": randn(3), "b": randn(3)},), "modifies a container"),
    ("pure", changes_the_model, None, "modifies the model"),
    ("generator", ignores_its_generator, None, "with the same generator, its result depends"),
    (
        "generator",
        needs_no_generator_but_draws,
        None,
        "with the same arguments, its result depends",
    ),
    ("global_generators", needs_no_generator_but_draws, None, "uses torch's global generator"),
    ("global_generators", ignores_its_generator, None, "uses python's global generator"),
    ("global_generators", adds_dropout, None, "the model that it returns uses torch's global"),
    ("float16", promotes, None, "returns torch.float32 for torch.float16"),
    ("bfloat16", promotes_the_images, None, "returns torch.float32 for torch.bfloat16"),
    ("float64", promotes, None, "returns torch.float32 for torch.float64"),
    ("channels_last", channels_first, None, "channels-first"),
    ("no_sync", reads_a_number, None, "item would make the host wait"),
    ("no_sync", branches, None, "__bool__ would make the host wait"),
    ("no_sync", takes_the_positive, None, "indexing by a mask"),
    ("gradients", wrong_gradient, None, "Jacobian mismatch"),
    ("gradients", detaches, None, "no result has a gradient"),
    ("vmap", branches, None, "data-dependent control flow"),
    ("vmap", knows_that_it_is_mapped, None, "not close"),
    ("batch_of_one", standardizes, None, "not finite"),
    ("empty_batch", takes_the_largest, None, "amax"),
]


def subject_of(function, arguments=None):
    names = function.__code__.co_varnames
    given = (feature_maps(),) if names[0] == "model" else None
    make = arguments or (lambda size: given or (image_batch(size)[0],))
    return Subject(function, make, lambda size: image_batch(size)[0])


@pytest.mark.parametrize(
    ("asked", "function", "arguments", "why"),
    LACKING,
    ids=[f"{a}-{f.__name__}" for a, f, *_ in LACKING],
)
def test_who_lacks_a_property_is_found(asked, function, arguments, why):
    with pytest.raises(Exception, match=why) as caught:
        PROPERTIES[asked](subject_of(function, arguments))

    assert not isinstance(caught.value, NotApplicable)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (branches, "Data-dependent branching"),
        (returns_an_attrs_class, ""),
        (knows_that_it_is_compiled, "not close"),
    ],
)
def test_who_does_not_compile_is_found(function, why):
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- torch has a class for each reason
        PROPERTIES["compile"](subject_of(function))

    assert not isinstance(caught.value, NotApplicable)
    assert why in str(caught.value)


def test_every_property_has_somebody_who_lacks_it():
    assert {asked for asked, *_ in LACKING} | {"compile"} == set(PROPERTIES)


def test_a_question_that_makes_no_sense_is_not_answered():
    def count(labels):
        return len(labels)

    indices = subject_of(count, lambda size: (torch.arange(size),))
    for asked in ("generator", "float16", "channels_last", "gradients"):
        with pytest.raises(NotApplicable):
            PROPERTIES[asked](indices)


def test_a_generator_that_is_needed_is_given_where_it_can_be():
    def noise(images, *, generator):
        return images + torch.randn(images.shape, generator=generator)

    subject = subject_of(noise)

    assert PROPERTIES["generator"](subject) is None
    assert PROPERTIES["global_generators"](subject) is None
    assert PROPERTIES["gradients"](subject) is None
    for asked in ("compile", "vmap"):
        with pytest.raises(NotApplicable, match="it requires a generator"):
            PROPERTIES[asked](subject)


def crops(images):
    return images[:, :, 1:5, 2:6]


def test_a_view_of_images_with_the_channels_last_has_them_last():
    assert PROPERTIES["channels_last"](subject_of(crops)) is None


def blends(images, draw):
    return images * (draw >= 0.7), draw.float()


def test_a_draw_is_a_constant_of_its_own_type():
    def with_a_draw(size):
        return image_batch(size)[0], torch.full((), 0.7, dtype=torch.float64)

    for arguments in (
        with_a_draw,
        lambda size: dict(zip(("images", "draw"), with_a_draw(size), strict=True)),
    ):
        subject = subject_of(blends, arguments)
        assert PROPERTIES["float16"](subject) is None
        assert PROPERTIES["gradients"](subject) is None
        assert dict(subject.drawn().arguments()).keys() == {"images"}


def test_a_model_that_draws_from_the_global_generators_draws_alike_for_each_question():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(192, 2))
    subject = subject_of(lambda model: model, lambda size: (model,))

    for asked in ("vmap", "gradients"):
        assert PROPERTIES[asked](subject) is None


@pytest.fixture
def modes(monkeypatch):
    """Return the list of the sync debug modes that are set, without a GPU."""
    given = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", given.append)
    return given


def test_on_a_device_torch_itself_watches_a_second_call_and_draws_stay_on_the_cpu(modes):
    calls = []

    def watched(images, draw):
        calls.append((images.device.type, draw.device.type, list(modes)))

    made = subject_of(watched, lambda size: (image_batch(size)[0], torch.ones(())))
    no_sync_on(torch.device("meta"), made)

    assert calls == [("meta", "cpu", []), ("meta", "cpu", ["error"])]
    assert modes == ["error", 1]


def test_a_model_is_watched_on_a_device_and_left_where_it_was(modes):
    model = feature_maps()

    no_sync_on(torch.device("meta"), subject_of(lambda model: model, lambda size: (model,)).inner())

    assert modes == ["error", 1]
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_the_sync_debug_mode_is_restored_after_what_waits(modes):
    def waits_when_watched(images):
        if modes:
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(RuntimeError, match="synchronizing"):
        no_sync_on(torch.device("meta"), subject_of(waits_when_watched))

    assert modes == ["error", 1]


# The report


ROW = FunctionReport(
    "f",
    {"pure": Answer("yes"), "vmap": Answer("no", "it loops"), "float16": Answer("not applicable")},
)


def test_a_no_is_refused_with_its_reason_unless_it_is_explained():
    with pytest.raises(
        PropertyViolation, match=r"f has unexpected properties:\n  vmap: no: it loops$"
    ):
        ROW.require()

    assert ROW.require(except_={"vmap": "it must"}) is ROW


@pytest.mark.parametrize("name", ["pure", "float16"])
def test_an_explanation_that_is_out_of_date_is_refused(name):
    with pytest.raises(PropertyViolation, match=f"{name}: .*; remove it from except_"):
        ROW.require(except_={"vmap": "it must", name: "it was so once"})


def test_an_unknown_property_is_refused():
    with pytest.raises(
        ValueError, match=r"except_ contains \['fast'\]: each name must be one of \['pure'"
    ):
        ROW.require(except_={"fast": ""})


def test_a_row_is_printed_line_by_line():
    assert str(ROW) == "f\n  pure     yes\n  vmap     no: it loops\n  float16  not applicable"


def test_arguments_without_a_default_are_asked_for():
    with pytest.raises(ValueError, match=r"ema\(smoothing=0.9\) requires \['average', 'current'\]"):
        check_function(partial(F.ema, smoothing=0.9))


def test_a_function_that_can_not_be_called_raises_its_own_error():
    with pytest.raises(ValueError, match="num_classes=None"):
        check_function(F.smooth_labels)


@pytest.mark.compile
def test_modules_are_called_on_inputs_of_ones_own():
    def doubled(model):
        return nn.Sequential(model, nn.Linear(2, 2))

    report = check_function(
        doubled, lambda size: (nn.Linear(4, 2),), inputs=lambda size: randn(size, 4), name="doubled"
    )

    # Its new layer is drawn from the global generator.
    assert {name for name, a in report.answers.items() if a.verdict == "no"} == {
        "generator",
        "global_generators",
        "float16",
        "bfloat16",
        "float64",
    }
    assert str(report).startswith("doubled\n")
