"""The times within an iteration continue after a resume."""

import pytest

from tests.support.runs import make_trainer

OPTIONS = {"max_duration": "3ep", "iteration_length": 2, "count_tokens": lambda batch: 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    make_trainer(save_folder=folder, save_interval="2ba", **OPTIONS).fit()
    return folder


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
