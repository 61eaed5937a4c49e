"""Images are logged as the algorithms leave them, with their masks if requested."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable import Evaluator
from composable.algorithms import MixUp
from composable.callbacks import ImageVisualizer
from composable.callbacks.image_visualizer import colored, in_unit_range
from composable.loggers import InMemoryLogger
from composable.testing import NoSync
from tests.support.data import Stream
from tests.support.runs import make_trainer

SIDE, CLASSES = 4, 3


class Segments(nn.Module):
    """A model that returns logits of classes for each pixel, in some form."""

    def __init__(self, form="tensor", classes=CLASSES):
        super().__init__()
        self.conv, self.form = nn.Conv2d(3, classes, 1), form

    def forward(self, images):
        logits = self.conv(images)
        return {"out": logits, "aux": logits} if self.form == "dict" else logits


def photos(count=3, size=4, channels=3):
    """Return batches of images in [0, 1] and of masks."""
    generator = torch.Generator().manual_seed(count)
    return [
        (
            torch.rand(size, channels, SIDE, SIDE, generator=generator),
            torch.randint(CLASSES, (size, SIDE, SIDE), generator=generator),
        )
        for _ in range(count)
    ]


def loss_fn(outputs, targets):
    outputs = outputs["out"] if isinstance(outputs, dict) else outputs
    return nn.functional.cross_entropy(outputs, targets)


def log(visualizer, loader=None, model=None, **options):
    """Return the logged images of a run of two epochs, each with its batch."""
    memory, loader = InMemoryLogger(), photos() if loader is None else loader
    options = {"loss_fn": loss_fn, "callbacks": visualizer, "loggers": memory, **options}
    make_trainer(model or Segments(), loader, **options).fit()
    return [(now.batch, images) for now, images in memory.images]


def names(logged):
    return [(batch, sorted(images)) for batch, images in logged]


@pytest.mark.parametrize(
    ("interval", "logged"),
    [
        ("2ba", [0, 2, 4]),
        ("1ep", [0, 3]),
        ("0.5dur", [0, 3]),
        ("100ba", [0]),
        (lambda state, event: state.timestamp.batch == 1, [0, 1]),
        (None, []),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_images_of_the_first_batch_of_each_interval_are_logged(interval, logged, known):
    loader = photos() if known else Stream(photos())

    images = log(ImageVisualizer(interval), loader)

    assert names(images) == [(batch, ["images/train/inputs"]) for batch in logged]


def test_images_are_those_of_the_batch():
    images = log(ImageVisualizer("1ep", num_images=2))

    ((_, first), _) = images
    assert_close(first["images/train/inputs"], photos()[0][0][:2])


def test_images_are_logged_as_the_algorithms_leave_them():
    loader = [(x, torch.arange(4) % CLASSES) for x, _ in photos()]
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, CLASSES))
    visualizer = ImageVisualizer("1ep", mode="segmentation")

    options = {"algorithms": MixUp(alpha=1.0), "loss_fn": nn.functional.cross_entropy}
    images = log(visualizer, loader, model, **options)

    ((_, first), _) = images
    assert list(first) == ["images/train/inputs"]  # neither targets nor outputs are masks
    assert not torch.equal(first["images/train/inputs"], loader[0][0])


def test_images_of_an_evaluation_have_the_name_of_the_evaluator():
    evaluators = [Evaluator("eval", photos(2)), Evaluator("other", photos(1))]

    images = log(ImageVisualizer(None), eval_dataloader=evaluators)

    labels = [["images/eval/inputs"], ["images/other/inputs"]]
    assert names(images) == [(batch, label) for batch in (3, 6) for label in labels]
    assert_close(images[1][1]["images/other/inputs"], photos(1)[0][0])


@pytest.mark.parametrize("form", ["tensor", "dict"])
def test_masks_are_logged_with_the_images(form):
    state_before = Segments(form)
    outputs = state_before.conv(photos()[0][0]).argmax(1)

    images = log(
        ImageVisualizer("1ep", mode="segmentation"), model=state_before, eval_dataloader=photos(1)
    )

    ((_, first), *_) = images
    assert_close(first["images/train/targets"], colored(photos()[0][1]))
    assert_close(first["images/train/predictions"], colored(outputs))
    kinds = ["inputs", "predictions", "targets"]
    assert names(images)[1] == (3, [f"images/eval/{kind}" for kind in kinds])


def test_binary_and_dense_masks_have_classes():
    loader = [(x, (y > 0).float()[:, None]) for x, y in photos()]
    visualizer = ImageVisualizer("1ep", mode="segmentation")
    loss = nn.functional.binary_cross_entropy_with_logits

    images = log(visualizer, loader, Segments(classes=1), loss_fn=loss)

    ((_, first), _) = images
    assert_close(first["images/train/targets"], colored((photos()[0][1] > 0).long()))


def test_images_of_a_split_batch_are_those_of_the_first_part():
    images = log(ImageVisualizer("1ep", mode="segmentation"), microbatch_size=2)

    assert [batch for batch, _ in images] == [0, 3]
    assert_close(images[0][1]["images/train/inputs"], photos()[0][0][:2])


@pytest.mark.parametrize(("channels", "shown"), [(1, 1), (2, 1), (3, 3), (4, 4), (7, 3)])
def test_channels_are_shown_as_gray_or_color(channels, shown):
    model = nn.Sequential(nn.Conv2d(channels, CLASSES, 1))

    images = log(ImageVisualizer("1ep"), photos(channels=channels), model)

    assert images[0][1]["images/train/inputs"].shape == (4, shown, SIDE, SIDE)


def test_channels_may_be_last():
    class Last(Segments):
        def forward(self, images):
            return super().forward(images.permute(0, 3, 1, 2))

    loader = [(x.permute(0, 2, 3, 1), y) for x, y in photos()]

    images = log(ImageVisualizer("1ep", channels_last=True), loader, Last())

    assert_close(images[0][1]["images/train/inputs"], photos()[0][0])


def test_values_are_scaled_only_if_they_are_outside_of_the_unit_range():
    inside = torch.tensor([0.25, 0.5]).reshape(1, 1, 1, 2)
    outside = torch.tensor([-2.0, 2.0]).reshape(1, 1, 1, 2)

    scaled = in_unit_range(torch.cat([inside, outside, torch.full_like(inside, 9)]))

    assert scaled.flatten().tolist() == [0.25, 0.5, 0.0, 1.0, 0.0, 0.0]
    assert in_unit_range(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).flatten().tolist() == [
        0,
        1,
    ]
    assert in_unit_range(inside.bfloat16()).dtype is torch.float32


def test_colors_are_those_of_pascal_voc():
    classes = torch.tensor([[[0, 1, 2, 3, 15, -100]]])

    colors = (colored(classes) * 255).round().int()[0, :, 0].T.tolist()

    known = [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [192, 128, 128]]
    assert colors == [*known, [128, 128, 128]]


def test_run_without_loggers_pays_nothing(monkeypatch):
    monkeypatch.setattr(
        "composable.callbacks.image_visualizer.in_unit_range", lambda _: pytest.fail("computed")
    )
    make_trainer(Segments(), photos(), loss_fn=loss_fn, callbacks=ImageVisualizer("1ba")).fit()


def test_the_device_is_not_waited_for():
    trainer = make_trainer(
        Segments(),
        photos(),
        loss_fn=loss_fn,
        callbacks=ImageVisualizer("1ba", mode="segmentation"),
        loggers=InMemoryLogger(),
        nonfinite_loss="ignore",  # or the losses would be read when the run ends
    )

    with NoSync():
        trainer.fit()


def test_inputs_that_are_no_images_are_an_error():
    with pytest.raises(ValueError, match=r"needs inputs of the shape .*, not \[4, 4\]"):
        make_trainer(callbacks=ImageVisualizer("1ba"), loggers=InMemoryLogger()).fit()
