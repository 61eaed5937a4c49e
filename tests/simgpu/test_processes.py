"""Two processes, each with a device, train the weights of the CPU, without waits and races."""

import os
from functools import partial

import pytest
import torch

from composable.distributed import DDP, FSDP2
from tests.simgpu import build, device
from tests.support import parallel_messages
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
    result = parallel_messages.fit_counting(**options)
    return {**result, "waits": device.waits(), "races": device.races()}


OPTIONS = {
    "kind": "list",
    "optimizers": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "eval_dataloader": None,
    "metrics": {},
    "max_duration": "1ep",
    "nonfinite_loss": "ignore",
}
CASES = {
    "copies": {"parallel": DDP(shards=4)},
    "microbatches": {"parallel": DDP(shards=4), "grad_accum": 2},
    "exact": {"parallel": DDP(shards=4, exact=True)},
    "sharded": {"parallel": FSDP2(shards=4)},
    "replicas": {"parallel": FSDP2(shards=4, replicas=2)},
}


@pytest.mark.parametrize("name", CASES)
def test_processes_train_the_weights_of_the_cpu(name):
    def trained(where, count):
        found = run(fit, 2, {**OPTIONS, **CASES[name], "device": where, "count": count})
        assert [one["races"] for one in found] == [[], []]
        return found[0]

    few, many = (trained("cuda", count) for count in (32, 64))
    assert many["weights"] == trained("cpu", 64)["weights"]
    assert few["waits"] == many["waits"]  # before the first step and after the last
