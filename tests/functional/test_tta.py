"""Test-time augmentation and FixRes: views, averages, sizes, and evaluations of a run."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate, pad
from torch.testing import assert_close

from composable import Trainer
from composable.algorithms import EMA, TTA, FixRes
from composable.functional import average_tta, fixres, fixres_scale, tta, tta_views
from composable.models import Classifier
from tests.support.data import batches
from tests.support.models import same, weights
from tests.support.runs import VISION


def test_views_are_crops_of_the_reflected_images_and_their_flips():
    images = torch.randn(5, 3, 6, 7)
    padded = pad(images, [2] * 4, mode="reflect")
    straight = [images, padded[:, :, :6, :7], padded[:, :, 4:, 4:]]

    assert torch.equal(tta_views(images, shift=2, flip=False), torch.cat(straight))
    assert torch.equal(
        tta_views(images, shift=2), torch.cat([*straight, *(one.flip(-1) for one in straight)])
    )


@pytest.mark.parametrize("average", ["logits", "probabilities"])
def test_averages_have_the_weights_of_the_source(average):
    outputs = torch.randn(6 * 4, 3, dtype=torch.float64)
    views = outputs.softmax(1) if average == "probabilities" else outputs
    plain, up, down, *flipped = views.view(6, 4, 3)
    expected = (plain + flipped[0]) / 4 + (up + down + flipped[1] + flipped[2]) / 8

    found = average_tta(outputs, average=average)

    assert_close(found.exp() if average == "probabilities" else found, expected)


def test_probabilities_of_large_logits_stay_finite():
    outputs = torch.tensor([[1000.0, -1000.0], [-1000.0, 1000.0]]).half()

    assert_close(
        average_tta(outputs, shift=0, average="probabilities").softmax(1),
        torch.full((1, 2), 0.5).half(),
    )


@pytest.mark.parametrize(
    ("algorithm", "call"),
    [
        (FixRes(2.0), lambda model, x: model(fixres(x, scale_factor=2.0))),
        *(
            (TTA(**options), partial(tta, **options))
            for options in ({}, {"average": "probabilities"}, {"flip": False})
        ),
    ],
    ids=["FixRes", "TTA", "probabilities", "no flip"],
)
def test_evaluations_and_predictions_are_those_of_the_function_and_training_is_not(algorithm, call):
    data = batches(8, images=True)
    plain = VISION.trainer(loader=data, eval_dataloader=data)
    trainer = VISION.trainer(loader=data, eval_dataloader=data, algorithms=[algorithm])

    first, second = plain.fit(), trainer.fit()

    assert same(weights(first.model), weights(second.model))
    model = second.model.eval()
    with torch.no_grad():
        outputs = [call(model, x) for x, _ in data]
    loss = sum(cross_entropy(o, y) for o, (_, y) in zip(outputs, data, strict=True)) / len(data)
    assert trainer.eval()["eval"]["loss"] == pytest.approx(float(loss))
    assert trainer.eval() != plain.eval()
    assert same(trainer.predict([x for x, _ in data]), outputs)


def test_batches_of_other_sizes_weigh_by_their_examples():
    (images, labels), *_ = batches(8, images=True)
    algorithms = [TTA(), EMA(half_life="2ba")]
    trainer = VISION.trainer(algorithms=algorithms)
    trainer.fit()

    parts = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    assert trainer.eval(parts)["eval"] == pytest.approx(trainer.eval([(images, labels)])["eval"])


def test_a_model_with_a_loss_of_its_own_is_averaged_too():
    data = batches(8, images=True)
    model = VISION.model()
    bare = VISION.trainer(model, loader=data, algorithms=[TTA()]).eval(data)
    wrapped = Trainer(Classifier(model), algorithms=[TTA()], progress_bar=False).eval(data)

    assert wrapped["eval"]["loss"] == pytest.approx(bare["eval"]["loss"])


def test_outputs_that_are_not_logits_are_refused():
    images = torch.rand(4, 3, 8, 8)
    data = [(images, torch.zeros(4).long())]
    for model, message in [
        (nn.Conv2d(3, 3, 1), r"outputs must be logits \[6 \* batch, classes\]"),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 1)), "needs two classes or more"),
    ]:
        trainer = VISION.trainer(model, loader=data, algorithms=[TTA(average="probabilities")])
        with pytest.raises(ValueError, match=message):
            trainer.predict([images])


def vit():
    transformers = pytest.importorskip("transformers")
    options = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"intermediate_size": 8, "image_size": 8, "patch_size": 4, "num_labels": 3}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**options, **sizes))


def test_logits_of_a_model_of_transformers_are_averaged_with_a_loss_of_logits():
    model = vit().eval()
    batch = {"pixel_values": torch.rand(4, 3, 8, 8), "labels": torch.arange(4) % 3}
    names = {"input_key": "pixel_values", "target_key": "labels", "progress_bar": False}
    expected = cross_entropy(tta(lambda x: model(x).logits, batch["pixel_values"]), batch["labels"])

    trainer = Trainer(model, loss_fn=cross_entropy, algorithms=[TTA()], **names)

    assert trainer.eval([batch])["eval"]["loss"] == pytest.approx(expected.item())
    trainer = Trainer(vit(), algorithms=[TTA()], **names)
    for call in (trainer.eval, trainer.predict):
        with pytest.raises(ValueError, match="ViTForImageClassification returns its loss too"):
            call([batch])


class Both(nn.Flatten):
    """A model that returns its outputs twice."""

    def forward(self, inputs):
        return inputs.mean((2, 3)), inputs.mean((2, 3))


def test_outputs_without_logits_alone_are_refused():
    trainer = Trainer(Both(), algorithms=[TTA()], progress_bar=False)

    with pytest.raises(TypeError, match="the model returns tuple; use a model that returns"):
        trainer.predict([torch.rand(2, 3, 8, 8)])


# --- FixRes ---


@pytest.mark.parametrize(
    ("shape", "scale", "increment", "expected"),
    [
        ((2, 3, 8, 12), 1.25, 1, (10, 15)),
        ((2, 3, 8, 12), 1.25, 4, (12, 16)),
        ((2, 3, 5), 2, 1, (10,)),
        ((2, 3, 4, 4, 4), 1.5, 1, (6, 6, 6)),
        ((2, 3, 8, 8), 0.01, 1, (1, 1)),
    ],
)
def test_new_lengths_are_the_nearest_multiples(shape, scale, increment, expected):
    new = fixres(torch.rand(shape), scale_factor=scale, size_increment=increment)

    assert new.shape == (*shape[:2], *expected)


def test_scale_one_is_the_identity():
    images = torch.rand(2, 3, 8, 8)

    assert fixres(images, scale_factor=1) is images


def test_images_are_interpolated_linearly_and_integers_rounded():
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    exact = interpolate(images.float(), size=(10, 10), mode="bilinear")

    assert torch.equal(fixres(images.float()), exact)
    assert torch.equal(fixres(images), exact.round().to(torch.uint8))


def test_scale_matches_the_sizes_of_objects_in_the_paper():
    # 224 in training, and a crop of 224 of images of 256: objects appear at 0.80 of their size.
    assert 0.875 / fixres_scale() / 0.875 == pytest.approx(0.80 * 1.0, abs=0.01)
    sides = (0.08 + 0.92 * torch.rand(10**6, generator=torch.Generator().manual_seed(0))).sqrt()
    assert fixres_scale(test_crop=1.0) == pytest.approx(1 / float(sides.mean()), rel=1e-3)
    assert fixres_scale(area=(0.25, 0.25), test_crop=0.5, train_zoom=3) == 3.0
