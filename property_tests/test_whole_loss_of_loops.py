"""Law: a step of an external loop has the loss of the whole step, as the Trainer's, or an error."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.testing import assert_close

from composable.distributed import DDP
from composable.trainer.guards import NonFiniteLossError
from tests.support.campaign import FULL
from tests.support.loop_losses import (
    DECLARED,
    LOSSES,
    PARTS,
    by_loop,
    by_trainer,
    in_processes,
    joined,
    run_of,
)
from tests.support.losses import REFUSED
from tests.support.processes import attempt, run
from tests.support.split_losses import ALGORITHMS, model, parts_of
from tests.support.strategies import explicit

SPLIT = [name for name in LOSSES if name not in REFUSED]
TERMS = ["weights and squares", "two masks", "mean and sum", "by rare counts"]
A_FEW = SPLIT if FULL else list(dict.fromkeys([*SPLIT[::9], *TERMS, *DECLARED]))
METHODS = [one for one in ALGORITHMS if one != "plain"]


def check(name, found, expected):
    """Check that two trainings leave the same weights and loss, or are both refused."""
    if "refused" in (found, expected):
        assert found == expected, name
    else:
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, msg=lambda text: f"{name}: {text}")


def has_loss(name, inputs, targets):
    """Check that a count by which a loss of a whole step is divided is not 0."""
    try:
        return bool(LOSSES[name](model()(inputs), targets).isfinite())
    except ValueError:
        return False


@pytest.mark.parametrize("name", LOSSES)
@explicit
@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=7),
    count=st.integers(2, 4),
    seed=st.integers(0, 99),
)
@example(sizes=[5, 2, 4, 3, 5], count=2, seed=0)
@example(sizes=[3, 4, 5, 2, 6, 1, 4], count=3, seed=1)
@example(sizes=[2, 1], count=2, seed=0)  # the second has the ignored class alone
def test_accumulated_step_is_that_of_the_trainer(name, sizes, count, seed):
    assume(all(has_loss(name, *step) for step in joined([sizes], count, seed)))
    given = run_of(name, parts_of(sizes, seed=seed), accumulate_batches=count)

    check(name, by_loop(given), by_trainer(given))


@pytest.mark.parametrize("algorithms", METHODS)
def test_accumulated_step_with_methods_is_that_of_the_trainer_or_refused(algorithms):
    compared = []
    for name in A_FEW:
        given = run_of(name, parts_of([5, 2, 4, 3, 5]), algorithms, accumulate_batches=2)
        try:
            expected = by_trainer(given)
        except (NonFiniteLossError, AttributeError, TypeError, ValueError):
            continue  # the loss does not fit the method
        found = by_loop(given)
        if not (found == "refused" and "MixUp" in algorithms):  # it changes batches one by one
            check(name, found, expected)
            compared.append(name)
    assert compared


@pytest.mark.parametrize("name", TERMS)
def test_resumed_step_has_the_terms_of_its_own_batches(name, tmp_path):
    given = run_of(name, parts_of([5, 2, 4, 3, 6, 5]), accumulate_batches=2)

    expected = by_loop(given, "own loop", tmp_path)

    assert by_loop(given, "own loop", tmp_path, resume=2) == expected


SIZES = {
    "steps of one batch": ([[5, 2], [3, 6]], 1, 1),
    "steps of two": PARTS,
}


@pytest.mark.parametrize("sizes", SIZES)
def test_step_of_two_processes_is_that_of_one_on_all_their_examples(sizes):
    first, second = run(in_processes, 2, A_FEW, *SIZES[sizes])

    assert first == second
    for name in A_FEW:
        whole = run_of(name, joined(*SIZES[sizes]), options={})
        check(name, first[name], by_trainer(whole))


@pytest.mark.parametrize("algorithms", METHODS)
def test_step_of_two_processes_with_methods_is_that_of_two_shards(algorithms):
    sizes, names = ([[4, 4], [4, 4]], 1, 0), ["CrossEntropyLoss, ignored, mean", "smoothed by hand"]
    first, second = run(in_processes, 2, names, *sizes, algorithms)

    assert first == second
    for name in names:
        given = run_of(name, joined(*sizes), algorithms)
        check(name, first[name], by_trainer(given, parallel=DDP(shards=2)))


@pytest.mark.parametrize("name", REFUSED if FULL else ["contrastive", "root of mean square"])
def test_what_processes_cannot_split_is_refused_by_each(name):
    assert attempt(in_processes, 2, [name], *PARTS) == [{name: "refused"}] * 2
