"""Predictions and evaluations that several processes share."""

import pytest

from composable.distributed import DDP, FSDP2
from tests.support import parallel_predictions
from tests.support.processes import attempt, run


def predict(parallel, model=parallel_predictions.Rich):
    return parallel_predictions.predict(parallel, model)


@pytest.mark.parametrize("strategy", [DDP, FSDP2])
def test_processes_share_a_prediction_and_return_all_outputs_in_order(strategy):
    (alone,) = run(predict, 1, None)
    several = run(predict, 2, strategy())
    assert [len(alone[name]["outputs"]) for name in ("map", "stream", "one batch")] == [6, 6, 1]
    for one in several:
        for name in parallel_predictions.LOADERS:
            assert one[name]["outputs"] == alone[name]["outputs"]
            assert one[name]["each"] == alone[name]["outputs"]
            assert one[name]["batches"] == (1 if name == "one batch" else 3)
        # 44 examples divide evenly: a sampler that divides them repeats none.
        assert one["results"] == pytest.approx(alone["results"], rel=1e-5)


def write(parallel, folder):
    return parallel_predictions.write(parallel, folder)


@pytest.mark.parametrize("strategy", [DDP, FSDP2])
def test_processes_continue_a_folder_together(strategy, tmp_path):
    run(write, 1, None, str(tmp_path / "alone"))
    parts = {one.name: one.read_bytes() for one in (tmp_path / "alone").glob("part-*")}
    folder = tmp_path / "several"
    run(write, 2, strategy(), str(folder))
    for i in (3, 4, 5):
        (folder / f"part-{i:08d}.safetensors").unlink()

    batches = run(write, 2, strategy(), str(folder))

    assert batches == [2, 2]  # of three each: the second round has a part that is missing
    assert {one.name: one.read_bytes() for one in folder.glob("part-*")} == parts


def test_outputs_of_different_structures_are_named():
    failed = attempt(predict, 2, DDP(), parallel_predictions.Changing)
    assert [one.kind for one in failed] == ["ProcessError"] * 2
    assert all("has the structure" in one.message for one in failed)
