"""Layer freezing in the loop: frozen parameters keep their bits, and the others train as before."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Event, IdleAlgorithmWarning, during
from composable.algorithms import EMA, GradientClipping, LayerFreezing, StochasticDepth
from composable.functional import frozen_layers
from composable.integrations import adapt_loop
from composable.trainer.guards import NonFiniteLossWarning
from tests.support.tiny import (
    CLASSES,
    Watch,
    batches,
    generator,
    make_trainer,
    same,
    seeded,
    weights,
)

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


def snapshots(**options):
    """Return the weights after each batch of a run in which layers freeze after 0.5, 0.625, ..."""
    watch = Watch(Event.BATCH_END, read=lambda state: weights(state.model))
    trainer = train(callbacks=[watch], **options)
    trainer.fit()
    return watch.values


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("split", [1, 2])
def test_what_is_frozen_keeps_its_bits_and_the_rest_moves(optimizer, split):
    seen = snapshots(optimizers=OPTIMIZERS[optimizer], grad_accum=split)

    for batch in range(1, 10):
        frozen = frozen_layers(deep(), elapsed=batch / 10).parameters
        for name, _ in deep().named_parameters():
            still = torch.equal(seen[batch][name], seen[batch - 1][name])
            assert still == (name in frozen), (batch, name)
    assert len(frozen) == 6  # three layers of four: the last batch begins at 0.9


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_weights_are_those_of_a_plain_loop_without_these_gradients(optimizer):
    model = deep()
    plain = OPTIMIZERS[optimizer](model.parameters())
    for batch, (inputs, targets) in enumerate(TEN):
        frozen = frozen_layers(model, elapsed=batch / 10).parameters
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in frozen)
        cross_entropy(model(inputs), targets).backward()
        plain.step()
        plain.zero_grad()

    ours = train(optimizers=OPTIMIZERS[optimizer])

    assert same(weights(ours.fit().model), weights(model))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_an_optimizer_keeps_all_that_it_has(optimizer):
    def held(state):
        (one,) = state.optimizers
        ids = [[id(p) for p in group["params"]] for group in one.param_groups]
        momenta = one.state[state.model[0].weight]
        return ids, {k: v.clone() for k, v in momenta.items() if torch.is_tensor(v)}

    watch = Watch(Event.BATCH_END, read=held)
    train(callbacks=[watch], optimizers=OPTIMIZERS[optimizer]).fit()

    assert all(ids == watch.values[0][0] for ids, _ in watch.values)
    before, *after = [momenta for _, momenta in watch.values[6:]]  # frozen from 0.7 on
    assert before
    assert all(same(before, later) for later in after)


def test_the_backward_pass_ends_where_the_frozen_layers_begin():
    model, passed = deep(), []
    for i, layer in enumerate(model):
        layer.register_forward_hook(lambda *args, i=i: passed.append((i, args[-1].requires_grad)))

    train(model=model).fit()

    first, last = passed[: len(model)], passed[-len(model) :]
    assert all(requires for _, requires in first)
    assert [requires for _, requires in last] == [False] * 5 + [True] * 2


def flags(state):
    return [p.requires_grad for p in state.model.parameters()]


def test_only_for_the_time_of_a_step_is_no_gradient_required():
    during_step, after = Watch(Event.BEFORE_FORWARD, read=flags), Watch(Event.BATCH_END, read=flags)
    names = Watch(Event.AFTER_ZERO_GRAD, Event.BATCH_END, read=lambda state: len(state.frozen))

    model = deep()
    train(model=model, callbacks=[during_step, after, names]).fit()

    assert during_step.values[0] == [True] * 10
    assert during_step.values[-1] == [False] * 6 + [True] * 4
    assert after.values == [[True] * 10] * 10
    assert names.values[-2:] == [6, 0]
    assert all(p.requires_grad for p in model.parameters())


def test_what_a_user_froze_stays_frozen():
    model = deep()
    model[0].weight.requires_grad_(False)
    model[6].requires_grad_(False)
    before = weights(model)

    final = train(model=model).fit().model

    assert flags_by_name(final) == flags_by_name(model)
    assert {name for name, trains in flags_by_name(model).items() if not trains} == {
        "0.weight",
        "6.weight",
        "6.bias",
    }
    assert all(torch.equal(before[n], weights(final)[n]) for n in ("0.weight", "6.weight"))
    assert not torch.equal(before["5.weight"], weights(final)["5.weight"])


def flags_by_name(model):
    return {name: p.requires_grad for name, p in model.named_parameters()}


def test_an_error_in_a_step_leaves_nothing_frozen():
    model, calls = deep(), []

    def fails(outputs, targets):
        calls.append([p.requires_grad for p in model.parameters()])
        if len(calls) == 10:
            raise RuntimeError("in the last batch")
        return cross_entropy(outputs, targets)

    trainer = train(model=model, loss_fn=fails)
    with pytest.raises(RuntimeError, match="in the last batch"):
        trainer.fit()

    assert not all(calls[-1])
    assert all(p.requires_grad for p in model.parameters())


def test_a_batch_that_is_skipped_leaves_nothing_frozen():
    def broken(outputs, targets):
        return cross_entropy(outputs, targets) * (torch.nan if targets is TEN[9][1] else 1)

    with pytest.warns(NonFiniteLossWarning, match="batch 9"):
        state = train(loss_fn=broken, nonfinite_loss="skip").fit()

    assert all(flags(state))
    assert state.frozen == frozenset()


def test_training_for_longer_thaws():
    trainer = train()
    trainer.fit()
    first = weights(trainer.state.model)["0.weight"]
    watch = Watch(Event.BEFORE_FORWARD, read=lambda state: sum(flags(state)))
    trainer.add_callback(watch)

    trainer.fit(duration="3ep")  # a quarter of it is over

    assert watch.values[0] == 10
    assert watch.values[-1] < 10
    assert not torch.equal(first, weights(trainer.state.model)["0.weight"])


def test_norms_that_are_frozen_go_on_counting_what_they_see():
    watch = Watch(Event.BATCH_END, read=lambda state: state.model[1].running_mean.clone())
    train([LayerFreezing(freeze_start=0.0)], callbacks=[watch]).fit()

    assert all(not torch.equal(a, b) for a, b in zip(watch.values, watch.values[1:], strict=False))


def test_gradients_are_clipped_by_the_norm_of_what_trains():
    watch = Watch(Event.AFTER_OPTIMIZER_STEP, read=lambda state: dict(state.current_gradients()))
    clipping = GradientClipping("norm", 1e-4)

    train([LayerFreezing(), clipping], callbacks=[watch]).fit()

    last = watch.values[-1]
    assert list(last) == ["5.weight", "5.bias", "6.weight", "6.bias"]
    total = torch.stack([grad.norm() for grad in last.values()]).norm()
    torch.testing.assert_close(total, torch.tensor(1e-4), rtol=0.05, atol=0)


def test_what_another_algorithm_freezes_stays_frozen_too():
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


def test_it_goes_with_a_model_that_is_replaced_while_it_trains():
    algorithms = [
        LayerFreezing(freeze_start=0.2),
        StochasticDepth(target=nn.Tanh, drop_warmup="1dur"),
        EMA("2ba"),
    ]
    watch = Watch(Event.BATCH_END, read=lambda state: weights(state.model)["0.weight"])

    train(algorithms, callbacks=[watch]).fit()

    moved = [not torch.equal(a, b) for a, b in zip(watch.values, watch.values[1:], strict=False)]
    assert moved == [True] * 3 + [False] * 6  # the first of four is frozen from 0.4 on


def test_in_a_window_it_acts_there_alone():
    read = Watch(Event.BEFORE_FORWARD, read=lambda state: bool(state.frozen))
    algorithm = during("0.2dur", "0.6dur", LayerFreezing(freeze_start=0.0))

    train([algorithm], callbacks=[read]).fit()

    assert read.values == [False] * 3 + [True] * 3 + [False] * 4


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_group_norm_after_frozen_layers_trains_in_any_layout(layout):
    def build():
        model = seeded(
            lambda: nn.Sequential(
                *(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)),
                *(nn.Flatten(), nn.Linear(64, CLASSES)),
            )
        )
        return model.to(memory_format=layout)

    images = [(torch.randn(4, 2, 6, 6, generator=generator(i)), y) for i, (_, y) in enumerate(TEN)]
    freezing = LayerFreezing(freeze_start=0.0, freeze_level=0.6)  # the convolution alone
    model = build()

    final = train([freezing], model, train_dataloader=images).fit().model

    plain = build()
    optimizer = OPTIMIZERS["sgd"](plain.parameters())
    for batch, (inputs, targets) in enumerate(images):
        cross_entropy(plain(inputs), targets).backward()
        if frozen_layers(plain, elapsed=batch / 10, freeze_start=0, freeze_level=0.6).layers:
            plain[0].weight.grad = plain[0].bias.grad = None
        optimizer.step()
        optimizer.zero_grad()
    assert same(weights(final), weights(plain))
    assert not any(module._forward_pre_hooks for module in final.modules())


@pytest.mark.compile
def test_a_compiled_model_freezes_too():
    model = deep()
    compiled = torch.compile(model, backend="eager")

    train(model=compiled).fit()

    assert same(weights(model), weights(train().fit().model))


def test_a_name_that_the_model_does_not_have_is_an_error():
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
def test_what_never_freezes_is_reported(algorithm, why):
    with pytest.warns(IdleAlgorithmWarning, match=why):
        train([algorithm])


# --- in a loop that isn't ours ---


def begin(model, **options):
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    defaults = {"loss_fn": cross_entropy, "max_duration": "1ep", "seed": 17}
    return adapt_loop([LayerFreezing()], model, optimizer, **{**defaults, **options}), optimizer


@pytest.mark.parametrize("to_none", [True, False])
def test_a_loop_may_leave_zeros_for_gradients(to_none):
    t, optimizer = begin(deep())
    for inputs, _ in t.epoch(TEN):
        t.loss(t.model(inputs)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)

    assert same(weights(t.model), weights(train().fit().model))
    assert all(p.requires_grad for p in t.model.parameters())
    assert t.state.frozen == frozenset()


@pytest.mark.parametrize("steps", [True, False])
def test_a_loop_that_is_left_leaves_nothing_frozen(steps):
    t, optimizer = begin(deep())
    for inputs, _ in t.epoch(TEN):
        t.loss(t.model(inputs)).backward()
        if steps:
            optimizer.step()
        optimizer.zero_grad()
        if t.state.timestamp.batch == 8:
            seen = [p.requires_grad for p in t.model.parameters()]
            break

    assert not all(seen)
    assert all(p.requires_grad for p in t.model.parameters())


def test_without_a_length_of_the_run_it_says_what_is_missing():
    t, _ = begin(deep(), max_duration=None)

    with pytest.raises(ValueError, match="the run has no max_duration"):
        next(t.epoch(TEN))
