"""Callbacks that write files write them once, and change nothing, if several processes train."""

from tests.support import parallel_runs as runs
from tests.support.mlperf import problems
from tests.support.processes import run


def test_rank_0_writes_and_all_train_as_without_observers(tmp_path):
    plain, other = run(runs.fit, 2)
    seen, seen_by_other = run(runs.fit_observed, 2, str(tmp_path))

    assert (seen, seen_by_other) == (plain, other)
    files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["model.pt2", "result_0.txt", "trace-ba2-ba3.json", "trace-ba2-ba3.txt"]
    assert problems(tmp_path / "result_0.txt") == []
