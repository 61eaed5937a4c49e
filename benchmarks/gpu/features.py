"""Correctness: compile modes, memory, copies ahead, callbacks, export, several processes."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gpu.runs import check_equal, distance, images, trained, trainer
from benchmarks.gpu.setting import Case, Missing, Row, Setting, run_cases
from composable import Trainer
from composable.callbacks import (
    ExportForInference,
    MemorySnapshot,
    OOMObserver,
    Profiler,
    SpeedMonitor,
)
from composable.loggers import InMemoryLogger

__all__ = ["compiled", "features", "processes"]

# --- compile ---

MODES: dict[str, Any] = {
    "default": True,
    "CUDA graphs": {"mode": "reduce-overhead"},
    "autotuned": {"mode": "max-autotune-no-cudagraphs"},
    "the whole graph": {"fullgraph": True},
}


def compiled(setting: Setting) -> Iterator[Row]:
    """Compare compiled steps with eager ones, and repeat them."""
    modes = setting.choose(MODES, {"aot_eager": {"backend": "aot_eager"}})
    cases: dict[str, Case] = {
        f"{name}, {precision}": partial(_compiled, options, precision)
        for name, options in modes.items()
        for precision in setting.choose(("fp32", "amp_bf16"), ("fp32",))
    }
    return run_cases(cases, setting)


def _compiled(options: Any, precision: str, setting: Setting) -> Row:
    torch.compiler.reset()
    eager = trained(trainer(setting, precision=precision))
    found = trained(trainer(setting, precision=precision, compile=options))
    again = trained(trainer(setting, precision=precision, compile=options))
    check_equal(again, found, "a second run")
    difference = distance(found, eager)
    assert difference < (0.02 if precision == "fp32" else 0.3), f"{difference:.3g} from eager"
    return {"difference_to_eager": difference}


# --- memory, copies, callbacks, export ---


class Wide(nn.Module):
    """A model whose activations fill a small part of a GPU, for each example."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.inner = width, nn.Linear(64, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Keep `width` copies of the activations for the backward pass."""
        hidden = self.inner(inputs).unsqueeze(1).expand(-1, self.width, -1)
        return self.last((hidden * hidden.sin()).mean(1))


@contextmanager
def _little_memory(setting: Setting) -> Iterator[nn.Module]:
    """Limit the memory of the device, and yield a model for which 64 examples are too many."""
    if not setting.is_cuda:
        raise Missing("the memory of a CPU has no limit to set")
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(setting.device).total_memory
    free, used = setting.choose(2**30, 2**26), torch.cuda.memory_reserved(setting.device)
    index = setting.device.index  # None is the current device; a device without an index is refused
    torch.cuda.set_per_process_memory_fraction((used + free) / total, index)
    try:
        yield Wide(free // (64 * 4 * 64))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, index)


def _large_batches(model: nn.Module, setting: Setting, **options: Any) -> Trainer:
    data = [(torch.randn(64, 64), torch.arange(64) % 10) for _ in range(3)]
    defaults = {"algorithms": (), "schedulers": None, "max_duration": "1ep"}
    return trainer(setting, model, train_dataloader=data, **{**defaults, **options})


def _out_of_memory(setting: Setting) -> Row:
    """Halve microbatches after an error of the allocator, and train to the end."""
    with _little_memory(setting) as model:
        run = _large_batches(model, setting, microbatch_size="auto")
        run.fit()
    assert all(tensor.isfinite().all() for tensor in run.state.model.state_dict().values())
    size = run._run.microbatches.size
    assert size is not None, "microbatches have no size"
    assert size < 64, "no error of the allocator"
    return {"size": size}


def _observed_error(setting: Setting) -> Row:
    """Write the allocations at an error of the allocator."""
    with tempfile.TemporaryDirectory() as name, _little_memory(setting) as model:
        try:
            _large_batches(model, setting, callbacks=[OOMObserver(name)]).fit()
        except torch.OutOfMemoryError:
            written = sorted(path.name for path in Path(name).iterdir())
        else:
            raise AssertionError("no error of the allocator")
    assert written == ["oom.json", "oom.txt"], f"wrote {written}"
    return {"files": written}


def _copies_ahead(setting: Setting) -> Row:
    """Train from pinned memory, and from batches on the device."""
    inputs, targets = (torch.cat(parts) for parts in zip(*images(setting), strict=True))
    loader = DataLoader(
        TensorDataset(inputs, targets),
        batch_size=len(images(setting, 1)[0][0]),
        pin_memory=setting.is_cuda,
        num_workers=setting.choose(2, 0),
    )
    from_device = trained(trainer(setting, train_dataloader=images(setting, 6, setting.device)))
    check_equal(trained(trainer(setting, train_dataloader=loader)), from_device, "pinned memory")
    return {}


def _observers(setting: Setting) -> Row:
    """Record allocations, a profile, and the share of the peak."""
    memory = InMemoryLogger()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        observers = [
            MemorySnapshot(folder / "memory", interval="2ba"),
            Profiler(folder / "profile"),
            SpeedMonitor(2, flops_per_batch="count", gpu_flops_available=1e15),
        ]
        options = {"callbacks": observers, "loggers": [memory], "deterministic_mode": False}
        trainer(setting, **options).fit()
        written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    wanted = ["profile", *(["memory"] if setting.is_cuda else [])]
    for start in wanted:
        assert any(path.startswith(start) for path in written), f"{start} wrote nothing"
    logged = {name: memory.latest[name] for name in memory.latest if "throughput" in name}
    assert any("mfu" in name for name in logged), f"no MFU among {sorted(logged)}"
    return {"files": written, "throughput": {k: float(v) for k, v in logged.items()}}


def _export(setting: Setting) -> Row:
    """Export a trained model from the device, which checks its outputs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        trainer(setting, callbacks=[ExportForInference(path)]).fit()
        assert path.stat().st_size > 1000
        return {"bytes": path.stat().st_size}


def features(setting: Setting) -> Iterator[Row]:
    """Run features that depend on the device."""
    cases: dict[str, Case] = {
        "microbatch_size='auto' after an error of the allocator": _out_of_memory,
        "allocations at an error of the allocator": _observed_error,
        "copies ahead of the step": _copies_ahead,
        "snapshot, profile, MFU": _observers,
        "export": _export,
    }
    return run_cases(cases, setting)


# --- several processes ---

_COMPOSABLE = "from composable.cli import main; raise SystemExit(main())"  # it may not be installed


def processes(setting: Setting) -> Iterator[Row]:
    """Train with each strategy: on one device by NCCL, and on all devices if there are several."""
    most = max((count for count in (2, 4) if count <= torch.cuda.device_count()), default=1)
    counts = sorted({1, most}) if setting.is_cuda else [2]
    strategies = setting.choose(("ddp", "exact", "fsdp2", "fsdp2-meta"), ())
    cases: dict[str, Case] = {
        f"{strategy}, {count} process{'es' * (count > 1)}": partial(_launch, strategy, count)
        for count in counts
        for strategy in (*strategies, *["hsdp-meta"] * (count > 1))
    }
    if torch.cuda.device_count() < 2 and not setting.is_tiny:
        cases["several devices"] = _no_devices
    return run_cases(cases, setting)


def _no_devices(setting: Setting) -> Row:
    raise Missing(f"this machine has {torch.cuda.device_count()} device")


def _launch(strategy: str, count: int, setting: Setting) -> Row:
    """Launch processes that are killed, then others that resume, and compare."""
    if setting.is_cuda and not torch.distributed.is_nccl_available():
        raise Missing("this PyTorch has no NCCL")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-c", _COMPOSABLE, "launch", "-n", str(count)),
            *("-m", "benchmarks.gpu.parallel_run", strategy, setting.device.type, setting.size),
            folder,
        ]
        run = partial(subprocess.run, capture_output=True, text=True, timeout=150, check=False)
        killed = run([*command, "kill"])
        assert killed.returncode, "the processes were not killed"
        assert any(Path(folder).glob("run/ep1-*")), f"nothing was saved: {killed.stderr[-1500:]}"
        done, result = run([*command, "resume"]), Path(folder) / "result.json"
        if done.returncode or not result.exists():
            raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-1500:]}")
        return dict(json.loads(result.read_text()))
