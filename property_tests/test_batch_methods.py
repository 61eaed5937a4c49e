"""Laws: what the methods on batches mean, for batches of any shape."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F
from composable import Event, Key, State
from composable.algorithms import (
    ColOut,
    CutMix,
    CutOut,
    MixUp,
    ProgressiveResizing,
    SeqLengthWarmup,
)

CLASSES = 3

seeds = st.integers(0, 2**32 - 1)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=3)
shares = st.floats(0, 0.99)


def generator(seed):
    return torch.Generator().manual_seed(seed)


@st.composite
def image_batches(draw, min_batch=1):
    """Draw inputs `[batch, channels, *size]` whose numbers are all distinct, and class indices."""
    shape = (draw(st.integers(min_batch, 5)), draw(st.integers(1, 3)), *draw(sizes))
    count = torch.Size(shape).numel()
    inputs = torch.randperm(count, generator=generator(draw(seeds))).reshape(shape).double()
    return inputs, torch.arange(shape[0]) % CLASSES


def places(size, batch):
    """Build images whose channels hold the position of each pixel."""
    grid = torch.meshgrid(*map(torch.arange, size), indexing="ij")
    return torch.stack(grid).double().expand(batch, len(size), *size)


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
    mixed = mix(*batch, generator=generator(seed))
    logits = torch.randn(len(batch[0]), CLASSES, generator=generator(seed)).double()
    loss = partial(cross_entropy, reduction="none" if mixed.weight.ndim else "mean")

    assert_close(
        mixed.loss(loss, logits),
        cross_entropy(logits, mixed.soft_targets(CLASSES).double()),
        rtol=1e-6,
        atol=1e-6,
    )


@given(image_batches(), mixings, seeds)
def test_the_mass_of_the_labels_is_kept(batch, mix, seed):
    soft = mix(*batch, generator=generator(seed)).soft_targets(CLASSES)

    assert (soft >= 0).all()
    assert_close(soft.sum(1), torch.ones(len(soft)))


@given(image_batches(min_batch=2), st.booleans(), st.booleans(), seeds)
def test_the_weight_is_the_share_of_an_examples_own_pixels(batch, per_sample, uniform, seed):
    inputs, labels = batch
    mixed = F.cutmix(
        *batch, per_sample=per_sample, uniform_sampling=uniform, generator=generator(seed)
    )

    own = (mixed.inputs == inputs).flatten(1).double().mean(1)
    partner = F.cutmix(
        inputs,
        torch.arange(len(labels)),
        per_sample=per_sample,
        uniform_sampling=uniform,
        generator=generator(seed),
    ).partner_targets
    moved = partner != torch.arange(len(labels))
    assert_close(mixed.weight.expand(len(own))[moved], own[moved])
    assert torch.equal(mixed.inputs[~moved], inputs[~moved])
    from_partner = (mixed.inputs == inputs[partner]) | (mixed.inputs == inputs)
    assert from_partner.all()


# Holes, rows and columns, crops


@given(image_batches(), st.integers(0, 3), st.floats(0, 0.99) | st.integers(1, 12), seeds)
def test_a_hole_hides_all_channels_and_changes_nothing_else(batch, num_holes, length, seed):
    inputs = batch[0] + 1
    options = {"num_holes": num_holes, "length": length}

    cut = F.cutout(inputs, **options, generator=generator(seed))

    hidden = cut == 0
    assert torch.equal(cut[~hidden], inputs[~hidden])
    assert torch.equal(hidden.all(1), hidden.any(1))
    assert bool(hidden.any()) <= bool(num_holes and length)
    side = length if length >= 1 or not length else max(1, round(length * min(inputs.shape[2:])))
    assert hidden[:, 0].flatten(1).sum(1).max() <= num_holes * side ** len(inputs.shape[2:])


@given(sizes, shares, shares, seeds)
def test_images_and_maps_lose_the_same_rows_and_columns(size, p_row, p_col, seed):
    inputs = places(size, 2)
    maps = inputs[:, :1] * 10 + 1

    small = F.colout(inputs, maps, p_row=p_row, p_col=p_col, generator=generator(seed))

    assert torch.equal(small.targets, small.inputs[:, :1] * 10 + 1)
    for dim in range(len(size)):  # the pixels still stand in their order, in a grid
        along = small.inputs[0, dim].movedim(dim, 0)
        assert (along.diff(dim=0) > 0).all()
        rows = along.reshape(len(along), -1)
        assert (rows == rows[:, :1]).all()


@given(sizes, st.floats(0.01, 1), st.integers(1, 5), seeds)
def test_a_crop_of_images_and_maps_is_one_region(size, scale, increment, seed):
    inputs = places(size, 2)

    small = F.resize_batch(
        inputs,
        inputs[:, 0],
        scale_factor=scale,
        mode="crop",
        size_increment=increment,
        resize_targets=True,
        generator=generator(seed),
    )

    assert torch.equal(small.targets, small.inputs[:, 0])
    for dim in range(len(size)):
        assert (small.inputs[0, dim].diff(dim=dim) == 1).all()


@given(sizes, st.floats(0.01, 1), st.integers(1, 5))
def test_a_resized_map_names_the_pixel_that_the_image_shows(size, scale, increment):
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
def test_in_pieces_each_token_is_learned_exactly_once(batch, length):
    pieces = F.set_sequence_length(batch, length, truncate=False)

    labels = pieces["labels"]
    assert labels[labels >= 0].tolist() == batch["labels"][batch["labels"] >= 0].tolist()
    assert torch.equal(labels[labels >= 0], pieces["input_ids"][labels >= 0])
    assert torch.equal(pieces["input_ids"] > 0, pieces["attention_mask"] > 0)
    assert pieces["input_ids"].shape[1] == min(length, batch["input_ids"].shape[1])


@given(texts(), st.integers(1, 25))
def test_a_text_that_is_cut_off_still_ends_with_its_end(batch, length):
    short = F.set_sequence_length(batch, length, preserve_end_of_sequence=True)

    for name, fill in (("input_ids", 0), ("labels", -100)):
        for whole, cut in zip(batch[name].tolist(), short[name].tolist(), strict=True):
            real = [token for token in whole if token != fill]
            kept = [token for token in cut if token != fill]
            expected = real if len(real) <= length else [*real[: length - 1], real[-1]]
            assert kept == expected


@given(
    st.floats(0, 1),
    st.integers(1, 50),
    st.integers(0, 50),
    st.integers(1, 60),
    st.lists(st.floats(0, 1), min_size=2, max_size=5),
)
def test_the_length_never_shrinks_and_stays_within(duration, least, more, step, times):
    options = {"min_seq_length": least, "max_seq_length": least + more, "step_size": step}

    lengths = [F.warmed_up_length(t, duration=duration, **options) for t in (0, *sorted(times), 1)]

    assert lengths == sorted(lengths)
    assert least <= lengths[0]
    assert lengths[-1] == least + more


@given(st.floats(0.01, 1), shares, st.floats(0, 1), st.lists(st.floats(0, 1), max_size=5))
def test_the_scale_never_shrinks_and_stays_within(initial, delay, rest, times):
    finetune = (1 - delay) * rest
    options = {"delay_fraction": delay, "finetune_fraction": finetune, "initial_scale": initial}

    scales = [F.progressive_scale(t, **options) for t in (0, *sorted(times), 1)]

    assert scales == sorted(scales)
    assert initial <= scales[0]
    assert scales[-1] == 1


# The algorithms are the functions, and a neutral setting is the identity


algorithms = st.one_of(
    st.builds(CutMix, per_sample=st.booleans(), uniform_sampling=st.booleans()),
    st.builds(CutOut, num_holes=st.integers(0, 2), per_sample=st.booleans()),
    st.builds(ColOut, p_row=shares, p_col=shares),
    st.builds(ProgressiveResizing, mode=st.sampled_from(["resize", "crop"])),
)


@pytest.mark.parametrize(
    "neutral",
    [
        CutOut(num_holes=0),
        CutOut(length=0, per_sample=False),
        ColOut(0, 0),
        ProgressiveResizing(initial_scale=1.0),
        ProgressiveResizing("crop", finetune_fraction=1.0, delay_fraction=0.0),
        SeqLengthWarmup(duration=0.0),
        SeqLengthWarmup(min_seq_length=100, max_seq_length=100),
        MixUp(5e-324),
    ],
    ids=repr,
)
@settings(max_examples=10)
@given(batch=image_batches(), seed=seeds)
def test_a_neutral_setting_is_the_identity(neutral, batch, seed):
    state = State(torch.nn.Identity(), batch=batch, key=Key(seed), max_duration="4ba")
    event = min(neutral.events, key=list(Event).index)

    assert torch.equal(neutral(event, state).inputs, batch[0])
