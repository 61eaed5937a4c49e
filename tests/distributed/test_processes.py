"""What processes exchange."""

import torch

from composable.distributed import Processes
from composable.distributed.starting import join_processes
from tests.support.processes import Failed, attempt, run


def exchange():
    """Exchange values in every way."""
    one = join_processes()
    return {
        "gathered": one.gather({"rank": one.rank, "values": [1.5, None, "ä"]}),
        "broadcast": one.broadcast([one.rank]),
        "main": one.on_main(lambda: f"from {one.rank}"),
        "maximum": one.maximum([one.rank, 3 - one.rank]),
        "sum": one.sum(torch.tensor([1.0, one.rank])).tolist(),
        "together": one.together(lambda: one.rank),
    }


def fail(rank, way):
    """Fail on one rank."""
    one = join_processes()

    def function():
        if one.rank == rank:
            raise OSError("no space")

    getattr(one, way)(function)


def test_values_are_exchanged():
    for rank, seen in enumerate(run(exchange, 3)):
        values = [1.5, None, "ä"]
        assert seen == {
            "gathered": [{"rank": r, "values": values} for r in range(3)],
            "broadcast": [0],
            "main": "from 0",
            "maximum": [2, 3],
            "sum": [3.0, 3.0],
            "together": rank,
        }


def test_a_process_by_itself_exchanges_with_itself():
    one = Processes()
    assert one.gather(3) == [3]
    assert one.broadcast("a") == "a"
    assert one.on_main(lambda: 5) == one.together(lambda: 5) == 5
    assert one.maximum([4]) == [4]


def test_failure_of_a_rank_is_raised_on_all():
    for way, rank in (("on_main", 0), ("together", 1)):
        results = attempt(fail, 2, rank, way)
        assert all(isinstance(one, Failed) for one in results)
        assert repr(results[rank]) == "OSError: no space"
        assert repr(results[1 - rank]) == f"ProcessError: rank {rank} failed: OSError: no space"
