"""What several processes predict, evaluate and monitor is what one does."""

from functools import partial

import pytest
import torch

from composable.distributed import DDP, FSDP2
from tests.support import parallel_runs
from tests.support.campaign import drawn
from tests.support.parallel_results import (
    LOADERS,
    Changing,
    evaluate,
    fit_monitored,
    predict,
    write,
)
from tests.support.processes import attempt, by_options, run

# --- predictions ---


@pytest.mark.parametrize("strategy", [DDP, FSDP2])
def test_processes_share_a_prediction_and_return_all_outputs_in_order(strategy):
    (alone,) = run(predict, 1, None)
    several = run(predict, 2, strategy())
    assert [len(alone[name]["outputs"]) for name in ("map", "stream", "one batch")] == [6, 6, 1]
    for one in several:
        for name in LOADERS:
            assert one[name]["outputs"] == alone[name]["outputs"]
            assert one[name]["each"] == alone[name]["outputs"]
            assert one[name]["batches"] == (1 if name == "one batch" else 3)
        # 44 examples divide evenly: a sampler that divides them repeats none.
        assert one["results"] == pytest.approx(alone["results"], rel=1e-5)


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
    failed = attempt(predict, 2, DDP(), Changing)
    assert [one.kind for one in failed] == ["ProcessError"] * 2
    assert all("has the structure" in one.message for one in failed)


# --- objects as metrics ---

CASES = {
    "copies": (DDP(), 7, False, [4, 3]),
    "sharded": (FSDP2(), 7, False, [7, 7]),
    "one batch": (DDP(), 44, False, [1, 1]),  # each process evaluates it
    "beside an object that needs all batches": (DDP(), 7, True, [7, 7]),
}


@pytest.mark.parametrize("name", CASES)
def test_each_process_updates_torchmetrics_on_its_part_only(name):
    parallel, batch_size, plain, updates = CASES[name]
    alone = evaluate(None, batch_size, plain)
    several = run(evaluate, 2, parallel, batch_size, plain)
    assert alone["results"]["examples"] == 44
    assert not plain or alone["results"]["seen"] == 44
    assert [one["updates"] for one in several] == updates
    for one in several:
        assert one["results"] == pytest.approx(alone["results"], rel=1e-5)


# --- monitors: they change nothing, and log what one process logs ---

OPTIONS = {"optimizers": partial(torch.optim.SGD, lr=0.1), "count": 32, "grad_accum": 2}
STRATEGIES = {"exact": DDP(shards=4, exact=True), "fast": DDP(shards=4), "sharded": FSDP2(shards=4)}
fit = partial(by_options, fit_monitored)


@pytest.mark.parametrize("name", drawn(STRATEGIES, 2))
def test_monitors_of_several_processes(name):
    options = {**OPTIONS, "parallel": STRATEGIES[name]}
    (alone,) = run(fit, 1, {**OPTIONS, "parallel": DDP(shards=4), "monitored": True})
    first, _ = run(fit, 2, {**options, "monitored": True})
    plain, _ = run(fit, 2, {**options, "monitored": False})

    assert first["weights"] == plain["weights"]
    norms = [metric for metric in alone["latest"] if metric.startswith("l2_norm")]
    assert len(norms) > 3
    for metric in norms:
        assert first["latest"][metric] == pytest.approx(alone["latest"][metric], rel=1e-4, abs=1e-6)


def test_rank_0_writes_and_all_train_as_without_observers(tmp_path):
    plain, other = run(parallel_runs.fit, 2)
    seen, seen_by_other = run(parallel_runs.fit_observed, 2, str(tmp_path))

    assert (seen, seen_by_other) == (plain, other)
    files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["model.pt2", "trace-ba2-ba3.json", "trace-ba2-ba3.txt"]
