"""The proxy filter: a small model, trained by itself, selects what the model is trained on."""

import pickle
from contextlib import nullcontext
from functools import partial

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import Event, optim
from composable import algorithms as A
from composable.algorithms import ProxyFilter
from composable.distributed import DDP
from composable.functional import select_highest, select_using_loss
from composable.testing import NoSync
from composable.trainer.guards import NonFiniteLossWarning
from tests.support.data import batches, shuffling_loader
from tests.support.models import CLASSES, linear, mlp, same, seeded, weights
from tests.support.observers import Watch
from tests.support.outcomes import resumes_exactly
from tests.support.runs import make_trainer, sgd


def filtered():
    """Return a watch of the batches that are trained on, as they are after the filter."""
    return Watch(Event.BATCH_START, read=lambda state: state.batch)


def trainer(loader=None, *, model=None, more=(), **options):
    """Build a Trainer with a filter; its own options are those with a default here."""
    names = ("proxy", "optimizer", "keep", "rule", "interval", "schedule")
    own = {name: options.pop(name) for name in names if name in options}
    algorithm = ProxyFilter(**{"proxy": linear(1), "optimizer": sgd, "interval": 1, **own})
    return make_trainer(
        mlp() if model is None else model,
        shuffling_loader(22, 6) if loader is None else loader,
        algorithms=[algorithm, *more],
        **options,
    )


def memory_of(state):
    return state.memory["ProxyFilter"]


def by_hand(data, *, interval, keep=0.5, optimizer=sgd, rate=lambda step: 1.0):
    """Return the batches that are kept and the proxy, by a loop without the library."""
    proxy, kept = linear(1), []
    trained = optimizer(proxy.parameters())
    base = trained.param_groups[0]["lr"]
    for step, (inputs, targets) in enumerate(data):
        losses = cross_entropy(proxy(inputs), targets, reduction="none")
        chosen = select_highest(losses, keep=keep)
        kept.append((inputs[chosen], targets[chosen]))
        if step % interval == 0:
            trained.zero_grad()
            losses[chosen].mean().backward()
            trained.param_groups[0]["lr"] = base * rate(step)
            trained.step()
    return kept, proxy


# --- filtering and learning ---


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("optimizer", [sgd, partial(torch.optim.AdamW, lr=0.1)])
def test_proxy_filters_and_learns_as_by_hand(interval, optimizer):
    data, seen = batches([8, 6, 7, 8]), filtered()
    kept, proxy = by_hand(2 * data, interval=interval, optimizer=optimizer)

    state = trainer(data, interval=interval, optimizer=optimizer, callbacks=seen).fit()

    for ours, theirs in zip(seen.values, kept, strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert_close(dict(memory_of(state)["weights"]), dict(proxy.named_parameters()))


def test_schedule_scales_the_learning_rate_of_the_proxy():
    data = batches([8, 6, 7, 8])
    _, proxy = by_hand(2 * data, interval=2, rate=lambda step: 1 - step / 8)

    state = trainer(data, interval=2, schedule=optim.linear()).fit()

    assert_close(dict(memory_of(state)["weights"]), dict(proxy.named_parameters()))


def test_proxy_and_model_are_trained_apart():
    proxy = linear(1)
    before = weights(proxy)

    state = trainer(proxy=proxy, optimizer=partial(torch.optim.SGD, lr=0.0)).fit()

    assert same(weights(proxy), before)
    assert same(dict(memory_of(state)["weights"]), before)
    assert all(p.grad is None for p in proxy.parameters())


def test_frozen_tied_and_buffered_proxies_are_trained_as_they_are():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, CLASSES)
            self.head.weight.requires_grad_(False)

        def forward(self, x):
            return self.head(self.norm(self.second(self.first(x))))

    proxy = seeded(Tied, 2)

    trained = memory_of(trainer(proxy=proxy).fit())["weights"]

    changed = {n for n, one in proxy.state_dict().items() if n in trained
               and not torch.equal(one, trained[n])}  # fmt: skip
    assert "second.weight" not in trained
    assert changed == {"first.weight", "first.bias", "second.bias", "norm.weight", "norm.bias",
                       "head.bias"}  # fmt: skip


def test_another_rule_selects_by_the_scores_of_the_proxy():
    seen = filtered()
    rule = partial(select_using_loss, keep=0.25)

    trainer(batches([8] * 4), rule=rule, callbacks=seen).fit()

    assert [len(targets) for _, targets in seen.values] == [2] * 8


def test_order_of_a_rule_does_not_matter():
    backwards, forwards = (
        trainer(rule=lambda losses, generator, flip=flip: torch.tensor(flip)).fit()
        for flip in ([3, 2, 0], [0, 2, 3])
    )

    assert same(weights(backwards.model), weights(forwards.model))


def test_everything_is_kept_with_keep_1():
    plain = make_trainer(mlp(), shuffling_loader(22, 6)).fit()

    filtered = trainer(keep=1.0).fit()

    assert same(weights(plain.model), weights(filtered.model))


# --- runs ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": partial(torch.optim.AdamW, lr=0.01), "interval": 2},
        {"microbatch_size": 2, "schedule": optim.cosine()},
        {"accumulate_batches": 2},
        {"parallel": DDP(shards=2)},
        {"precision": "amp_bf16"},
    ],
    ids=str,
)
def test_run_resumes_bit_for_bit_in_mid_epoch(options, tmp_path):
    more = [A.EMA(half_life="2ba"), A.LabelSmoothing(0.1)]

    resumes_exactly(lambda **more_: trainer(more=more, **options, **more_).fit(), tmp_path)


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 5.0])], ids=["plain", "weighted"])
def test_microbatches_give_the_gradients_of_the_filtered_batch(weight):
    loss_fn = nn.CrossEntropyLoss(weight=weight)

    first = trainer(loss_fn=loss_fn).fit()
    second = trainer(loss_fn=loss_fn, microbatch_size=1).fit()

    assert_close(weights(first.model), weights(second.model), rtol=1e-4, atol=1e-5)
    assert same(dict(memory_of(first)["weights"]), dict(memory_of(second)["weights"]))


def test_shards_are_filtered_each_by_itself_and_share_a_proxy():
    data = batches([8, 6])
    seen = Watch(Event.BATCH_START, read=lambda s: [len(t) for _, t in s.batch.batches])
    proxy = linear(1)
    optimizer = partial(torch.optim.SGD, lr=0.1)(proxy.parameters())
    for inputs, targets in data:
        losses = cross_entropy(proxy(inputs), targets, reduction="none")
        half = len(losses) // 2
        first, second = select_highest(losses[:half]), half + select_highest(losses[half:])
        optimizer.zero_grad()
        losses[torch.cat([first, second])].mean().backward()
        optimizer.step()

    state = trainer(
        data,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        parallel=DDP(shards=2),
        max_duration="1ep",
        callbacks=seen,
    ).fit()

    assert seen.values == [[2, 2], [2, 2]]
    assert_close(dict(memory_of(state)["weights"]), dict(proxy.named_parameters()))


@pytest.mark.parametrize(("count", "shards"), [(5, 2), (2, 4)], ids=["uneven", "empty"])
def test_shards_weigh_by_their_own_examples(count, shards):
    ((inputs, targets),) = data = batches([count])
    proxy = linear(1)
    cross_entropy(proxy(inputs), targets).backward()

    state = trainer(
        data,
        keep=1.0,
        optimizer=partial(torch.optim.SGD, lr=1.0),
        parallel=DDP(shards=shards),
        max_duration="1ba",
    ).fit()

    expected = {name: p.detach() - p.grad for name, p in proxy.named_parameters()}
    assert_close(dict(memory_of(state)["weights"]), expected)


@pytest.mark.parametrize(
    "optimizer", [sgd, partial(torch.optim.AdamW, lr=0.01, fused=True)], ids=["sgd", "adamw"]
)
@pytest.mark.parametrize("rule", [None, partial(select_using_loss, keep=0.5)], ids=["top", "drawn"])
def test_host_does_not_wait_for_the_device(optimizer, rule):
    state = make_trainer().state
    algorithm = ProxyFilter(mlp(), optimizer, interval=2, rule=rule)

    for step in range(3):
        batch, now = batches([8])[0], attrs.evolve(state.timestamp, batch=step)
        with NoSync() if step else nullcontext():  # the indices of a rule are checked once
            state = algorithm(Event.AFTER_DATALOADER, state.evolve(batch=batch, timestamp=now))
            state = algorithm(Event.AFTER_OPTIMIZER_STEP, state)

    assert memory_of(state)["optimizers"]


def test_a_skipped_batch_teaches_nothing():
    data = batches([8, 6, 7, 8])
    _, proxy = by_hand([*data[:1], *data[2:]], interval=1)
    data[1][0][3, 0] = torch.nan

    with pytest.warns(NonFiniteLossWarning, match="the loss of batch 1 was nan"):
        state = trainer(data, max_duration="1ep", nonfinite_loss="skip").fit()

    assert_close(dict(memory_of(state)["weights"]), dict(proxy.named_parameters()))


def test_steps_change_no_earlier_memory():
    state = make_trainer().state.evolve(batch=batches([8])[0])
    algorithm = ProxyFilter(mlp(), partial(torch.optim.AdamW, lr=0.01), interval=1)
    states, copies = [], []

    for _ in range(3):
        state = state.evolve(batch=batches([8])[0])
        for event in (Event.AFTER_DATALOADER, Event.BATCH_START, Event.AFTER_OPTIMIZER_STEP):
            state = algorithm(event, state)
            states.append(state)
            copies.append(pickle.dumps(state.memory[algorithm.name]["optimizers"]))

    for one, copied in zip(states, copies, strict=True):
        assert pickle.dumps(one.memory[algorithm.name]["optimizers"]) == copied


def test_check_leaves_the_run_as_it_was():
    plain = trainer().fit()
    checked = trainer()

    checked.check()

    assert "ProxyFilter" not in checked.state.memory
    assert same(weights(checked.fit().model), weights(plain.model))


# --- errors ---


def of_two(outputs, targets, reduction="mean"):
    """Return the loss of the first two examples."""
    return cross_entropy(outputs[:2], targets[:2], reduction=reduction)


MODEL = mlp()
DIVERGING = {"optimizer": partial(sgd, lr=torch.inf)}
RULES = [
    (lambda losses, generator: losses.argsort()[:0], "rule kept none of the 6 examples"),
    (lambda losses, generator: losses > 0, "must return the indices to keep, an int64 tensor"),
    (lambda losses, generator: None, "rule returned None and must return the indices"),
    (lambda losses, generator: torch.tensor([3, 0, 3]), r"the indices \[0, 3, 3\] and must"),
    (lambda losses, generator: torch.tensor([-1]), "distinct ones from 0 to 5"),
    (lambda losses, generator: torch.tensor([0, 6]), "distinct ones from 0 to 5"),
]
PROXIES = [
    (nn.Linear(4, 1), "raised IndexError: Target . is out of bounds(.|\n)*one for each class"),
    (nn.Linear(5, CLASSES), "raised RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    (nn.Sequential(nn.Linear(4, CLASSES), nn.Flatten(0)), "Build a proxy that takes the batch"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"rule": rule}, message) for rule, message in RULES),
        *(({"proxy": proxy}, message) for proxy, message in PROXIES),
        *(
            ({"model": MODEL, "proxy": proxy}, "is the trained model, or shares a part with it")
            for proxy in (MODEL, MODEL[0])
        ),
        *(
            (DIVERGING | {"max_duration": length}, "has diverged: its weight weight is")
            for length in ("1ep", "3ba")
        ),
        ({"loss_fn": of_two}, r"losses of shape \(2,\), and the batch has 6 examples"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        trainer(**options).fit()


def test_memory_of_another_proxy_is_refused():
    state = trainer().fit()
    mine = ProxyFilter(mlp(), sgd)

    with pytest.raises(ValueError, match=r"its weights have the shapes .* the proxy has"):
        mine.check_memory(memory_of(state), state)
    with pytest.raises(ValueError, match="must have the entries optimizers"):
        mine.check_memory({"weights": {}}, state)
