"""Layer freezing in the loop: frozen parameters keep their bits, and the others train as before."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Event, IdleAlgorithmWarning
from composable.algorithms import EMA, GradientClipping, LayerFreezing, StochasticDepth
from composable.functional import frozen_layers
from composable.integrations import adapt_loop
from composable.trainer.guards import NonFiniteLossWarning
from tests.support.data import batches
from tests.support.models import CLASSES, same, seeded, weights
from tests.support.observers import Watch
from tests.support.outcomes import differences
from tests.support.runs import make_trainer
from tests.support.tensors import randn

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": partial(torch.optim.Adam, lr=0.1, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1, amsgrad=True),
    "fused": partial(torch.optim.AdamW, lr=0.1, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.9),
}
TEN = batches([4] * 10)


def deep():
    """Five layers with parameters, of which four can be frozen."""
    return seeded(
        lambda: nn.Sequential(
            *(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4)),
            *(nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, CLASSES)),
        )
    )


def train(algorithms=None, model=None, **options):
    defaults = {"train_dataloader": TEN, "max_duration": "1ep", "optimizers": OPTIMIZERS["sgd"]}
    return make_trainer(
        deep() if model is None else model,
        algorithms=[LayerFreezing()] if algorithms is None else algorithms,
        **{**defaults, **options},
    )


def flags(model):
    return {name: p.requires_grad for name, p in model.named_parameters()}


def by_hand(model, loader, factory, **options):
    """Train in a plain loop that drops the gradients of frozen layers, and return the optimizer."""
    optimizer = factory(model.parameters())
    for batch, (inputs, targets) in enumerate(loader):
        cross_entropy(model(inputs), targets).backward()
        for name in frozen_layers(model, elapsed=batch / 10, **options).parameters:
            model.get_parameter(name).grad = None
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_matches_a_plain_loop_without_the_gradients_of_frozen_layers(optimizer):
    model = deep()
    plain = by_hand(model, TEN, OPTIMIZERS[optimizer])

    state = train(optimizers=OPTIMIZERS[optimizer]).fit()

    assert same(weights(state.model), weights(model))
    assert not differences(state.optimizers[0].state_dict(), plain.state_dict())


def test_parameters_require_no_gradient_during_the_step_alone():
    during_step, after = (
        Watch(event, read=lambda state: [*flags(state.model).values()])
        for event in (Event.BEFORE_FORWARD, Event.BATCH_END)
    )
    names = Watch(Event.AFTER_ZERO_GRAD, Event.BATCH_END, read=lambda state: len(state.frozen))

    train(callbacks=[during_step, after, names]).fit()

    assert during_step.values[0] == [True] * 10
    assert during_step.values[-1] == [False] * 6 + [True] * 4
    assert after.values == [[True] * 10] * 10
    assert names.values[-2:] == [6, 0]


def test_parameters_that_the_user_froze_stay_frozen():
    model = deep()
    model[0].weight.requires_grad_(False)
    model[6].requires_grad_(False)
    before = weights(model)

    final = train(model=model).fit().model

    frozen = [name for name, trains in flags(final).items() if not trains]
    assert frozen == ["0.weight", "6.weight", "6.bias"]
    assert all(torch.equal(before[n], weights(final)[n]) for n in ("0.weight", "6.weight"))
    assert not torch.equal(before["5.weight"], weights(final)["5.weight"])


class LastBatchError(Exception):
    pass


@pytest.mark.parametrize("fails", ["error", "skip"])
def test_step_that_fails_leaves_nothing_frozen(fails):
    model, seen = deep(), []

    def loss_fn(outputs, targets):
        seen.append(all(flags(model).values()))
        if targets is not TEN[9][1]:
            return cross_entropy(outputs, targets)
        if fails == "error":
            raise LastBatchError
        return cross_entropy(outputs, targets) * torch.nan

    trainer = train(model=model, loss_fn=loss_fn, nonfinite_loss="skip")
    skipped = pytest.warns(NonFiniteLossWarning, match="batch 9")
    with pytest.raises(LastBatchError) if fails == "error" else skipped:
        trainer.fit()

    assert not seen[-1]
    assert all(flags(model).values())
    assert fails == "error" or trainer.state.frozen == frozenset()


def test_clips_by_the_norm_of_the_gradients_that_are_left():
    watch = Watch(Event.AFTER_OPTIMIZER_STEP, read=lambda state: dict(state.current_gradients()))
    clipping = GradientClipping("norm", 1e-4)

    train([LayerFreezing(), clipping], callbacks=[watch]).fit()

    last = watch.values[-1]
    assert list(last) == ["5.weight", "5.bias", "6.weight", "6.bias"]
    total = torch.stack([grad.norm() for grad in last.values()]).norm()
    torch.testing.assert_close(total, torch.tensor(1e-4), rtol=0.05, atol=0)


def test_keeps_what_another_algorithm_freezes():
    def freezes(event, state):
        early = event is Event.BATCH_START
        return state.evolve(frozen=frozenset({"6.bias"})) if early else state

    read = Watch(Event.BEFORE_FORWARD, Event.BATCH_END, read=lambda state: state.frozen)
    final = train([LayerFreezing(), freezes], callbacks=[read]).fit().model

    for batch, seen in enumerate(read.values[::2]):
        assert seen == {"6.bias", *frozen_layers(deep(), elapsed=batch / 10).parameters}
    assert read.values[1::2] == [frozenset()] * 10
    assert torch.equal(final[6].bias, deep()[6].bias)
    assert not torch.equal(final[6].weight, deep()[6].weight)


def test_freezes_a_model_that_is_replaced_during_training():
    depth = StochasticDepth(target=nn.Tanh, drop_warmup="1dur")
    watch = Watch(Event.BATCH_END, read=lambda state: weights(state.model)["0.weight"])

    train([LayerFreezing(freeze_start=0.2), depth, EMA("2ba")], callbacks=[watch]).fit()

    moved = [not torch.equal(*pair) for pair in pairwise(watch.values)]
    assert moved == [True] * 3 + [False] * 6  # the first of four is frozen from 0.4 on


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_group_norm_after_frozen_layers_trains_in_any_layout(layout):
    def build():
        model = seeded(
            lambda: nn.Sequential(
                *(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)),
                *(nn.Flatten(), nn.Linear(64, CLASSES)),
            )
        )
        return model.to(memory_format=layout)

    images = [(randn(4, 2, 6, 6, seed=i), y) for i, (_, y) in enumerate(TEN)]
    options = {"freeze_start": 0.0, "freeze_level": 0.6}  # the convolution alone
    plain = build()
    by_hand(plain, images, OPTIMIZERS["sgd"], **options)

    final = train([LayerFreezing(**options)], build(), train_dataloader=images).fit().model

    assert same(weights(final), weights(plain))
    assert not any(module._forward_pre_hooks for module in final.modules())


@pytest.mark.compile
def test_freezes_a_compiled_model():
    compiled = train(compile={"backend": "eager"}).fit()

    assert same(weights(compiled.model), weights(train().fit().model))


def test_rejects_names_of_unknown_parameters():
    def freezes(event, state):
        return state.evolve(frozen=frozenset({"0.wait"}))

    with pytest.raises(ValueError, match=r"state.frozen has the names \['0.wait'\]"):
        train([freezes]).fit()


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (LayerFreezing(freeze_start=1.0), "freezing starts at the end of training"),
        (LayerFreezing(freeze_level=0.0), "no layer is frozen"),
    ],
)
def test_warns_if_nothing_is_ever_frozen(algorithm, why):
    with pytest.warns(IdleAlgorithmWarning, match=why):
        train([algorithm])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("to_none", [True, False])
def test_external_loop_matches_the_trainer_and_unfreezes(left, to_none):
    model = deep()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    options = {"loss_fn": cross_entropy, "max_duration": "1ep", "seed": 17}
    t = adapt_loop([LayerFreezing()], model, optimizer, **options)
    for inputs, _ in t.epoch(TEN):
        t.loss(model(inputs)).backward()
        last = t.state.timestamp.batch == 9
        frozen = not all(flags(model).values())
        if last and left:
            break
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)

    assert frozen
    assert all(flags(model).values())
    if not left:
        assert same(weights(model), weights(train().fit().model))
        assert t.state.frozen == frozenset()
