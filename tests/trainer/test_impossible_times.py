"""A timestamp of a checkpoint with a part that exceeds its whole is refused."""

import shutil

import attrs
import pytest

from composable.checkpoint import DamagedCheckpointError
from tests.support.forging import forge
from tests.support.runs import make_trainer

OPTIONS = {"max_duration": "3ep", "iteration_length": 2, "count_tokens": lambda batch: 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    make_trainer(save_folder=folder, save_interval="2ba", **OPTIONS).fit()
    return folder


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("epoch_in_iteration", "epoch"),
        ("token_in_iteration", "token"),
        ("batch_in_epoch", "batch"),
        ("sample_in_epoch", "sample"),
        ("token_in_epoch", "token"),
        ("iteration_wct", "total_wct"),
        ("epoch_wct", "total_wct"),
        ("batch_wct", "total_wct"),
        ("epoch", "batch"),
    ],
)
def test_part_that_exceeds_its_whole_is_named(folder, tmp_path, part, whole):
    def exceed(state):
        now = state["timestamp"]
        state["timestamp"] = attrs.evolve(now, **{part: getattr(now, whole) + 1})

    path = forge(shutil.copytree(folder / "ep1-ba4", tmp_path / "copy"), exceed)

    with pytest.raises(DamagedCheckpointError, match=rf"state/timestamp has .* as {part}, more"):
        make_trainer(load_path=path, **OPTIONS)


@pytest.mark.parametrize("name", ["ep0-ba2", "ep1-ba6", "ep2-ba8", "ep3-ba9"])
def test_iteration_continues_after_a_resume(folder, name):
    saved = make_trainer(load_path=folder / name, **OPTIONS)
    start = saved.state.timestamp
    whole = {"ep0-ba2": (0, 14), "ep1-ba6": (1, 42), "ep2-ba8": (0, 14), "ep3-ba9": (1, 21)}

    assert (start.epoch_in_iteration, start.token_in_iteration) == whole[name]
    assert 0 < start.iteration_wct <= start.total_wct

    now = saved.fit().timestamp

    assert (now.iteration, now.epoch_in_iteration, now.token_in_iteration) == (1, 1, 21)
    assert now.iteration_wct >= now.epoch_wct
