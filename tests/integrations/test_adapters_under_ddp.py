"""The algorithms in external loops on two processes, compared with the Trainer on one."""

from functools import cache, partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Trainer
from composable.distributed import DDP
from tests.integrations.table import INDEXED, SETS, SGD, SIX, net, works_in
from tests.support import adapters_under_ddp as loops
from tests.support.campaign import drawn
from tests.support.processes import attempt, run

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]


def names(loop):
    """Return some of the algorithms that work in a loop, or all of them in a campaign."""
    all_ = [name for name in works_in(loop) if not (loop == "HF, mixin" and name in INDEXED)]
    return list(dict.fromkeys(["EMA", SIX, *drawn(all_, 4)]))


NAMES = {loop: names(loop) for loop in loops.LOOPS}


def by_us(loop, name, **options):
    """Train with the Trainer of this library: one process, two shards."""
    defaults = {"loss_fn": cross_entropy, "device": "cpu", "seed": 17, "progress_bar": False}
    trainer = Trainer(
        net(name),
        train_dataloader=loops.global_batches(loop, name),
        optimizers=SGD,
        algorithms=SETS[name],
        parallel=DDP(shards=loops.SIZE),
        **{**defaults, **loops.options(name), **options},
    )
    trainer.fit()
    trainer._run.take_training_weights()
    return trainer.state


@cache
def trained(loop):
    """Train with every algorithm in two processes."""
    return run(loops.train, loops.SIZE, loop, NAMES[loop], seconds=150)


def assert_close(actual, expected):
    """Compare lists of numbers, to rounding."""
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected))


@pytest.mark.parametrize("loop", loops.LOOPS)
def test_processes_train_as_the_trainer_does_on_one(loop):
    for name in NAMES[loop]:
        first, second = (one[name] for one in trained(loop))
        state = by_us(loop, name)

        assert first == second, name
        assert_close(first["trained"], loops.numbers(state.model.parameters()))
        assert first["clock"] == [state.timestamp.batch, state.timestamp.sample], name


@pytest.mark.parametrize("loop", loops.LOOPS)
def test_averages_for_an_evaluation_are_those_of_the_trainer(loop):
    first = trained(loop)[0]["EMA"]
    average = by_us(loop, "EMA").averages["EMA"]

    assert_close(
        first["evaluated"], loops.numbers(average[n] for n, _ in net("EMA").named_parameters())
    )
    assert first["evaluated"] != first["trained"]


def test_accumulated_microbatches_train_as_in_the_trainer():
    results = run(partial(loops.train, accumulate=2), loops.SIZE, "own loop", [SIX], seconds=150)
    state = by_us("own loop", SIX, accumulate_batches=2, max_duration="2ba")

    assert results[0] == results[1]
    assert results[0][SIX]["clock"] == [2, 32]
    assert_close(results[0][SIX]["trained"], loops.numbers(state.model.parameters()))


def test_fetches_and_dropout_differ_between_processes():
    (batch, dropped), (other_batch, other_dropped) = run(loops.noise, 2, seconds=60)

    assert batch != other_batch
    assert dropped != other_dropped


def test_rejects_different_seeds_on_every_process():
    for rank, failed in enumerate(attempt(loops.different_seeds, 2, seconds=60)):
        assert failed.kind == "ValueError"
        assert f"different seeds, or are at different batches (rank {rank}" in failed.message


def test_rejects_a_wrapped_model():
    for failed in attempt(loops.wrapped_model, 2, seconds=60):
        assert failed.kind == "ValueError"
        assert "wrapped in DistributedDataParallel" in failed.message
        assert "wrap t.model" in failed.message
