"""Checkpoints of own loops on two processes: under DDP, and with a sharded model."""

import pytest

from tests.support import saved_loops as loops
from tests.support.processes import error_of, run


@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_processes_continue_with_the_same_bits(tmp_path, kind):
    whole = run(loops.train, 2, tmp_path / "a", kind, seconds=120)
    again = run(loops.until_it_ends, 2, tmp_path / "b", kind, seconds=120)

    assert again[0][0] == again[1][0] == whole[0][0]  # the weights
    assert again[0][1] == whole[0][1]  # random numbers; own values are those of rank 0
    assert again[1][1][-3:] == whole[1][1][-3:]


def test_another_number_of_processes_within_an_epoch_is_refused(tmp_path):
    def stops(stop):
        return run(loops.until_stop, 2, tmp_path, stop, seconds=120)

    stops(2)
    (error,) = run(error_of, 1, loops.train, tmp_path, "DDP", seconds=60)
    assert error.startswith("MismatchError: t.resume(")
    assert "within an epoch by 2 processes" in error


def test_an_error_of_rank_0_ends_all_processes(tmp_path):
    (tmp_path / "file").write_text("")
    first, second = run(error_of, 2, loops.outside, tmp_path / "file" / "folder", seconds=60)
    assert "t.save(folder): " in first
    assert second.startswith("ProcessError: rank 0 failed")


def test_a_resume_that_fails_on_one_process_fails_on_all(tmp_path):
    first, second = run(loops.uneven, 2, tmp_path, seconds=60)
    assert first[0].startswith("ProcessError: rank 1 failed: MismatchError")
    assert second[0].startswith("MismatchError: t.resume(")
    assert [first[1], second[1]] == [True, True]  # as they were
