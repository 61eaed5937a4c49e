"""Checkpoints that the processes of a run read together."""

import pytest
import torch

from composable.checkpoint import (
    CheckpointError,
    DamagedCheckpointError,
    MissingCheckpointError,
    VersionError,
    write,
)
from composable.checkpoint.files import read_outline
from composable.distributed import ProcessError, Processes
from composable.resume.verify import Reader
from tests.checkpoint.sharding import together

CPU = torch.device("cpu")


def outcomes(errors):
    """Let processes agree on a function that raises these errors by rank."""

    def agree(processes):
        def function():
            if errors[processes.rank] is not None:
                raise errors[processes.rank]
            return processes.rank

        return Reader(CPU, processes).agree(function)

    return together(len(errors), agree)


def test_all_processes_return_what_they_read():
    assert outcomes([None, None]) == [0, 1]


@pytest.mark.parametrize(
    "errors",
    [
        [None, DamagedCheckpointError("a file is damaged")],
        [MissingCheckpointError("no checkpoint"), None],
        [VersionError("schema 9"), DamagedCheckpointError("a file is damaged")],
    ],
)
def test_all_processes_raise_the_first_error(errors):
    first = next(error for error in errors if error is not None)
    for error in outcomes(errors):
        assert (type(error), str(error)) == (type(first), str(first))


@pytest.mark.parametrize("error", [MissingCheckpointError("no checkpoint"), OSError("no disk")])
def test_checkpoint_that_only_rank_0_can_read_is_not_skipped(error):
    for raised in outcomes([None, error]):
        assert isinstance(raised, ProcessError)
        assert not isinstance(raised, CheckpointError)
        assert str(raised) == f"rank 1 failed: {type(error).__name__}: {error}"


def test_checkpoint_that_is_replaced_before_its_values_are_read_is_refused(tmp_path):
    reader, tensors = Reader(CPU, sharded=True), {"w": torch.ones(3)}
    outline = read_outline(write(tmp_path / "it", tensors, None), Processes())
    assert torch.equal(reader.read_values(outline, {}).tensors["w"], tensors["w"])

    write(tmp_path / "it", {"w": torch.zeros(3)}, None, overwrite=True)
    with pytest.raises(DamagedCheckpointError, match="it was replaced by another checkpoint"):
        reader.read_values(outline, {})
