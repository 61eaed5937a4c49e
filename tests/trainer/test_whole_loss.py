"""The loss of a whole batch in the Trainer: events, memory, precision, resume, bad input."""

import random
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import Algorithm, Event, SplitLossError
from composable.algorithms import EMA, SAM, LabelSmoothing, MixUp, WholeLoss
from composable.core.algorithm import Stage
from composable.distributed import DDP
from tests.support.contrastive import KEYS, Contrast, TwoEncoders, pairs, trained_pair
from tests.support.data import batches
from tests.support.hub_models import NOT_MEANS, captions
from tests.support.models import mlp, same, seeded, weights
from tests.support.runs import make_trainer, trained

SPLITS = {
    "microbatches": {"grad_accum": 3},
    "batches": {"accumulate_batches": 2},
    "shards": {"parallel": DDP(shards=3)},
    "all": {"parallel": DDP(shards=3), "accumulate_batches": 2, "microbatch_size": 2},
}
SPLIT = pytest.mark.parametrize("options", SPLITS.values(), ids=SPLITS)


def whole_pair(*sizes, algorithms=(), **options):
    return trained_pair(*sizes, algorithms=[WholeLoss(), *algorithms], **options)


def pair_run(model, **options):
    return trained(model, pairs(12), **{"loss_fn": Contrast(), **KEYS, **options})


def close(found, expected, tolerance=1e-4):
    assert found["losses"] == pytest.approx(expected["losses"], rel=tolerance)
    for name, values in expected["weights"].items():
        assert found["weights"][name] == pytest.approx(values, rel=tolerance, abs=tolerance)


# --- the update ---


@SPLIT
def test_a_learned_temperature_and_both_encoders_are_trained_by_the_whole(options):
    several = "accumulate_batches" in options
    expected = trained_pair(*((13,) if several else (13, 13)))

    found = whole_pair(*((7, 6) if several else (13, 13)), **options)

    close(found, expected)
    assert found["calls"] == expected["calls"]


def test_a_batch_that_is_not_split_keeps_its_bits():
    assert whole_pair(dropout=0.5, noise=0.1) == trained_pair(dropout=0.5, noise=0.1)


@pytest.mark.parametrize("precision", ["amp_bf16", "amp_fp16", "bf16"])
def test_precisions_are_those_of_the_unsplit_batch(precision):
    options = {"precision": precision, "max_duration": "2ba"}
    options |= {"optimizers": lambda params: torch.optim.SGD(params, lr=0.1)}

    close(whole_pair(grad_accum=3, **options), trained_pair(**options), tolerance=0.03)


@pytest.mark.parametrize("algorithm", [SAM(rho=0.1), EMA(half_life="1ba")], ids=repr)
def test_other_methods_see_the_gradients_of_the_whole(algorithm):
    expected = trained_pair(algorithms=[algorithm])

    close(whole_pair(algorithms=[algorithm], microbatch_size=2), expected)


@pytest.mark.parametrize("algorithm", [LabelSmoothing(), MixUp(), MixUp(interpolate_loss=True)])
def test_methods_of_the_loss_get_the_targets_of_the_whole(algorithm):
    found = trained(algorithms=[WholeLoss(), algorithm], microbatch_size=2)

    assert_close(found, trained(algorithms=[algorithm]), rtol=1e-5, atol=1e-6)


def test_batches_that_are_mixed_alone_are_joined():
    options = {"algorithms": [MixUp()], "accumulate_batches": 3}

    found = trained(**{**options, "algorithms": [WholeLoss(), MixUp()]})

    assert_close(found, trained(**options), rtol=1e-5, atol=1e-6)


def test_both_passes_have_the_dropout_of_the_split():
    options = {"parallel": DDP(shards=2), "microbatch_size": 1}

    found = trained(mlp(dropout=0.5), algorithms=[WholeLoss()], **options)

    assert_close(found, trained(mlp(dropout=0.5), **options), rtol=1e-5, atol=1e-6)


def test_a_compiled_model_has_one_graph_and_the_same_dropout():
    options = {"grad_accum": 2, "dropout": 0.5, "compile": {"backend": "aot_eager"}}

    close(whole_pair(12, 12, **options), whole_pair(12, 12, grad_accum=2, dropout=0.5))


def test_memory_that_is_short_halves_the_parts():
    class Short(TwoEncoders):
        def forward(self, left, right):
            if len(left) > 4 and torch.is_grad_enabled():
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().forward(left, right)

    found = pair_run(Short(), algorithms=[WholeLoss()], microbatch_size="auto")

    assert_close(found, pair_run(TwoEncoders()), rtol=1e-5, atol=1e-6)


# --- buffers, random numbers, events ---


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)

    def forward(self, inputs):
        return self.norm(self.layer(inputs))


def test_buffers_of_the_model_move_once():
    options = {"accumulate_batches": 3, "max_duration": "1ba"}

    found = trained(seeded(Counting), algorithms=[WholeLoss()], **options)

    expected = trained(seeded(Counting), **options)
    for name in ("norm.running_mean", "norm.num_batches_tracked"):
        assert torch.equal(found[name], expected[name])


def test_a_loss_that_draws_numbers_is_called_once_a_step():
    first = whole_pair(noise=0.5, microbatch_size=3)

    assert first == whole_pair(noise=0.5, microbatch_size=3)
    assert first["losses"] != whole_pair(microbatch_size=3)["losses"]
    assert first["calls"] == 4


def traced(**options):
    trace = []

    class Spy(Algorithm):
        events = frozenset(Event) - {Event.INIT, Event.BEFORE_LOAD, Event.AFTER_LOAD}
        stage = Stage.OTHER

        def apply(self, event, state):
            trace.append(("algorithm", event))
            return state

    def observe(event, state, logger):
        trace.append(("callback", event))
        if event in (Event.BEFORE_LOSS, Event.AFTER_LOSS, Event.BEFORE_BACKWARD):
            assert len(state.outputs[0]) == len(state.targets) == 13
        if event is Event.AFTER_BACKWARD:
            shares.append((len(state.targets), state.loss.item()))

    shares = []
    trainer = make_trainer(
        TwoEncoders(), pairs(*options.pop("sizes")), loss_fn=Contrast(), callbacks=observe,
        algorithms=[WholeLoss(), Spy()], max_duration="1ba", **KEYS, **options,
    )  # fmt: skip
    trainer.fit()
    return Counter(trace), shares, trainer.state.loss.item()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"microbatch_size": 5, "sizes": [13]}, [5, 5, 3]),
        ({"accumulate_batches": 2, "sizes": [7, 6]}, [7, 6]),
        ({"parallel": DDP(shards=2), "sizes": [13]}, [6, 7]),
    ],
)
def test_events_fire_in_both_passes_for_algorithms_and_once_for_the_loss(options, parts):
    trace, shares, loss = traced(**options)

    count = len(parts)
    for event in (Event.BEFORE_FORWARD, Event.AFTER_FORWARD):
        assert trace["algorithm", event] == 2 * count
        assert trace["callback", event] == count
    for event in (Event.BEFORE_LOSS, Event.AFTER_LOSS, Event.BEFORE_BACKWARD):
        assert trace["algorithm", event] == trace["callback", event] == 1
    assert trace["algorithm", Event.AFTER_BACKWARD] == count
    assert shares == [(size, pytest.approx(loss * size / 13)) for size in parts]


def test_what_algorithms_remember_about_the_loss_is_kept():
    class Count(Algorithm):
        events = frozenset({Event.BEFORE_FORWARD, Event.AFTER_LOSS, Event.AFTER_BACKWARD})
        writes = frozenset({"memory"})

        def match(self, event, state):
            return event.name == self.name

        def apply(self, event, state):
            return state.remember(self.name, state.memory.get(self.name, 0) + 1)

    counts = [Count(name=event.name) for event in Count.events]
    trainer = make_trainer(algorithms=[WholeLoss(), *counts], microbatch_size=2, max_duration="1ba")
    trainer.fit()

    assert dict(trainer.state.memory) == {
        "BEFORE_FORWARD": 2,
        "AFTER_LOSS": 1,
        "AFTER_BACKWARD": 2,
    }


# --- outputs that are named, and bad input ---


class Similarities(TwoEncoders):
    """A model that computes similarities and a loss in its forward pass, as CLIP does."""

    def forward(self, left, right):
        left, right = super().forward(left, right)
        logits = left @ right.T
        loss = cross_entropy(logits, torch.arange(len(left)))
        return {"loss": loss, "logits": logits, "left": left, "right": right}


def embeddings(outputs):
    return outputs["left"], outputs["right"]


def test_outputs_are_named_by_a_function():
    algorithms = [WholeLoss(outputs=embeddings)]

    found = pair_run(Similarities(), algorithms=algorithms, grad_accum=3)

    assert_close(found, pair_run(TwoEncoders()), rtol=1e-5, atol=1e-6)
    assert same(pair_run(Similarities(), algorithms=algorithms), pair_run(TwoEncoders()))


class OwnLoss(TwoEncoders):
    def forward(self, left, right):
        left, right = super().forward(left, right)
        return {"left": left, "loss": left.sum() * right.mean()}


class NoTensors(TwoEncoders):
    def forward(self, left, right):
        return object()


class Growing(TwoEncoders):
    seen = 0

    def forward(self, left, right):
        self.seen += 1
        return torch.cat([self.left(left)] * self.seen, 1)


class Hidden(TwoEncoders):
    def forward(self, left, right):
        return super().forward(left * random.random(), right)


REFUSED = {
    Similarities: (
        {"loss_fn": lambda o, t: o["logits"].sum()},
        r"rows have the shape \(4,\) for 4 examples and \(2,\) for 2.*WholeLoss\(outputs=\.\.\.\)",
    ),
    OwnLoss: (
        {"loss_fn": lambda o, t: o["loss"]},
        r"outputs\['loss'\] is a tensor without dimensions.*WholeLoss\(outputs=\.\.\.\)",
    ),
    NoTensors: ({}, "NoTensors returned a object, which has no tensor"),
    Growing: (
        {"loss_fn": lambda o, t: o.square().sum(), "grad_accum": 2},
        r"has the shape \(6, 8\) in a part of a batch, where \(6, 4\) would be joined",
    ),
    Hidden: ({}, "Hidden returned other outputs in the second of two forward passes"),
}


@pytest.mark.parametrize("model", REFUSED)
def test_outputs_that_cannot_be_joined_are_refused(model):
    options, message = REFUSED[model]
    with pytest.raises(TypeError if model is NoTensors else SplitLossError, match=message):
        pair_run(model(), **{"algorithms": [WholeLoss()], "grad_accum": 3, **options})


def test_lists_of_examples_are_refused():
    data = [([torch.ones(3)] * 4, [torch.tensor(1)] * 4)]

    class Listed(nn.Linear):
        def forward(self, inputs):
            return super().forward(torch.stack(inputs))

    with pytest.raises(SplitLossError, match="has the layout 'lists'"):
        make_trainer(
            Listed(3, 3),
            data,
            loss_fn=lambda o, t: cross_entropy(o, torch.stack(t)),
            algorithms=[WholeLoss()],
            grad_accum=2,
            batch_layout="lists",
        ).fit()


def test_inputs_that_were_not_kept_are_refused():
    class Reads(Algorithm):
        events = frozenset({Event.BEFORE_LOSS})

        def apply(self, event, state):
            return state.inputs.shape and state

    with pytest.raises(SplitLossError, match=r"inputs\.shape is not available to the loss"):
        make_trainer(algorithms=[WholeLoss(), Reads()], accumulate_batches=3).fit()


def test_losses_of_parts_are_refused():
    class OfParts(Algorithm):
        events = frozenset({Event.BEFORE_FORWARD})
        writes = frozenset({"loss_fn"})

        def apply(self, event, state):
            return state.evolve(loss_fn=lambda outputs, batch: outputs.sum())

    with pytest.raises(SplitLossError, match="let the first act at BEFORE_LOSS"):
        make_trainer(algorithms=[WholeLoss(), OfParts()], grad_accum=2).fit()


def test_a_model_with_a_loss_of_its_own_gets_the_batch_of_the_whole():
    class Own(nn.Linear):
        def forward(self, batch):
            return super().forward(batch[0])

        def loss(self, outputs, batch):
            return (cross_entropy(outputs, batch[1]) * batch[0].mean()).sqrt()

    build = partial(seeded, partial(Own, 4, 3))
    data = [(one.abs(), label) for one, label in batches(12)]
    joined = [tuple(map(torch.cat, zip(*data, strict=True)))]

    found = trained(build(), data, loss_fn=None, algorithms=[WholeLoss()], accumulate_batches=3)

    assert_close(found, trained(build(), joined, loss_fn=None), rtol=1e-5, atol=1e-6)


def test_the_error_about_a_split_offers_the_loss_of_the_whole():
    with pytest.raises(SplitLossError, match=r"Add WholeLoss\(\) to algorithms"):
        pair_run(TwoEncoders(), grad_accum=3)


# --- CLIP of Transformers ---


def clip_run(**options):
    """Train CLIP, whose temperature is a parameter of the model, on the embeddings it returns."""
    clip, batch = NOT_MEANS["contrastive"].build(), captions([5, 3, 4, 5, 2, 5])

    def loss_fn(outputs, labels):
        logits = clip.logit_scale.exp() * outputs[0] @ outputs[1].T
        pairs = torch.arange(len(logits))
        return (cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)) / 2

    algorithms = [WholeLoss(outputs=lambda outputs: (outputs.text_embeds, outputs.image_embeds))]
    given = {"loss_fn": loss_fn, "algorithms": algorithms, "max_duration": "1ba", **options}
    make_trainer(clip, [{**batch, "labels": torch.zeros(6)}], **given).fit()
    return weights(clip)


def test_clip_is_trained_by_the_embeddings_that_are_named():
    expected = clip_run()

    found = clip_run(microbatch_size=2)

    assert not torch.equal(expected["logit_scale"], NOT_MEANS["contrastive"].build().logit_scale)
    assert_close(found, expected, rtol=1e-5, atol=1e-9)


def test_a_loss_that_transformers_computes_is_refused_with_the_cure():
    with pytest.raises(SplitLossError, match=r"pass loss_fn, .* and name those outputs"):
        clip_run(loss_fn=None, microbatch_size=2)


# --- evaluation ---


class OwnContrast(TwoEncoders):
    """A model that computes a contrastive loss of its own."""

    def forward(self, batch):
        return super().forward(*batch[:2])

    def loss(self, outputs, batch):
        return Contrast().eval()(outputs, batch[2])


@pytest.mark.parametrize("model", [TwoEncoders, OwnContrast])
def test_an_evaluation_computes_the_loss_of_the_whole(model):
    loss_fn = Contrast() if model is TwoEncoders else None

    def evaluated(*sizes):
        trainer = make_trainer(model(), loss_fn=loss_fn, algorithms=[WholeLoss()], **KEYS)
        return trainer.eval(pairs(*sizes))["eval"]["loss"]

    assert evaluated(5, 5, 3) == pytest.approx(evaluated(13))
