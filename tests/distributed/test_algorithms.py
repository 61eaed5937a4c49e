"""Laws: what every algorithm does on two processes; docs/parallel.md shows it."""

import pytest

from tests.support.campaign import drawn
from tests.support.parallel_algorithms import ALGORITHMS, REFUSED_BY_FSDP2, train
from tests.support.processes import Failed, attempt, run

NAMES = [case.name for case in ALGORITHMS]
COPIED = drawn(NAMES, 14)
TRAINED = drawn([name for name in NAMES if name not in REFUSED_BY_FSDP2], 6)
SHARDED = [*drawn(REFUSED_BY_FSDP2, 2), *TRAINED]


def results(strategy, names):
    """Return what a run with each algorithm leaves, on one process and on two."""
    (alone,) = run(train, 1, names, strategy, seconds=400)
    refused = [name for name in names if strategy == "FSDP2" and name in REFUSED_BY_FSDP2]
    together = {}
    for call, some in [
        (run, [name for name in names if name not in refused]),
        *((attempt, [name]) for name in refused),  # in processes of their own, which leave a group
    ]:
        first, second = call(train, 2, some, strategy, seconds=400)
        assert not isinstance(first, Failed), first.text
        assert first == second  # every rank has the same weights, memory and metrics
        together |= first
    return alone, together


@pytest.fixture(scope="module")
def of_ddp():
    return results("DDP", COPIED)


@pytest.fixture(scope="module")
def of_fsdp():
    return results("FSDP2", SHARDED)


@pytest.mark.parametrize("name", COPIED)
def test_an_algorithm_has_the_same_bits_on_two_processes_as_on_one(name, of_ddp):
    alone, together = of_ddp
    assert together[name] == alone[name]
    assert alone[name]["loss"] == alone[name]["loss"]


@pytest.mark.parametrize("name", SHARDED)
def test_an_algorithm_has_the_same_losses_on_a_sharded_model_or_is_refused(name, of_fsdp):
    alone, together = of_fsdp[0][name], of_fsdp[1][name]
    if reason := REFUSED_BY_FSDP2.get(name):
        assert reason in together
        return
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert together["norm"] == pytest.approx(alone["norm"], rel=1e-4)
    assert together["counts"] == alone["counts"]
