"""What an accelerator does that is not CUDA: SIMGPU=sim has the devices "sim:0" and "sim:1"."""

import pytest
import torch

from composable.callbacks import MemoryMonitor
from composable.data.prefetch import CopyStream
from composable.loggers import InMemoryLogger
from composable.trainer.arguments import find_device
from composable.utils.reproducibility import get_rng_state, load_rng_state
from tests.simgpu import device
from tests.support.data import batches
from tests.support.models import mlp, same, weights
from tests.support.runs import adam, make_trainer

FIRST, SECOND = (f"{device.KIND}:{i}" for i in range(2))


def test_the_generators_of_all_devices_are_restored():
    def drawn():
        return [torch.rand(2, device=one) for one in (FIRST, SECOND)]

    drawn()
    state = get_rng_state()
    first = drawn()
    load_rng_state(state)

    assert all(map(torch.equal, drawn(), first))
    name = "cuda" if device.KIND == "cuda" else "accelerator"
    with pytest.raises(ValueError, match=f"state has 1 generators of {name} devices, .* has 2"):
        load_rng_state(state | {name: state[name][:1]})


def test_a_device_beyond_those_of_the_machine_is_refused():
    assert [find_device(one) for one in (device.KIND, SECOND)] == list(
        map(torch.device, (device.KIND, SECOND))
    )
    with pytest.raises(ValueError, match=f":2' is not available: .* has 2 {device.KIND} devices"):
        find_device(f"{device.KIND}:2")


def test_a_run_takes_the_accelerator_copies_ahead_and_logs_its_memory():
    def trained(where):
        memory = InMemoryLogger()
        options = {"callbacks": [MemoryMonitor("1ba")], "loggers": [memory], "optimizers": adam}
        trainer = make_trainer(mlp(dropout=0.5), batches(24), device=where, **options)
        return trainer.fit(), trainer._run.data.copies, memory.latest

    (state, copies, logged), (expected, _, _) = trained(None), trained("cpu")

    assert state.device.type == device.KIND
    assert isinstance(copies, CopyStream)
    assert device.races() == []
    assert logged["memory/peak_allocated_mem"] > 0
    assert same(weights(state.model), weights(expected.model))
