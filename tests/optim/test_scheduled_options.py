"""One cycle, power decays, schedules of several options, and rates that follow step sizes."""

import math
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from composable import Clock, Event
from composable.algorithms import SeqLengthWarmup
from composable.data import BatchSizeWarmupSampler
from composable.optim import (
    Muon,
    linear,
    one_cycle,
    per_group,
    scale_schedule,
    scaling_rule,
)
from tests.support.data import batches
from tests.support.models import mlp, same, weights
from tests.support.observers import Watch
from tests.support.optimizers import RATE_AND_DECAY
from tests.support.runs import LANGUAGE, make_trainer


def watching(read):
    """Record what is read of the first parameter group, and of the inputs, before each step."""
    return Watch(
        Event.BATCH_START,
        read=lambda state: read(state.optimizers[0].param_groups[0], state.inputs),
    )


@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_one_cycle_has_the_rates_of_pytorch_in_the_same_run(strategy):
    count, peak, share = 12, 0.2, 0.25
    cycle = {"anneal_strategy": strategy, "div_factor": 10.0, "final_div_factor": 100.0}
    watches = [watching(lambda group, inputs: group["lr"]) for _ in range(2)]
    data = batches(8 * count, 8)
    ours = make_trainer(
        mlp(),
        data,
        optimizers=partial(SGD, lr=peak, momentum=0.9),
        schedulers=one_cycle(share, **cycle),
        max_duration="1ep",
        callbacks=watches[0],
    ).fit()
    theirs = make_trainer(
        mlp(),
        data,
        optimizers=partial(SGD, lr=peak, momentum=0.9),
        schedulers=partial(
            OneCycleLR,
            max_lr=peak,
            total_steps=count + 1,
            pct_start=(share * count + 1) / (count + 1),
            cycle_momentum=False,
            **cycle,
        ),
        step_schedulers_every_batch=True,
        max_duration="1ep",
        callbacks=watches[1],
    ).fit()

    found, expected = (one.values for one in watches)
    assert len(found) == count
    assert found == pytest.approx(expected, rel=1e-12)
    assert max(found) == peak == found[3]
    assert_close(weights(ours.model), weights(theirs.model), rtol=1e-6, atol=1e-7)


# --- several options ---

ADAMW = partial(AdamW, lr=0.1, weight_decay=0.5)


def test_rate_and_decay_are_those_of_a_loop_that_sets_both():
    data, model = batches(8 * 6, 8), mlp()
    ours = make_trainer(
        mlp(), data, optimizers=ADAMW, schedulers=RATE_AND_DECAY, max_duration="1ep"
    ).fit()
    optimizer, schedules = ADAMW(model.parameters()), dict(RATE_AND_DECAY.schedules)

    for k, (inputs, targets) in enumerate(data):
        clock = Clock.at(batch=k, max_duration="6ba")
        optimizer.param_groups[0]["lr"] = 0.1 * schedules["lr"](clock)
        optimizer.param_groups[0]["weight_decay"] = 0.5 * schedules["weight_decay"](clock)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    assert same(weights(ours.model), weights(model))


def test_options_of_groups_and_shorter_runs():
    schedulers = per_group({"matrices": scale_schedule(RATE_AND_DECAY, 0.5)}, default=linear())
    watch = watching(lambda group, inputs: (group["lr"], group["weight_decay"]))
    trainer = make_trainer(
        mlp(),
        batches(8 * 4, 8),
        optimizers=partial(Muon, lr=0.1, weight_decay=0.5),
        schedulers=schedulers,
        max_duration="1ep",
        callbacks=watch,
    )
    (optimizer,) = trainer.fit().optimizers

    assert watch.values == [
        pytest.approx((0.1 * rate, 0.5 * decay))
        for rate, decay in [(0, 1), (1, 0.8125), (0.775, 0.625), (0.325, 0.4375)]
    ]
    assert optimizer.param_groups[1]["weight_decay"] == 0.5


# --- the size of the steps ---


def test_the_rate_of_an_example_is_constant_while_batches_grow():
    sampler = BatchSizeWarmupSampler(
        64, batch_size=16, min_batch_size=4, duration=90, step_size=4, seed=3, last_batch="drop"
    )
    ((inputs, targets),) = batches(64, 64)
    watch = watching(lambda group, inputs: (len(inputs), group["lr"]))
    make_trainer(
        mlp(),
        DataLoader(TensorDataset(inputs, targets), batch_sampler=sampler),
        optimizers=partial(SGD, lr=0.32),
        schedulers=scaling_rule(sampler.size_at, 16),
        max_duration="3ep",
        callbacks=watch,
    ).fit()

    sizes, rates = zip(*watch.values, strict=True)
    assert sum(sizes[: sizes.index(16)]) > 64  # they still grow in the second epoch
    assert list(sizes) == sorted(sizes)
    assert list(rates) == pytest.approx([0.02 * rows for rows in sizes])


def test_the_rate_follows_the_root_of_the_length_of_sequences():
    warmup = SeqLengthWarmup(duration=0.5, min_seq_length=2, max_seq_length=6, step_size=1)
    watch = watching(lambda group, inputs: (inputs.shape[1], group["lr"]))
    LANGUAGE.trainer(
        algorithms=[warmup],
        optimizers=partial(SGD, lr=1.0),
        schedulers=scaling_rule(warmup.length_at, 6, power=0.5),
        max_duration="8ba",
        callbacks=watch,
    ).fit()

    lengths, rates = map(list, zip(*watch.values, strict=True))
    assert lengths[0] == 2 < lengths[-1]
    assert rates == pytest.approx(
        [math.sqrt(warmup.length_at(Clock.at(batch=k, max_duration="8ba")) / 6) for k in range(8)]
    )
    assert [round(6 * rate**2) for rate in rates][:2] == lengths[:2]
    assert torch.tensor(lengths).diff().min() >= 0
