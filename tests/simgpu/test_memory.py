"""Memory of a device is logged, and its allocations are recorded."""

import copy
import gc
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from composable import Trainer
from composable.algorithms import ActivationCheckpointing
from composable.callbacks import MemoryMonitor, MemorySnapshot, OOMObserver, _allocations
from composable.callbacks import oom_observer as observers
from composable.functional import checkpoint_activations
from composable.loggers import InMemoryLogger
from tests.simgpu.device import KIND
from tests.simgpu.failing import Fails
from tests.support.data import batches
from tests.support.runs import make_trainer

cuda = pytest.mark.skipif(KIND != "cuda", reason="PyTorch records the allocations of CUDA alone")


@pytest.fixture
def history():
    """Return the limits of the recordings that were started, and None where one was stopped."""
    from tests.simgpu.cuda import HISTORY

    HISTORY.clear()
    yield lambda: [call[3] if call[0] else None for call in HISTORY]
    assert _allocations._recorders == {}
    assert observers._active == []


def fit(callbacks, count=10, **options):
    trainer = make_trainer(
        loader=batches(4 * count, 4),
        device=KIND,
        max_duration="1ep",
        callbacks=callbacks,
        check_effects=False,
        **options,
    )
    trainer.fit()
    return trainer


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@cuda
def test_statistics_of_the_allocator_are_logged_by_composers_names():
    memory = InMemoryLogger()
    fit(MemoryMonitor("2ba"), 5, loggers=memory)

    kinds = ("allocated", "active", "inactive", "reserved")
    names = {f"memory/{when}_{kind}_mem" for when in ("current", "peak") for kind in kinds}
    logged = {name for name in memory.latest if name.startswith("memory/")}
    assert logged == {*names, "memory/alloc_retries"}
    current, peak = (memory.series(f"memory/{when}_allocated_mem") for when in ("current", "peak"))
    assert len(current) == len(peak) == 2
    assert all(0 < one < other < 1e-3 for one, other in zip(current, peak, strict=True))


@cuda
def test_statistics_can_be_chosen():
    memory = InMemoryLogger()
    keys = {"segment.all.current": "segments", "reserved_bytes.all.current": "reserved", "x": "y"}
    fit(MemoryMonitor("1ba", memory_keys=keys), 1, loggers=memory)

    logged = {name: value for name, value in memory.latest.items() if "memory/" in name}
    assert logged.keys() == {"memory/segments", "memory/reserved"}
    assert logged["memory/segments"] == int(logged["memory/segments"]) > 0


@cuda
def test_snapshots_have_the_batches_of_the_interval(history, tmp_path):
    fit(MemorySnapshot(tmp_path, skip_batches=2, interval="3ba", max_entries=9))

    assert files(tmp_path) == ["memory-ba5.json", "memory-ba5.txt"]
    assert "allocated" in (tmp_path / "memory-ba5.txt").read_text().lower()
    assert history() == [9, None]


@cuda
def test_a_snapshot_of_a_later_fit_replaces_no_file(history, tmp_path):
    for _ in range(2):
        fit(MemorySnapshot(tmp_path, skip_batches=0, interval="1ba"), 3)

    starts = ("memory-ba1.1", "memory-ba1")
    assert files(tmp_path) == [f"{one}.{kind}" for one in starts for kind in ("json", "txt")]


@cuda
def test_recording_stops_with_the_fit_and_keeps_the_entries_of_both(history, tmp_path):
    snapshot = MemorySnapshot(tmp_path / "a", interval="100ba", max_entries=9)
    fit([snapshot, OOMObserver(tmp_path, max_entries=5)], 3)

    assert max(one for one in history() if one is not None) == 9
    assert history()[-1] is None
    assert files(tmp_path) == []


@cuda
@pytest.mark.parametrize("unwritable", [False, True])
def test_allocations_are_written_at_a_full_memory(unwritable, history, tmp_path):
    (tmp_path / "file").touch()
    second = OOMObserver(tmp_path / ("file" if unwritable else "a"))
    warned = pytest.warns(UserWarning, match=r"could not write .*oom.json")
    with warned if unwritable else nullcontext(), pytest.raises(torch.OutOfMemoryError):
        fit([OOMObserver(tmp_path / "b", filename="b"), second, Fails()], 3)

    assert files(tmp_path / "b") == ["b.json", "b.txt"]
    assert unwritable or files(tmp_path / "a") == ["oom.json", "oom.txt"]
    assert history()[-1] is None


@cuda
@pytest.mark.parametrize("build", [MemorySnapshot, OOMObserver])
def test_a_build_without_these_functions_is_one_warning(build, monkeypatch, tmp_path):
    monkeypatch.delattr(torch._C, "_cuda_record_memory_history")
    with pytest.warns(UserWarning, match="_cuda_record_memory_history") as caught:
        fit(build(tmp_path), 3)
    assert len(caught) == 1


class Drops(nn.Module):
    def forward(self, inputs):
        return nn.functional.dropout(inputs, 0.5).sin()


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList([Drops(), Drops()])

    def forward(self, inputs):
        inputs = self.first(inputs)
        for block in self.blocks:
            inputs = block(inputs=inputs)
        return inputs


@cuda
@pytest.mark.parametrize("offload", [False, True])
def test_blocks_that_are_called_by_name_repeat_the_draws_of_their_device(offload):
    def gradient(model):
        torch.manual_seed(1)
        model.to(KIND)(torch.ones(64, 8, device=KIND)).sum().backward()
        return model.first.weight.grad

    torch.manual_seed(0)
    plain = ByName()
    changed = checkpoint_activations(copy.deepcopy(plain), Drops, offload=offload)
    assert torch.equal(gradient(changed), gradient(plain))


@cuda
def test_activation_checkpointing_holds_less_memory_and_offloads_the_inputs_of_blocks():
    def peak(*algorithms):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
        memory, model = InMemoryLogger(), nn.Sequential(*(copy.deepcopy(block) for _ in range(6)))
        data = [(torch.randn(4096, 64), torch.arange(4096) % 64) for _ in range(2)]
        trainer = Trainer(
            model,
            train_dataloader=data,
            loss_fn=nn.functional.cross_entropy,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            max_duration="1ep",
            device=KIND,
            callbacks=[MemoryMonitor("2ba")],
            loggers=memory,
            algorithms=algorithms,
            progress_bar=False,
        )
        gc.collect()  # the run before
        torch.cuda.reset_peak_memory_stats()
        trainer.fit()
        weights = {name: one.cpu() for name, one in trainer.state.model.state_dict().items()}
        return memory.latest["memory/peak_allocated_mem"], weights

    (most, expected), (less, again), (least, moved) = (
        peak(*one)
        for one in ([], [ActivationCheckpointing()], [ActivationCheckpointing(offload=True)])
    )
    assert least < less < most
    assert all(torch.equal(expected[name], again[name]) for name in expected)
    assert all(torch.equal(expected[name], moved[name]) for name in expected)
