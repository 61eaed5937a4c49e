"""Law: the loss of a whole is that of its parts, under every split, or the split is refused."""

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from composable import Event, SplitLossError
from composable.algorithms import LabelSmoothing, MixUp
from composable.distributed import DDP
from tests.support.campaign import each_once
from tests.support.losses import RECOGNIZED, REFUSED, WEIGHTS, WITH_EFFECTS
from tests.support.models import weights
from tests.support.runs import gradients_of, make_trainer
from tests.support.split_losses import LOSSES, SIZES, SPLITS, examples, model, parts_of
from tests.support.strategies import explicit, fewest

sizes = st.lists(st.integers(2, 5), min_size=2, max_size=4)


def whole_and_parts(sizes, split, **data):
    """Return the loader of a whole batch, and one for the split, with its options."""
    whole = [examples(sum(sizes), **data)]
    if "accumulate_batches" not in split:
        return whole, whole, split
    return whole, parts_of(sizes, **data), {**split, "accumulate_batches": len(sizes)}


@st.composite
def all_splits(draw):
    """Draw microbatches, accumulated batches, shards, or several of them."""
    split = {}
    if draw(st.booleans()):
        split[draw(st.sampled_from(["grad_accum", "microbatch_size"]))] = draw(st.integers(1, 4))
    if draw(st.booleans()):
        split["accumulate_batches"] = None
    if draw(st.booleans()):
        split["parallel"] = DDP(shards=draw(st.integers(1, 4)))
    return split


def gradients(loss, loader, **options):
    return gradients_of(model(), loader, loss_fn=loss, **options)


@pytest.mark.parametrize("name", LOSSES)
@explicit
@given(sizes=sizes, split=all_splits(), seed=st.integers(0, 99))
@example(sizes=[5, 2], split={"microbatch_size": 1}, seed=0)
@example(sizes=[5, 2, 3], split={"accumulate_batches": None, "grad_accum": 2}, seed=1)
@example(sizes=[4, 5], split={"parallel": DDP(shards=3), "microbatch_size": 2}, seed=2)
def test_loss_of_a_whole_is_that_of_its_parts_or_refused(name, sizes, split, seed):
    loss = LOSSES[name]
    whole, parts, options = whole_and_parts(sizes, split, seed=seed)
    assume(loss(model()(whole[0][0]), whole[0][1]).isfinite())  # a count may be 0 in the whole

    expected = gradients(loss, whole)
    try:
        found = gradients(loss, parts, **options)
    except SplitLossError:
        assert name in REFUSED
        return

    assert_close(found, expected)


AFTER_PASSES = (
    *(Event.AFTER_TRAIN_BATCH, Event.BEFORE_OPTIMIZER_STEP, Event.AFTER_OPTIMIZER_STEP),
    *(Event.AFTER_ZERO_GRAD, Event.BATCH_END, Event.BATCH_CHECKPOINT),
)


def seen_after(loader, **options):
    """Return what a callback reads of a batch after its forward passes, or the errors' messages."""
    seen = {}

    def read(event, state, logger):
        if event in AFTER_PASSES:
            for name in ("inputs", "targets", "outputs", "loss"):
                try:
                    seen[event, name] = getattr(state, name)
                except (AttributeError, ValueError) as error:
                    seen[event, name] = str(error)

    make_trainer(model(), loader, max_duration="1ba", callbacks=[read], **options).fit()
    return seen


@fewest
@given(sizes=sizes, split=all_splits(), seed=st.integers(0, 99))
@example(sizes=[5, 2], split={"microbatch_size": 2}, seed=0)
@example(sizes=[5, 2], split={"microbatch_size": 20}, seed=0)
@example(sizes=[5, 2, 3], split={"accumulate_batches": None, "grad_accum": 2}, seed=1)
@example(sizes=[4, 5], split={"parallel": DDP(shards=3)}, seed=2)
def test_a_callback_reads_a_split_batch_as_a_whole_or_not_at_all(sizes, split, seed):
    """Law of accumulation: After its forward passes, a callback reads of a split batch what it
    reads of a whole one, or an error that names what to read instead.
    """
    whole, parts, options = whole_and_parts(sizes, split, seed=seed)
    expected = seen_after(whole)

    found = seen_after(parts, **options)

    assert found.keys() == expected.keys()
    for (event, name), value in found.items():
        if isinstance(value, str):
            assert "AFTER_FORWARD" in value if name == "outputs" else "batch.batches" in value
        else:
            assert_close(value, expected[event, name])


EVALUATED = {
    "double": (torch.float64, 1e-6),
    "fp32": (torch.float32, 1e-4),
    "amp_bf16": (torch.float32, 0.05),
}
"""The dtype of a model, and how far its loss may be from that in double precision, by rounding."""


@pytest.mark.parametrize("name", LOSSES)
@explicit
@given(sizes=sizes, seed=st.integers(0, 99), precision=st.sampled_from(list(EVALUATED)))
@example(sizes=[5, 1, 3], seed=0, precision="double")
@example(sizes=[5, 1, 3, 4], seed=0, precision="fp32")
@example(sizes=[5, 1, 3, 4], seed=0, precision="amp_bf16")
def test_evaluated_loss_of_a_whole_is_that_of_its_parts_or_refused(name, sizes, seed, precision):
    dtype, tolerance = EVALUATED[precision]
    inputs, targets = examples(sum(sizes), seed)
    expected = LOSSES[name](model()(inputs), targets)
    assume(expected.isfinite())  # a count may be 0 in the whole
    loader = [(inputs.to(dtype), targets) for inputs, targets in parts_of(sizes, seed=seed)]
    options = {} if precision == "double" else {"precision": precision}

    trainer = make_trainer(model(dtype), loss_fn=LOSSES[name], **options)
    found = trainer.eval(loader)["eval"]["loss"]

    assert found == pytest.approx(expected.item(), rel=tolerance)


@pytest.mark.parametrize(("name", "split"), each_once([*REFUSED, *WITH_EFFECTS], list(SPLITS)))
def test_refusal_comes_before_any_weight_changes_and_names_the_cures(name, split):
    loss, trained = {**REFUSED, **WITH_EFFECTS}[name], model()

    trainer = make_trainer(trained, parts_of(SIZES), loss_fn=loss, **SPLITS[split])
    with pytest.raises(SplitLossError, match=r"Add WholeLoss.*loss_mean_over=") as raised:
        trainer.fit()
    assert len(str(raised.value).split()) <= 60

    assert_close(weights(trained), weights(model()), rtol=0, atol=0)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    "name", ["CrossEntropyLoss, weights, mean", "masked", "distilled", "weights and squares"]
)
def test_compiled_models_and_losses_are_split_alike(name):
    whole, parts, options = whole_and_parts([7, 6], {"microbatch_size": 3})
    expected = gradients(LOSSES[name], whole)

    compiled = torch.compile(LOSSES[name], backend="eager")
    found = gradients(compiled, parts, **options, compile={"backend": "eager"})

    assert_close(found, expected)


ALGORITHMS = [
    [MixUp()],
    [LabelSmoothing()],
    [MixUp(), LabelSmoothing()],
    [MixUp(per_sample=True)],
    [MixUp(interpolate_loss=True)],
]

CLASS_LOSSES = {
    "mean": nn.CrossEntropyLoss(),
    "weights": nn.CrossEntropyLoss(WEIGHTS),
    "ignored": nn.CrossEntropyLoss(ignore_index=1),
    "sum": nn.CrossEntropyLoss(WEIGHTS, reduction="sum"),
    "function": RECOGNIZED["a function"],
}


@pytest.mark.parametrize("algorithms", ALGORITHMS, ids=str)
@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_mixed_and_smoothed_targets_are_split_too(name, algorithms):
    loss = CLASS_LOSSES[name]
    whole, parts, options = whole_and_parts([7, 6], {"microbatch_size": 3})

    expected = gradients(loss, whole, algorithms=algorithms)
    found = gradients(loss, parts, algorithms=algorithms, **options)

    assert_close(found, expected)


def mean_over_labels(outputs, targets):
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return losses.sum() / (targets >= 0).sum()


@pytest.mark.parametrize("declared", [{}, {"loss_mean_over": "tokens"}], ids=str)
@pytest.mark.parametrize(
    ("algorithms", "loss"),
    [*((one, nn.CrossEntropyLoss()) for one in ALGORITHMS), (ALGORITHMS[-1], mean_over_labels)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@fewest
@given(
    labeled=st.lists(st.booleans(), min_size=13, max_size=13).filter(any), seed=st.integers(0, 9)
)
@example(labeled=[True] * 7 + [False] * 6, seed=0)
@example(labeled=[i % 3 > 0 for i in range(13)], seed=1)
@example(labeled=[True] + [False] * 12, seed=2)
def test_pairs_with_unequal_numbers_of_labels_are_split_too(
    algorithms, loss, declared, labeled, seed
):
    whole, parts, options = whole_and_parts([7, 6], {"microbatch_size": 2}, seed=seed)
    for _, targets in whole:
        targets.masked_fill_(~torch.tensor(labeled), -100)

    expected = gradients(loss, whole, algorithms=algorithms)
    found = gradients(loss, parts, algorithms=algorithms, **options, **declared)

    assert_close(found, expected)
