"""Laws: what the functions of the methods mean, for batches and models of any shape."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F
from tests.support.strategies import few, seeds
from tests.support.tensors import noise, randn, seeded

CLASSES = 3

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=3)
shares = st.floats(0, 1)


@st.composite
def image_batches(draw, min_batch=1):
    """Draw inputs `[batch, channels, *size]` whose numbers are all distinct, and class indices."""
    shape = (draw(st.integers(min_batch, 5)), draw(st.integers(1, 3)), *draw(sizes))
    count = torch.Size(shape).numel()
    inputs = torch.randperm(count, generator=seeded(draw(seeds))).reshape(shape).double()
    return inputs, torch.arange(shape[0]) % CLASSES


def places(size, batch):
    """Build images whose channels hold the position of each pixel."""
    grid = torch.meshgrid(*map(torch.arange, size), indexing="ij")
    return torch.stack(grid).double().expand(batch, len(size), *size)


def inside(box, size):
    """Return the mask of the pixels in a box, which may extend over the border."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[tuple(slice(start, stop) for start, stop in box.clamp(0).tolist())] = True
    return mask


mixings = st.sampled_from(
    [
        F.mixup,
        partial(F.mixup, per_sample=True, alpha=1.0),
        F.cutmix,
        partial(F.cutmix, per_sample=True),
        partial(F.cutmix, uniform_sampling=True, alpha=0.5),
    ]
)


# Mixing


@given(image_batches(), mixings, seeds)
def test_the_mixed_loss_is_the_loss_on_soft_targets(batch, mix, seed):
    """Law of methods: The mixed loss equals the loss on soft targets, for losses that are linear in
    the targets.
    """
    mixed = mix(*batch, generator=seeded(seed))
    logits = torch.randn(len(batch[0]), CLASSES, generator=seeded(seed)).double()
    loss = partial(cross_entropy, reduction="none" if mixed.weight.ndim else "mean")

    assert_close(
        mixed.loss(loss, logits),
        cross_entropy(logits, mixed.soft_targets(CLASSES).double()),
        rtol=1e-6,
        atol=1e-6,
    )


@given(image_batches(), st.booleans(), st.booleans(), seeds)
def test_cutmix_weight_is_the_fraction_of_kept_pixels(batch, per_sample, uniform, seed):
    """Law of methods: The CutMix weight is the fraction of pixels that an example keeps."""
    (inputs, labels), size = batch, batch[0].shape[2:]
    options = {"per_sample": per_sample, "uniform_sampling": uniform}
    draw = F.draw_cutmix(len(inputs), size, **options, generator=seeded(seed))

    mixed = F.apply_cutmix(inputs, labels, draw)

    boxes = draw.box if per_sample else draw.box.expand(len(inputs), -1, -1)
    pasted = torch.stack([inside(box, size) for box in boxes])
    partners = inputs[draw.permutation]
    assert torch.equal(mixed.inputs, torch.where(pasted.unsqueeze(1), partners, inputs))
    own = 1 - pasted.flatten(1).double().mean(1)
    assert_close(mixed.weight.expand(len(inputs)), own)
    assert torch.equal(mixed.targets, labels)
    assert torch.equal(mixed.partner_targets, labels[draw.permutation])


# Holes, rows and columns, crops


hole_options = st.fixed_dictionaries(
    {
        "num_holes": st.integers(0, 3),
        "length": st.integers(0, 12),
        "per_sample": st.booleans(),
        "uniform_sampling": st.booleans(),
    }
)


@given(image_batches(), hole_options, seeds)
def test_holes_are_zero_in_all_channels_and_the_rest_is_unchanged(batch, options, seed):
    inputs, size = batch[0] + 1, batch[0].shape[2:]
    draw = F.draw_cutout(len(inputs), size, **options, generator=seeded(seed))

    cut = F.apply_cutout(inputs, draw)

    expected = inputs.clone()
    for example, holes in zip(expected, draw.expand(len(inputs), -1, -1, -1), strict=True):
        for hole in holes:
            example[:, inside(hole, size)] = 0
    assert torch.equal(cut, expected)
    assert (draw[..., 1] - draw[..., 0] == options["length"]).all()


@given(image_batches(min_batch=2), st.integers(0, 4), st.data(), seeds)
def test_translated_images_are_those_of_each_part_of_the_batch(batch, max_shift, data, seed):
    """Law of methods: The translations of a batch equal its parts', with their rows of the draw;
    without a shift they are the images.
    """
    inputs, size = batch[0], batch[0].shape[2:]
    options = {"max_shift": min(max_shift, min(size) - 1)}
    split = data.draw(st.integers(1, len(inputs) - 1))
    draw = F.draw_random_translation(len(inputs), size, **options, generator=seeded(seed))

    pairs = zip(inputs.split(split), draw.split(split), strict=True)
    parts = [F.apply_random_translation(*one) for one in pairs]

    assert torch.equal(torch.cat(parts), F.apply_random_translation(inputs, draw))
    fewer = F.draw_random_translation(split, size, **options, generator=seeded(seed))
    assert torch.equal(fewer, draw[:split])
    assert torch.equal(F.random_translation(inputs, max_shift=0), inputs)


@given(image_batches(), st.booleans(), st.sampled_from(["logits", "probabilities"]), seeds)
def test_views_do_not_change_the_outputs_of_a_model_to_which_they_are_equal(
    batch, flip, average, seed
):
    """Law of methods: Test-time augmentation does not change the outputs of a model that are the
    same for all views.
    """
    flat = batch[0].flatten(2)[..., 0]  # one value for each channel
    images = flat.reshape(*flat.shape, *[1] * (batch[0].ndim - 2)).expand_as(batch[0])
    weight = torch.rand(images[0].numel(), CLASSES, generator=seeded(seed)).double()

    def model(inputs):
        return inputs.flatten(1) @ weight / weight.numel() / images.amax().clamp(1)

    shift = int(min(images.shape[2:]) > 1)
    found = F.tta(model, images, flip=flip, shift=shift, average=average)

    assert_close(found.log_softmax(1), model(images).log_softmax(1))


@given(sizes, st.floats(0, 0.99), st.floats(0, 0.99), st.booleans(), seeds)
def test_colout_drops_the_same_rows_and_columns_of_images_and_maps(
    size, p_row, p_col, per_sample, seed
):
    """Law of methods: Per-pixel targets stay aligned with inputs that are resized, cropped or
    thinned.
    """
    inputs = places(size, 2)
    options = {"p_row": p_row, "p_col": p_col}
    batch_size = 2 if per_sample else None

    for maps in (lambda x: x[:, :1] * 10 + 1, lambda x: x[:, 0].long()):
        small = F.colout(
            inputs, maps(inputs), **options, per_sample=per_sample, generator=seeded(seed)
        )

        draw = F.draw_colout(size, **options, batch_size=batch_size, generator=seeded(seed))
        parts = list(inputs)
        for dim, kept in ((-1, draw.columns), (-2, draw.rows)):
            if kept is not None:
                assert (kept.diff() > 0).all()
                pairs = zip(parts, kept.expand(2, -1), strict=True)
                parts = [one.index_select(dim, indices) for one, indices in pairs]
        expected = torch.stack(parts)
        assert torch.equal(small.inputs, expected)
        assert torch.equal(small.targets, maps(expected))


@given(sizes, st.floats(0.01, 1), st.integers(1, 5), seeds)
def test_crop_takes_the_same_region_of_images_and_maps(size, scale, increment, seed):
    """Law of methods: Per-pixel targets stay aligned with inputs that are resized, cropped or
    thinned.
    """
    inputs = places(size, 2)

    small = F.resize_batch(
        inputs,
        inputs[:, 0],
        scale_factor=scale,
        mode="crop",
        size_increment=increment,
        resize_targets=True,
        generator=seeded(seed),
    )

    assert torch.equal(small.targets, small.inputs[:, 0])
    new = F.scaled_size(size, scale_factor=scale, size_increment=increment)
    at = F.draw_crop(size, new, generator=seeded(seed)).tolist()
    region = tuple(slice(start, start + n) for start, n in zip(at, new, strict=True))
    assert torch.equal(small.inputs, inputs[(..., *region)])


@given(sizes, st.floats(0.01, 1), st.integers(1, 5))
def test_resized_map_matches_the_resized_image(size, scale, increment):
    """Law of methods: Per-pixel targets stay aligned with inputs that are resized, cropped or
    thinned.
    """
    inputs = places(size, 2)
    options = {"scale_factor": scale, "size_increment": increment, "resize_targets": True}

    small = F.resize_batch(inputs, inputs.long(), **options)

    assert small.inputs.shape == small.targets.shape
    assert ((small.inputs - small.targets).abs() <= 0.5 + 1e-9).all()


# Sequences


@st.composite
def texts(draw):
    """Draw padded texts whose tokens are all distinct, with labels."""
    examples, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    real = torch.tensor([[draw(st.integers(1, tokens))] for _ in range(examples)])
    mask = torch.arange(tokens) < real
    ids = torch.arange(1, examples * tokens + 1).reshape(examples, tokens)
    labels = torch.where(mask, ids, -100)
    return {"input_ids": ids * mask, "attention_mask": mask.long(), "labels": labels}


@given(texts(), st.integers(1, 25))
def test_pieces_contain_each_token_once(batch, length):
    pieces = F.set_sequence_length(batch, length, truncate=False)

    labels = pieces["labels"]
    assert labels[labels >= 0].tolist() == batch["labels"][batch["labels"] >= 0].tolist()
    assert torch.equal(labels[labels >= 0], pieces["input_ids"][labels >= 0])
    assert torch.equal(pieces["input_ids"] > 0, pieces["attention_mask"] > 0)
    assert pieces["input_ids"].shape[1] == min(length, batch["input_ids"].shape[1])


@given(texts(), st.integers(1, 25))
def test_truncation_preserves_the_end_of_a_sequence(batch, length):
    short = F.set_sequence_length(batch, length, preserve_end_of_sequence=True)

    assert torch.equal(short["input_ids"] > 0, short["attention_mask"] > 0)
    for name, fill in (("input_ids", 0), ("labels", -100)):
        for whole, cut in zip(batch[name].tolist(), short[name].tolist(), strict=True):
            real = [token for token in whole if token != fill]
            kept = [token for token in cut if token != fill]
            expected = real if len(real) <= length else [*real[: length - 1], real[-1]]
            assert kept == expected


# Selection


@given(seed=seeds, batch=st.integers(0, 200), keep=st.floats(1e-6, 1))
def test_selection_keeps_exactly_its_share_and_nothing_twice(seed, batch, keep):
    chosen = F.select_using_loss(
        randn(batch, seed=seed), keep=keep, generator=seeded(seed)
    ).tolist()

    assert len(chosen) == min(batch, max(1, round(keep * batch)))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(batch))


@given(seed=seeds, batch=st.integers(0, 9), keep=st.floats(1e-6, 1), shuffle=seeds)
def test_selection_follows_the_examples_when_a_batch_is_shuffled(seed, batch, keep, shuffle):
    losses = torch.randperm(batch, generator=seeded(seed)).float()  # no two are equal
    order = torch.randperm(batch, generator=seeded(shuffle))
    draw = F.draw_selection(batch, keep=keep, generator=seeded(seed))

    shuffled = order[F.apply_selection(losses[order], draw)]

    assert torch.equal(shuffled.sort().values, F.apply_selection(losses, draw))


# RandAugment and AugMix: each operation is compared with Pillow in tests/functional


@st.composite
def images(draw):
    """Draw a batch of noise, as uint8 or as floats."""
    lengths = st.integers(1, 9)
    shape = draw(st.integers(1, 6)), draw(st.sampled_from([1, 3])), draw(lengths), draw(lengths)
    levels = noise(*shape, seed=draw(seeds))
    return levels / 255 if draw(st.booleans()) else levels


@pytest.mark.parametrize(
    ("draws", "apply"),
    [(F.draw_randaugment, F.apply_randaugment), (F.draw_augmix, F.apply_augmix)],
    ids=["randaugment", "augmix"],
)
@given(
    x=images(),
    seed=seeds,
    severity=st.floats(0, 10),
    augmentations=st.sampled_from(["all", "safe", "original"]),
)
@few
def test_a_batch_is_augmented_as_its_images_are_one_by_one(
    draws, apply, x, seed, severity, augmentations
):
    drawn = draws(len(x), severity=severity, augmentations=augmentations, generator=seeded(seed))

    together = apply(x, drawn)

    assert together.min() >= -1e-5
    assert together.max() <= (255 if x.dtype == torch.uint8 else 1 + 1e-5)
    for i in range(len(x)):  # the batch is the last dimension of each part of a draw
        alone = type(drawn)(*(part[..., [i]] for part in drawn))
        assert torch.equal(together[i : i + 1], apply(x[i : i + 1], alone))


# Layer freezing


@st.composite
def models(draw):
    """Draw nested modules: some hold parameters, some share them, some are frozen."""
    pool = [nn.Parameter(torch.zeros(1), requires_grad=draw(st.booleans())) for _ in range(6)]

    def module(depth):
        new = nn.Module()
        for i in range(draw(st.integers(0, 2))):
            new.register_parameter(f"p{i}", draw(st.sampled_from(pool)))
        for i in range(draw(st.integers(0, 3)) if depth else 0):
            new.add_module(f"m{i}", module(depth - 1))
        return new

    return module(2)


@given(models(), shares, shares, shares, shares)
def test_frozen_layers_stay_frozen_and_some_always_train(model, start, level, one, other):
    def frozen(elapsed):
        return F.frozen_layers(model, elapsed=elapsed, freeze_start=start, freeze_level=level)

    early, late = (frozen(t) for t in sorted([one, other]))
    trains = [name for name, p in model.named_parameters() if p.requires_grad]

    assert late.layers[: len(early.layers)] == early.layers
    assert late.parameters[: len(early.parameters)] == early.parameters
    assert len(set(late.parameters)) == len(late.parameters)
    assert set(late.parameters) <= {name for name, _ in model.named_parameters()}
    assert not trains or set(trains) - set(late.parameters)
    assert early.layers == () or min(one, other) > start


@given(models(), shares, shares)
def test_frozen_layers_do_not_depend_on_requires_grad(model, one, other):
    frozen = partial(F.frozen_layers, model, freeze_start=0.0)
    before = frozen(elapsed=other)
    for name in frozen(elapsed=one).parameters:
        model.get_parameter(name).requires_grad_(False)

    assert frozen(elapsed=other) == before


@given(models(), shares, shares)
def test_layers_are_frozen_in_order(model, elapsed, level):
    found = F.frozen_layers(model, elapsed=elapsed, freeze_start=0.0, freeze_level=level)
    last = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
    owners = [
        name.rpartition(".")[0]
        for name, p in model.named_parameters(remove_duplicate=False)
        if last[id(p)] == name
    ]
    order = list(dict.fromkeys(owners))

    assert list(found.layers) == order[: len(found.layers)]
