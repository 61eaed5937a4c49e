"""Two processes, each with a device, train the weights of the CPU, without waits and races."""

import os
from functools import partial

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from composable.algorithms import SelectiveBackprop
from composable.distributed import DDP, FSDP2
from tests.simgpu import build, device, messages
from tests.support import parallel_runs
from tests.support.processes import run

pytestmark = [
    pytest.mark.skipif(device.KIND != "cuda", reason="messages are sent as by NCCL"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]


@pytest.fixture(autouse=True)
def _started_with_devices(monkeypatch):
    paths = [str(build.SOURCES.parent / "auto"), str(build.ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def fit(options):
    """Train, and return what waited and raced in this process too."""
    device.reset()
    messages.SENT.clear()
    result = parallel_runs.fit(**options)
    counts = {"waits": device.waits(), "messages": dict(messages.SENT)}
    return {**result, **counts, "races": device.races()}


OPTIONS = {
    "kind": "list",
    "optimizers": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "eval_dataloader": None,
    "metrics": {},
    "max_duration": "1ep",
    "nonfinite_loss": "ignore",
}
COPIES = {"parallel": DDP(shards=4), "model": parallel_runs.plain_net}
LABELS = {**COPIES, "kind": "ignored", "loss_fn": parallel_runs.token_loss}
CASES = {
    "copies": COPIES,
    "microbatches": {**COPIES, "grad_accum": 2},
    "labels": LABELS,
    "declared": {**LABELS, "loss_mean_over": "tokens"},
    "omitted": {
        **COPIES,
        "algorithms": [SelectiveBackprop(start=0.0, end=1.0)],
        "loss_mean_over": "examples",
    },
    "buffers": {**COPIES, "model": parallel_runs.conv_net},
    "exact": {"parallel": DDP(shards=4, exact=True)},
    "sharded": {"parallel": FSDP2(shards=4)},
    "offloaded": {"parallel": FSDP2(shards=4, offload=True)},
    "mixed precision": {
        "parallel": FSDP2(
            shards=4, mixed_precision=MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        ),
        "model": parallel_runs.plain_net,
    },
    "replicas": {"parallel": FSDP2(shards=4, replicas=2)},
}


SHARDED = {"_allgather_base": 16, "_reduce_scatter_base": 4, "allreduce": 1}
MESSAGES = {
    "exact": {"alltoall_base": 2, "allgather": 2},
    **dict.fromkeys(("sharded", "offloaded", "mixed precision"), SHARDED),
    "replicas": {"allreduce": 5},
}
"""Of each step, from the devices: a report is among the sums of gradients, if there are copies."""
WAITS = {"offloaded": {"event.synchronize": 8, "copy to the CPU": 1}}
"""Of each step: FSDP2 waits for the gradients that it copies, and they for their factor."""


@pytest.mark.parametrize("name", CASES)
def test_processes_train_the_weights_of_the_cpu(name):
    def trained(where, count):
        found = run(fit, 2, {**OPTIONS, **CASES[name], "device": where, "count": count})
        assert [one["races"] for one in found] == [[], []]
        return found[0]

    few, many = (trained("cuda", count) for count in (32, 64))
    assert many["weights"] == trained("cpu", 64)["weights"]
    steps = len(many["losses"]) - len(few["losses"])
    waits, messages = (
        {what: (n - few[key][what]) / steps for what, n in many[key].items() if n != few[key][what]}
        for key in ("waits", "messages")
    )
    assert waits == WAITS.get(name, {})
    assert messages == MESSAGES.get(name, {"allreduce": 1})
