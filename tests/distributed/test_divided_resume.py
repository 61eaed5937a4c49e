"""Runs with divided parameters that resume: what each process reads."""

import shutil
from functools import partial

import pytest
import torch
from torch.distributed.checkpoint import HuggingFaceStorageReader, load

from composable.algorithms import EMA, ChannelsLast
from composable.checkpoint import find, read, verify
from composable.distributed import DDP, FSDP2
from tests.support import parallel_resume
from tests.support import parallel_runs as runs
from tests.support.losses import NaNOnce
from tests.support.processes import attempt, by_options, run

OPTIONS = {
    "model": parallel_resume.wide_net,
    "algorithms": [EMA("2ba")],
    "optimizers": partial(torch.optim.AdamW, lr=3e-3),
}
DIVIDED, WHOLE = {"parallel": FSDP2(shards=2)}, {"parallel": DDP(shards=2)}
fit = partial(by_options, runs.fit)
fit_observed = partial(by_options, parallel_resume.fit)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return the folder of a run of two processes with divided parameters that was stopped."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    stop = {"callbacks": [runs.SignalAt(2, rank=0)], "folder": str(folder)}
    assert [one["batch"] for one in run(fit, 2, {**OPTIONS, **DIVIDED, **stop})] == [3, 3]
    return folder


@pytest.fixture
def copied(stopped, tmp_path):
    """Return a function that copies the folder of the run."""
    return lambda name: str(shutil.copytree(stopped, tmp_path / name))


def test_process_reads_its_part_of_divided_tensors_and_the_run_is_the_same(stopped, copied):
    parts = sorted(find(stopped)[0][0].path.glob("*.safetensors"))
    sizes = [part.stat().st_size for part in parts]
    headers = [8 + int.from_bytes(part.read_bytes()[:8], "little") for part in parts]
    (whole, _) = run(fit, 2, {**OPTIONS, **DIVIDED})
    (alone,) = run(fit_observed, 1, {**OPTIONS, **WHOLE, "folder": copied("one")})
    both = run(fit_observed, 2, {**OPTIONS, **DIVIDED, "folder": copied("two")})

    for own, other, one in zip(sizes, reversed(headers), both, strict=True):
        assert one["counts"]["hashed"] == own + other + sum(headers)  # read twice
        assert one["counts"]["loaded"] == pytest.approx(sum(sizes) / 2, rel=0.1)
        assert one["loaded"] == alone["loaded"]
        for name in ("weights", "memory", "metrics", "batch", "sample", "loss"):
            assert one[name] == whole[name]
    assert alone["counts"] == {"hashed": sum(sizes)}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_the_weights_of_a_run_from_its_checkpoint(stopped):
    path = find(stopped)[0][0].path
    saved = {n: value for n, value in read(path).tensors.items() if n.startswith("model.")}
    found = {n.removeprefix("model."): torch.zeros_like(value) for n, value in saved.items()}

    load({"model": found}, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=True)

    assert found
    for name, value in saved.items():
        assert torch.equal(found[name.removeprefix("model.")], value)


@pytest.mark.parametrize("algorithms", [[], [ChannelsLast()]], ids=["contiguous", "channels_last"])
def test_checkpoint_of_one_process_is_divided_among_two(algorithms, tmp_path):
    options = {**OPTIONS, "model": runs.plain_net, "folder": str(tmp_path / "run")}
    saved = {**options, **WHOLE, "algorithms": [EMA("1ba"), *algorithms]}
    run(fit, 1, {**saved, "callbacks": [runs.SignalAt(2, rank=0)]})
    shutil.copytree(tmp_path / "run", tmp_path / "copy")

    (alone,) = run(fit_observed, 1, {**saved, "folder": str(tmp_path / "copy")})
    both = run(fit_observed, 2, {**options, **DIVIDED, "algorithms": [EMA("1ba")]})

    for one in both:
        assert one["began"] == 2
        assert one["loaded"] == alone["loaded"]


def test_checkpoint_that_is_damaged_for_one_process_is_skipped_by_all(copied, tmp_path):
    folder = copied("run")
    newest, older = (found.path for found in find(folder)[0])
    damaged = newest / "tensors-00002-of-00002.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)

    for one in attempt(fit, 2, {**OPTIONS, **DIVIDED, "load_path": str(newest)}):
        assert one.kind == "DamagedCheckpointError"
        assert f"{damaged} is damaged" in one.message
    first, second = run(fit_observed, 2, {**OPTIONS, **DIVIDED, "folder": folder})
    assert first["began"] == second["began"] == verify(older).batch == 2
    assert first["loaded"] == second["loaded"]
    (told,) = first["told"]
    assert f"{newest} is skipped" in told
    assert str(damaged) in told
    assert second["told"] == []


@pytest.mark.parametrize("strategy", [DIVIDED, WHOLE], ids=["divided", "whole"])
def test_processes_roll_back_together(strategy, tmp_path):
    failing = {"nonfinite_loss": "rollback", "loss_fn": NaNOnce(3), "loss_mean_over": "examples"}
    options = {**OPTIONS, **strategy, **failing, "folder": str(tmp_path / "run")}

    first, second = run(fit_observed, 2, options)

    assert second["read"]["hashed"]  # rank 1 reads nothing otherwise
    assert ("loaded" in second["read"]) is (strategy is DIVIDED)
    for name in ("weights", "memory", "metrics", "batch", "sample", "loss"):
        assert first[name] == second[name]
