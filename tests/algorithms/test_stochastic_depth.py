"""Stochastic depth in the loop: the function's model, and a warm-up that reaches its rate."""

import attrs
import pytest
import torch
from torch import nn

from composable import Event, State, chain
from composable.algorithms import EMA, StochasticDepth
from composable.integrations import adapt_loop
from tests.support.tiny import CLASSES, Watch, batches, make_trainer, same, seeded, sgd, weights


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return x + self.norm(self.linear(x))


def residual():
    return seeded(lambda: nn.Sequential(Block(), Block(), nn.Linear(4, CLASSES)))


def rate(state):
    return state.model[1].stochastic_depth.rate


def test_two_of_them_have_warm_ups_of_their_own():
    class Other(Block):
        pass

    model = seeded(lambda: nn.Sequential(Other(), Block(), nn.Linear(4, CLASSES)))
    watch = Watch(
        Event.BEFORE_FORWARD,
        read=lambda state: [block.stochastic_depth.rate for block in state.model[:2]],
    )
    make_trainer(
        model,
        train_dataloader=batches([2] * 5),
        algorithms=chain(
            StochasticDepth(target=Other, drop_rate=0.4, drop_warmup="4ba"),
            StochasticDepth(target=Block, drop_rate=0.5, name="AtOnce"),
        ),
        callbacks=[watch],
    ).fit()

    assert [rate for rate, _ in watch.values[:5]] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert {rate for _, rate in watch.values} == {0.5}


@pytest.mark.parametrize("method", ["block", "sample"])
@pytest.mark.parametrize("warmup", ["0.5dur", 0.5, "5ba", "1ep"])
def test_the_warm_up_reaches_its_rate(method, warmup):
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


def test_training_through_a_warm_up_moves_the_weights_and_the_statistics():
    algorithm = StochasticDepth(target=Block, drop_rate=0.5, drop_warmup="6ba")
    final = make_trainer(residual(), algorithms=[algorithm]).fit().model

    for now, before in zip(final, residual(), strict=True):
        weight = (now.linear if isinstance(now, Block) else now).weight
        assert not torch.equal(weight, next(before.parameters()))
    assert final[0].norm.num_batches_tracked > 0


def test_a_warm_up_makes_a_hundred_models_at_most():
    algorithm = StochasticDepth(target=Block, drop_warmup="1000ba")
    state = algorithm(Event.INIT, State(residual()))
    models = set()
    for batch in range(1200):
        now = attrs.evolve(state.timestamp, batch=batch)
        state = algorithm(Event.BATCH_START, state.evolve(timestamp=now))
        models.add(state.model[1].stochastic_depth.scale)

    assert len(models) == 101


def test_a_step_of_a_warm_up_can_be_replayed():
    algorithm = StochasticDepth(target=Block, drop_rate=0.5, drop_warmup="1dur")
    seen = Watch(Event.AFTER_DATALOADER, read=lambda state: (state, weights(state.model)))
    trainer = make_trainer(residual(), algorithms=[algorithm], callbacks=[seen])
    trainer.fit()

    state, before = seen.values[3]
    state.model.load_state_dict(before)
    again = trainer.train_batch(state)

    assert same(weights(again.model), seen.values[4][1])


def test_a_loop_that_can_not_follow_a_warm_up_refuses_it():
    for warmup in (0.0, "1ep"):
        model = residual()
        t = adapt_loop(
            [StochasticDepth(target=Block, drop_warmup=warmup)],
            model,
            sgd(model.parameters()),
            loss_fn=nn.functional.cross_entropy,
            max_duration="2ep",
            seed=1,
        )
        steps = t.epoch(batches())
        next(steps)
        if not warmup:
            next(steps)
            continue
        with pytest.raises(RuntimeError, match=r"replaced the model .* pass drop_warmup=0.0"):
            next(steps)
