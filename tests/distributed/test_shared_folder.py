"""Processes of machines that do not share the folder of a run."""

import socket
import warnings
from functools import partial

import pytest

from composable.distributed import DDP, FSDP2
from tests.support import remote_processes
from tests.support.processes import attempt

OWN = "/proc/self/cwd/run"  # on each machine the same path
HOST = socket.gethostname()


def warned(homes, **options):
    """Train, and return the warnings of the folder."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        remote_processes.fit({}, homes, folder=OWN, **options)
    return [text for text in (str(one.message) for one in caught) if "save_folder" in text]


@pytest.fixture
def homes(tmp_path):
    return [str(tmp_path / name) for name in "ab"]


def test_a_folder_that_is_not_shared_is_named_and_resumes_with_no_other_rank_0(homes):
    train = partial(warned, parallel=DDP(shards=2))
    (text,), others = attempt(partial(train, homes, max_duration="1ep"), 2)
    assert text.startswith(f"save_folder='{OWN}' on {HOST} is not the folder of rank 0 on {HOST}")
    assert others == []
    for order, seen in ((homes, ("ep1-ba3", "none")), (homes[::-1], ("none", "ep1-ba3"))):
        for one in attempt(partial(train, order), 2):
            assert one.kind == "MissingCheckpointError"
            assert "is {} for rank 0 on {host}, and {} for rank 1 on {host}".format(
                *seen, host=HOST
            ) in str(one)


def test_parts_of_sharded_checkpoints_need_a_shared_folder(homes):
    for one in attempt(partial(warned, homes, parallel=FSDP2(shards=2)), 2):
        assert one.kind == "UnwritableCheckpointError"
        assert "every process writes a part" in one.message


def test_a_shared_folder_is_not_warned_of(homes):
    assert attempt(partial(warned, homes[:1], parallel=DDP(shards=2)), 2) == [[], []]
