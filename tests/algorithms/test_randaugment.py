"""RandAugment and AugMix in the loop do what their functions do."""

import pytest
import torch
from torch import nn

from composable import Event, Key
from composable.algorithms import AugMix, RandAugment
from composable.functional import augmix, randaugment
from tests.helpers import CLASSES, Watch, make_trainer, seeded

PAIRS = {
    RandAugment: (randaugment, {"severity": 5, "depth": 3, "augmentations": "original"}),
    AugMix: (augmix, {"severity": 5, "depth": 2, "width": 2, "alpha": 0.5}),
}
each = pytest.mark.parametrize("algorithm", list(PAIRS))
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def data(sizes=(4, 4, 4)):
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.rand(n, 3, 8, 8, generator=draw), torch.randint(CLASSES, (n,), generator=draw))
        for n in sizes
    ]


def generator(batch, name):
    return Key(17).fold(name, batch).generator()


def net():
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, CLASSES)))


def seen(*algorithms, event=Event.BEFORE_FORWARD, **changes):
    watch = Watch(event, read=lambda s: s.inputs)
    make_trainer(
        net(),
        **{"train_dataloader": data(), "max_duration": "1ep"} | changes,
        algorithms=algorithms,
        callbacks=[watch],
    ).fit()
    return watch.values


@each
@pytest.mark.parametrize("given", [False, True])
def test_the_batch_is_that_of_the_function(algorithm, given):
    function, options = PAIRS[algorithm]
    options = options if given else {}

    for step, (inputs, (images, _)) in enumerate(
        zip(seen(algorithm(**options)), data(), strict=True)
    ):
        generator_ = generator(step, algorithm.__name__)
        assert torch.equal(inputs, function(images, generator=generator_, **options))
        assert not torch.equal(inputs, images)


@each
def test_normalized_images_are_augmented_as_they_were_before(algorithm):
    function, _ = PAIRS[algorithm]
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    normalized = [((x - mean) / std, y) for x, y in data()]

    values = seen(algorithm(mean=MEAN, std=STD), train_dataloader=normalized)

    for step, (inputs, (images, _)) in enumerate(zip(values, data(), strict=True)):
        expected = function(images, generator=generator(step, algorithm.__name__))
        assert ((inputs * std + mean - expected).abs() > 1e-4).float().mean() < 0.02


@each
def test_uint8_images_stay_uint8(algorithm):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, images):
            return self.net(images / 255)

    batches = [((255 * x).to(torch.uint8), y) for x, y in data()]
    watch = Watch(Event.BEFORE_FORWARD, read=lambda s: s.inputs.dtype)
    make_trainer(
        seeded(Scaled), train_dataloader=batches, algorithms=[algorithm()], callbacks=[watch]
    ).fit()

    assert set(watch.values) == {torch.uint8}


@each
def test_evaluation_sees_the_images_as_they_are(algorithm):
    watch = Watch(Event.EVAL_BEFORE_FORWARD, read=lambda s: s.inputs)
    batches = data([4])
    make_trainer(
        net(),
        train_dataloader=data(),
        eval_dataloader=batches,
        algorithms=[algorithm()],
        callbacks=[watch],
    ).fit()

    assert watch.values
    assert all(inputs is batches[0][0] for inputs in watch.values)


@each
def test_the_whole_batch_is_augmented_before_it_is_split(algorithm):
    whole, parts = seen(algorithm()), seen(algorithm(), grad_accum=2)

    joined = [torch.cat(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    assert len(whole) == len(joined) == 3
    assert all(torch.equal(a, b) for a, b in zip(whole, joined, strict=True))


@each
def test_a_name_of_its_own_is_a_stream_of_its_own(algorithm):
    function, _ = PAIRS[algorithm]
    images = data()[0][0]

    first = seen(algorithm(name="Other"))[0]

    assert torch.equal(first, function(images, generator=generator(0, "Other")))


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: RandAugment(severity=11), ValueError, r"severity=11 must be in \[0, 10\]"),
        (lambda: RandAugment(severity="9"), TypeError, "severity='9' must be a number"),
        (lambda: RandAugment(depth=-1), ValueError, "depth=-1 must be at least 0"),
        (lambda: RandAugment(depth=1.5), TypeError, "depth=1.5 must be an integer"),
        (lambda: RandAugment(augmentations="some"), ValueError, "augmentations='some' must be one"),
        (lambda: RandAugment(mean=(0.5,)), ValueError, r"mean=\(0.5,\) and std=None must be given"),
        (lambda: AugMix(std=(0.5,)), ValueError, r"mean=None and std=\(0.5,\) must be given tog"),
        (lambda: AugMix(mean=(0.5,), std=(0,)), ValueError, r"std=\(0,\) must be greater than 0"),
        (
            lambda: AugMix(mean=("a",), std=(1,)),
            TypeError,
            r"mean=\('a',\) must be a sequence of numbers, one",
        ),
        (
            lambda: AugMix(mean=0.5, std=0.5),
            TypeError,
            "mean=0.5 must be a sequence of numbers, one per channel",
        ),
        (lambda: AugMix(depth=0), ValueError, "depth=0 must be at least 1, or -1"),
        (lambda: AugMix(depth=-2), ValueError, "depth=-2 must be at least -1"),
        (lambda: AugMix(width=0), ValueError, "width=0 must be at least 1"),
        (lambda: AugMix(alpha=0), ValueError, r"alpha=0 must be greater than 0"),
    ],
)
def test_hyperparameters_are_checked(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_an_algorithm_is_a_frozen_value():
    assert RandAugment(9, 2) == RandAugment()
    assert AugMix(mean=[0.5], std=[0.5]) == AugMix(mean=(0.5,), std=(0.5,))
    assert repr(RandAugment(3)) == (
        "RandAugment(severity=3, depth=2, augmentations='all', mean=None, std=None)"
    )


@each
def test_normalized_images_are_floats(algorithm):
    batches = [((255 * x).to(torch.uint8), y) for x, y in data()]

    with pytest.raises(
        TypeError, match=r"images must be normalized.*torch.uint8; pass neither mean"
    ):
        seen(algorithm(mean=MEAN, std=STD), train_dataloader=batches)


@each
def test_inputs_that_are_no_images_are_refused(algorithm):
    batches = [((x, x), y) for x, y in data()]

    with pytest.raises(TypeError, match="images must be a tensor, not a tuple"):
        seen(algorithm(), train_dataloader=batches)
