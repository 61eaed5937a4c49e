"""Stochastic depth in the loop: the function's model, and a warm-up that reaches its rate."""

from contextlib import nullcontext
from functools import partial

import attrs
import pytest
import torch
from torch import nn

from composable import Event, State, chain
from composable.algorithms import EMA, StochasticDepth
from composable.integrations import adapt_loop
from tests.support.data import batches
from tests.support.models import CLASSES, same, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, sgd


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return x + self.norm(self.linear(x))


def residual():
    return seeded(lambda: nn.Sequential(Block(), Block(), nn.Linear(4, CLASSES)))


def rate(state):
    return state.model[1].dropping.rate


@pytest.mark.parametrize("method", ["block", "sample"])
@pytest.mark.parametrize("warmup", ["0.5dur", 0.5, "5ba", "1ep"])
def test_warm_up_reaches_the_drop_rate(method, warmup):
    watch = Watch(Event.BEFORE_FORWARD, read=rate)
    algorithm = StochasticDepth(target=Block, method=method, drop_rate=0.4, drop_warmup=warmup)

    final = make_trainer(
        residual(),
        train_dataloader=batches([2] * 5),
        algorithms=[algorithm, EMA("1ba")],
        callbacks=[watch],
    ).fit()

    assert watch.values[:5] == pytest.approx([0, 0.08, 0.16, 0.24, 0.32])
    assert watch.values[5:] == [0.4] * 5
    assert rate(final) == 0.4


def test_two_instances_have_warm_ups_of_their_own():
    class Other(Block):
        pass

    model = seeded(lambda: nn.Sequential(Other(), Block(), nn.Linear(4, CLASSES)))
    watch = Watch(
        Event.BEFORE_FORWARD,
        read=lambda state: [block.dropping.rate for block in state.model[:2]],
    )
    warming = StochasticDepth(target=Other, drop_rate=0.4, drop_warmup="4ba")
    at_once = StochasticDepth(target=Block, drop_rate=0.5, name="AtOnce")

    make_trainer(model, algorithms=chain(warming, at_once), callbacks=[watch]).fit()

    assert [one for one, _ in watch.values] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.4])
    assert {other for _, other in watch.values} == {0.5}


def test_warm_up_makes_a_hundred_models_at_most():
    algorithm = StochasticDepth(target=Block, drop_warmup="1000ba")
    state = algorithm(Event.INIT, State(residual()))
    models = set()
    for batch in range(1200):
        now = attrs.evolve(state.timestamp, batch=batch)
        state = algorithm(Event.BATCH_START, state.evolve(timestamp=now))
        models.add(state.model[1].dropping.scale)

    assert len(models) == 101


def test_step_of_a_warm_up_can_be_replayed():
    algorithm = StochasticDepth(target=Block, drop_rate=0.5, drop_warmup="1dur")
    plain = partial(torch.optim.SGD, lr=0.1)  # its state is not that of an earlier step
    seen = Watch(Event.AFTER_DATALOADER, read=lambda state: (state, weights(state.model)))
    trainer = make_trainer(residual(), optimizers=plain, algorithms=[algorithm], callbacks=[seen])
    trainer.fit()

    state, before = seen.values[3]
    state.model.load_state_dict(before)
    again = trainer.train_batch(state)

    assert same(weights(again.model), seen.values[4][1])


@pytest.mark.parametrize("warmup", [0.0, "1ep"])
def test_external_loop_rejects_a_warm_up(warmup):
    algorithm, model = StochasticDepth(target=Block, drop_warmup=warmup), residual()
    t = adapt_loop(
        [algorithm],
        model,
        sgd(model.parameters()),
        loss_fn=nn.functional.cross_entropy,
        max_duration="2ep",
        seed=1,
    )
    steps = t.epoch(batches(12))
    next(steps)

    message = r"replaced the model .* pass drop_warmup=0.0"
    with pytest.raises(RuntimeError, match=message) if warmup else nullcontext():
        next(steps)
