"""A run by an engine that owns gradients and steps, as that of DeepSpeed does."""

from functools import partial

import pytest

from composable.algorithms import EMA, MixUp, WholeLoss
from composable.distributed import DDP
from tests.support import fake_deepspeed, parallel_runs
from tests.support.processes import by_options, run

fit = partial(by_options, parallel_runs.fit)
fit_with_deepspeed = partial(by_options, fake_deepspeed.fit)


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_is_that_of_ddp_and_is_resumed(size, tmp_path):
    options = {
        "model": parallel_runs.plain_net,
        "grad_accum": 2,
        "loss_mean_over": "examples",
        "algorithms": [MixUp(), EMA(half_life="2ba")],
    }
    expected = run(fit, size, {**options, "parallel": DDP(shards=2)})[0]
    whole = run(fit_with_deepspeed, size, options)
    stopping = {"callbacks": [parallel_runs.SignalAt(4, 0)], "folder": str(tmp_path)}
    stopped = run(fit_with_deepspeed, size, {**options, **stopping})[0]
    resumed = run(fit_with_deepspeed, size, {**options, "folder": str(tmp_path)})
    assert whole[0]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert stopped["ended"] == "preempted"
    assert {one["weights"] for one in (*whole, *resumed)} == {whole[0]["weights"]}


def test_the_loss_of_the_whole_is_that_of_ddp():
    options = {"model": parallel_runs.plain_net, "grad_accum": 2, "algorithms": [WholeLoss()]}

    expected = run(fit, 2, {**options, "parallel": DDP(shards=2)})[0]

    found, other = run(fit_with_deepspeed, 2, options)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["weights"] == other["weights"]
