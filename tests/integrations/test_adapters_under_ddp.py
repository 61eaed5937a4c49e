"""The algorithms in external loops on two processes, compared with the Trainer on one."""

from functools import cache, partial

import pytest
import torch

from composable.distributed import DDP
from tests.integrations.loops import LOOPS
from tests.integrations.table import INDEXED, SIX, works_in
from tests.support import adapters_under_ddp as loops
from tests.support.campaign import drawn
from tests.support.loop_losses import by_trainer, in_library, of_all_processes, run_of
from tests.support.processes import error_of, run
from tests.support.runs import training_weights


def names(loop):
    """Return some of the algorithms that work in a loop, or all of them in a campaign."""
    all_ = [name for name in works_in(loop) if not (loop == "HF, mixin" and name in INDEXED)]
    return list(dict.fromkeys(["EMA", SIX, *drawn(all_, 4)]))


NAMES = {loop: names(loop) for loop in loops.TESTED if loop in LOOPS}
LIBRARIES = [name for name in ("Accelerate", "Fabric", "Lightning, mixin") if name in LOOPS]
every_loop = pytest.mark.parametrize("loop", NAMES)


@cache
def by_us(loop, name, **changes):
    """Train with the Trainer of this library: one process, two shards."""
    run = loops.of_row(name, batches=lambda: loops.global_batches(loop, name), **changes)
    trainer = run.trainer(parallel=DDP(shards=loops.SIZE))
    trainer.fit()
    model = trainer.state.model
    return loops.outcome(model, training_weights(trainer), model.state_dict(), trainer.state)


@cache
def trained(loop):
    """Train with every algorithm in two processes."""
    return run(loops.train, loops.SIZE, loop, NAMES[loop], seconds=150)


@every_loop
def test_processes_train_and_evaluate_as_the_trainer_does_on_one(loop):
    for name in NAMES[loop]:
        first, second = (one[name] for one in trained(loop))
        expected = by_us(loop, name)

        assert first == second, name
        assert first["clock"] == expected["clock"], name
        for part in ("trained", "evaluated"):
            found, wanted = (torch.tensor(one[part]) for one in (first, expected))
            torch.testing.assert_close(found, wanted, msg=f"{name}: {{}}".format)
    average = trained(loop)[0]["EMA"]
    assert average["evaluated"] != average["trained"]


@pytest.mark.parametrize("loop", [loop for loop in NAMES if "mixin" in loop])
def test_trainings_continue_from_safe_checkpoints(loop, tmp_path):
    first, second = run(loops.continued, loops.SIZE, loop, tmp_path, seconds=150)

    assert first == second
    assert first[0]["trained"] != first[1]["trained"]
    assert first[1] == trained(loop)[0][SIX]


def test_accumulated_microbatches_train_as_in_the_trainer():
    train = partial(loops.train, accumulate_batches=2)
    first, second = (one[SIX] for one in run(train, loops.SIZE, "own loop", [SIX], seconds=150))
    expected = by_us("own loop", SIX, accumulate_batches=2)

    assert first == second
    assert first["clock"] == expected["clock"] == [2, 32]
    torch.testing.assert_close(*(torch.tensor(one["trained"]) for one in (first, expected)))


@pytest.mark.parametrize("loop", LIBRARIES)
def test_unequal_weights_of_two_processes_give_the_loss_of_all_their_examples(loop):
    names = ["CrossEntropyLoss, ignored, mean", "CrossEntropyLoss, sum"]
    if loop in ("Accelerate", "Fabric"):
        names.append("weights and squares")
    first, second = run(in_library, loops.SIZE, loop, names, seconds=150)

    assert first == second
    for name in names:
        expected = by_trainer(run_of(name, of_all_processes()))
        for one, other in zip(first[name], expected, strict=True):
            torch.testing.assert_close(one, other, msg=f"{name}: {{}}".format)


def test_fetches_and_dropout_differ_between_processes():
    (batch, dropped), (other_batch, other_dropped) = run(loops.noise, 2, seconds=60)

    assert batch != other_batch
    assert dropped != other_dropped


def test_rejects_different_seeds_on_every_process():
    for rank, error in enumerate(run(error_of, 2, loops.different_seeds, seconds=60)):
        assert error.startswith("ValueError")
        assert f"different seeds, or are at different batches (rank {rank}" in error


def test_rejects_a_wrapped_model():
    for error in run(error_of, 2, loops.wrapped_model, seconds=60):
        assert error.startswith("ValueError")
        assert "wrapped in DistributedDataParallel" in error
        assert "wrap t.model" in error
