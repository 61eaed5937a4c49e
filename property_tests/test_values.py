"""Laws of values: what averages, weighs or masks, with infinities, NaN and missing labels."""

from copy import deepcopy
from functools import partial
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, linear
from torch.testing import assert_close

import composable.functional as F
from composable import Event
from composable.algorithms import EMA, SWA, CutMix, LabelSmoothing, MixUp
from composable.distributed import DDP
from composable.models import AuxiliaryLoss
from tests.support.observers import Watch
from tests.support.runs import gradients_of, make_trainer
from tests.support.tensors import randn

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
COPIED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int64, torch.bool]
values = st.lists(st.sampled_from([-inf, inf, nan, -0.0, 0.0, 1.5, -2.5, 6e4]), min_size=4)
shares, seeds = st.floats(0, 1), st.integers(0, 2**32)


def one(x):
    return {"x": x}


def same_bits(x, y):
    return x.dtype == y.dtype and torch.equal(x.view(torch.uint8), y.view(torch.uint8))


# Averages

OF_TENSORS = {
    "ema": lambda old, new, share: F.ema(one(old), one(new), smoothing=share)["x"],
    "swa": lambda old, new, share: F.swa(one(old), one(new), 1 + int(1e6 * share))["x"],
}
each_average = pytest.mark.parametrize("average", OF_TENSORS.values(), ids=OF_TENSORS)


def mixed(x, share):
    pairs = F.MixUpDraw(torch.tensor([1, 0]), torch.full((2,), 0.5 + share / 2))
    return F.apply_mixup(torch.stack([x, x]), torch.stack([x, x]), pairs)


OF_ITSELF = {
    "schedule_free_step": lambda x, share: F.schedule_free_step(
        one(x), one(x), one(torch.zeros_like(x)), lr=0.1, weight=share
    )[0]["x"],
    "schedule_free_average": lambda x, share: F.schedule_free_average(
        one(x), one(x), momentum=max(share, 0.1)
    )["x"],
    "mixup": lambda x, share: mixed(x, share).inputs[0],
    "soft_targets": lambda x, share: mixed(x, share).soft_targets()[0],
    "average_tta": lambda x, share: F.average_tta(torch.stack([x] * 6))[0],
}


@each_average
@given(values=values, share=shares, dtype=st.sampled_from([*FLOATS, *COPIED]))
def test_averaging_a_tensor_with_itself_returns_its_bits(average, values, share, dtype):
    """Law of values: An average of equal tensors has their bits, in every dtype."""
    x = torch.tensor(values).nan_to_num(0, 1, -1) if not dtype.is_signed else torch.tensor(values)
    x = x.to(dtype)

    assert same_bits(average(x, x.clone(), share), x)


@pytest.mark.parametrize("average", OF_ITSELF.values(), ids=OF_ITSELF)
@given(values=values, share=shares)
def test_averaging_a_value_with_itself_returns_it(average, values, share):
    """Law of values: Averaging x with x gives x, for every x."""
    x = torch.tensor(values)

    assert_close(average(x, share), x, rtol=0, atol=0, equal_nan=True)


@each_average
@given(old=values, new=values, share=st.floats(0.01, 0.99))
def test_an_entry_that_is_not_finite_is_taken_from_the_new_value(average, old, new, share):
    """Law of values: Only finite entries are averaged; others are taken from the new value."""
    size = min(len(old), len(new))
    old, new = torch.tensor(old[:size]), torch.tensor(new[:size])
    finite = old.isfinite() & new.isfinite()

    result = average(old, new, share)

    assert same_bits(result[~finite], new[~finite])
    assert_close(result[finite], average(old[finite], new[finite], share), rtol=0, atol=0)


# A weight of 0


def gradients(function, *tensors):
    """Return the results of a function and the gradients of its sum."""
    leaves = [one.clone().requires_grad_() for one in tensors]
    result = function(*leaves)
    return result.detach(), torch.autograd.grad(result.sum(), leaves)


class Added(nn.Module):
    """A residual block."""

    def forward(self, x):
        return x + x.new_tensor(self.residual)


def dropped(junk):
    block = F.stochastic_depth(Added(), target=Added, drop_rate=1.0, drop_distribution="uniform")
    block.residual = junk.tolist()
    return block.eval()(torch.ones(4))


def with_weights(junk):
    weights, teacher = torch.tensor([1.0, 0.0]), torch.stack([junk.flip(0), randn(4)]).flip(0)
    loss = partial(F.distillation_loss, teacher_logits=teacher, weights=weights)
    return gradients(loss, torch.stack([randn(4), junk]))


def mixed_with(junk):
    rows = torch.stack([ONES, junk])
    for weight in (torch.tensor(1.0), torch.ones(2)):
        batch = F.apply_mixup(rows, rows, F.MixUpDraw(torch.tensor([1, 0]), weight))
        yield batch.inputs[0], batch.soft_targets()[0]


def free_step(base, weight):
    return F.schedule_free_step(one(ONES), one(base), one(ONES), lr=0.1, weight=weight)[0]


ONES = torch.ones(4)
LABELS = torch.tensor([1, -100, 2])

UNREAD = {
    "ema, new": lambda junk: F.ema(one(ONES), one(junk), smoothing=1.0),
    "ema, old": lambda junk: F.ema(one(junk), one(ONES), smoothing=0.0),
    "swa": lambda junk: F.swa(one(junk), one(ONES), 0),
    "schedule_free_step": lambda junk: free_step(junk, 0.0),
    "schedule_free_average": lambda junk: F.schedule_free_average(one(ONES), one(junk), momentum=1),
    "sam_perturbation": lambda junk: F.sam_perturbation(one(ONES), one(junk), rho=0.0),
    "mixup": lambda junk: list(mixed_with(junk)),
    "smooth_labels": lambda junk: F.smooth_labels(torch.stack([ONES, junk], 1), smoothing=0.0)[
        :, 0
    ],
    "stochastic_depth": dropped,
    "distillation_loss": with_weights,
    "average_probabilities": lambda junk: gradients(
        lambda *z: F.average_probabilities(z, weights=torch.tensor([1.0, 0.0])),
        *(randn(2, 4), torch.stack([junk, randn(4)])),
    ),
    "linear_cross_entropy": lambda junk: gradients(
        lambda x, head: F.linear_cross_entropy(x, head, LABELS),
        *(torch.stack([randn(4), junk, randn(4, seed=1)]), randn(5, 4, seed=2)),
    ),
    "AuxiliaryLoss": lambda junk: gradients(
        lambda x: AuxiliaryLoss(cross_entropy, 0.0)((x, junk[None]), torch.tensor([1])),
        randn(1, 4),
    ),
}


@pytest.mark.parametrize("function", UNREAD.values(), ids=UNREAD)
@given(values=values)
def test_a_weight_of_0_is_not_read(function, values):
    """Law of values: A weight of 0 means not read: it changes neither a result nor a gradient."""
    assert_close(function(torch.tensor(values[:4])), function(torch.zeros(4)), rtol=0, atol=0)


# Masked classes

MASKED = {
    "jensen_shannon_loss": F.jensen_shannon_loss,
    "average_probabilities": lambda *z: F.average_probabilities(z),
    "average_tta": lambda *z: F.average_tta(torch.cat(z), shift=0, average="probabilities"),
    "distillation_loss": lambda x, y: F.distillation_loss(x, y.detach()) + 0 * y[0, 0],
}


@pytest.mark.parametrize("function", MASKED.values(), ids=MASKED)
@given(seed=seeds, batch=st.integers(1, 4))
def test_a_class_with_the_logit_minus_infinity_does_not_exist(function, seed, batch):
    """Law of values: A class with the logit -inf changes neither a result nor a gradient."""
    seen = [randn(batch, 3, seed=seed + i) for i in range(2)]
    all_of = [nn.functional.pad(x, (0, 1), value=-inf) for x in seen]

    masked, grads = gradients(
        lambda *z: function(*z)[..., :3] if function(*z).ndim else function(*z), *all_of
    )
    without, others = gradients(function, *seen)

    assert_close(masked, without)
    assert_close([grad[:, :3] for grad in grads], list(others))
    assert all((grad[:, 3] == 0).all() for grad in grads)


# No labels

IGNORED = torch.full((3,), -100)
UNLABELED = {
    "plain": lambda x, head: F.linear_cross_entropy(x, head, IGNORED),
    "smoothed": lambda x, head: F.linear_cross_entropy(x, head, IGNORED, label_smoothing=0.1),
    "capped": lambda x, head: F.linear_cross_entropy(x, head, IGNORED, softcap=5.0, chunk_size=2),
    "prefixes": lambda x, head: F.prefix_token_loss(linear(x, head), IGNORED, torch.arange(5)),
    "mixed": lambda x, head: F.MixedTargets(IGNORED, IGNORED, torch.tensor(0.7)).loss(
        cross_entropy, linear(x, head)
    ),
}


@pytest.mark.parametrize("loss", UNLABELED.values(), ids=UNLABELED)
@given(seed=seeds)
def test_a_batch_without_labels_has_the_loss_and_the_gradients_of_pytorch(loss, seed):
    """Law of values: As in PyTorch, the mean over no labels is NaN, and its gradients are 0."""
    tensors = randn(3, 4, seed=seed), randn(5, 4, seed=seed + 1)
    theirs = gradients(lambda x, head: cross_entropy(linear(x, head), IGNORED), *tensors)

    assert all((grad == 0).all() for grad in theirs[1])
    assert_close(gradients(loss, *tensors), theirs, rtol=0, atol=0, equal_nan=True)


# A run


class Decoder(nn.Module):
    """A transformer with a causal mask and other unusual numbers among its buffers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3))
        self.register_buffer("bounds", torch.tensor([-inf, inf, nan, -0.0]))
        self.register_buffer("scale", torch.ones(2).to(torch.float8_e4m3fn))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        return self.layer(x, src_mask=self.mask)[:, -1]


METHODS = {
    "plain": [],
    "LabelSmoothing": LabelSmoothing(),
    "MixUp": MixUp(),
    "MixUp of losses": MixUp(interpolate_loss=True),
    "MixUp of each loss": MixUp(per_sample=True, interpolate_loss=True),
    "CutMix": CutMix(per_sample=True),
    "two": [LabelSmoothing(), MixUp()],
}
OPTIONS = {
    "microbatches": {"microbatch_size": 1},
    "shards": {"parallel": DDP(shards=2)},
    "declared": {"grad_accum": 2, "loss_mean_over": "tokens"},
}


@pytest.mark.parametrize("loss_fn", [cross_entropy, nn.CrossEntropyLoss(torch.arange(1.0, 6.0))])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_batch_without_labels_that_is_split_has_the_loss_of_the_whole(method, options, loss_fn):
    """Law of values: A split leaves the loss of a batch without labels as it is; no gradients."""
    results = []
    for one in ({}, options):
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5))
        batch = randn(4, 4, 1, 1), torch.full((4,), -100)
        given = {"loss_fn": loss_fn, "algorithms": method, "nonfinite_loss": "ignore", **one}
        ((found, loss),) = gradients_of(model, [batch], **given)
        assert not any(grad.any() for grad in found.values())
        results.append(loss)

    assert_close(*results, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "algorithm",
    [EMA(smoothing=0.5), EMA(smoothing=0.5, blend=0.5), SWA("0ba", "1dur", "1ba")],
    ids=["EMA", "blend", "SWA"],
)
def test_a_model_with_infinite_buffers_is_evaluated_with_the_average_of_its_parameters(algorithm):
    """Law of values: An average of weights leaves the buffers that are not finite as they are."""
    torch.manual_seed(0)
    model, loader = Decoder(), [(randn(2, 3, 4, seed=i), torch.tensor([0, 3])) for i in range(4)]
    seen = Watch(Event.BATCH_END, read=lambda s: deepcopy(dict(s.model.named_parameters())))

    run = make_trainer(model, loader, algorithms=algorithm, callbacks=seen, max_duration="1ep")
    run.fit()

    average = seen.values[0]
    for count, current in enumerate(seen.values[1:], 1):
        average = (
            F.swa(average, current, count)
            if isinstance(algorithm, SWA)
            else F.ema(average, current, smoothing=0.5)
        )
    if getattr(algorithm, "blend", 1) < 1:
        average = F.ema(average, seen.values[-1], smoothing=0.5)
    evaluated = run.state.model
    assert_close(dict(evaluated.named_parameters()), average, rtol=0, atol=0)
    assert all(same_bits(getattr(evaluated, n), getattr(Decoder(), n)) for n in ("mask", "bounds"))
    assert same_bits(evaluated.scale, Decoder().scale)
    assert evaluated.calls == 4
    outputs = evaluated.eval()(loader[0][0])
    assert outputs.isfinite().all()
    assert_close(outputs, functional_call(Decoder().eval(), average, (loader[0][0],)))
