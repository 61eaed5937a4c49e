"""Correctness: runs repeat and resume bit for bit, in each precision, with every method."""

import copy
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.gpu.models import residual_net
from benchmarks.gpu.setting import Case, Missing, Row, Setting, run_cases
from composable import Callback, Precision, Trainer
from composable.algorithms import EMA, ChannelsLast, GradientClipping, LabelSmoothing, MixUp
from composable.optim import cosine
from tests.support.models import weights
from tests.support.runs import PROBLEMS

__all__ = ["methods", "precisions", "waits"]

PRECISIONS = ("fp32", "tf32", "amp_bf16", "amp_fp16", "bf16")


def images(setting: Setting, count: int = 6, device: Any = "cpu") -> list[tuple[Tensor, Tensor]]:
    """Draw batches of images."""
    size, side = setting.choose((128, 64), (4, 16))
    generator = torch.Generator().manual_seed(0)
    drawn = [
        (torch.randn(size, 3, side, side, generator=generator), torch.arange(size) % 10)
        for _ in range(count)
    ]
    return [(inputs.to(device), targets.to(device)) for inputs, targets in drawn]


def trainer(setting: Setting, model: nn.Module | None = None, **options: Any) -> Trainer:
    """Build a run of a residual network, or of another model, with four methods."""
    defaults: dict[str, Any] = {
        "train_dataloader": images(setting),
        "loss_fn": cross_entropy,
        "optimizers": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        "schedulers": cosine(),
        "algorithms": [MixUp(), LabelSmoothing(), EMA("3ba"), GradientClipping("norm", 1.0)],
        "max_duration": "2ep",
        "device": setting.device,
        "deterministic_mode": True,
        "seed": 17,
        "progress_bar": False,
    }
    return Trainer(network(setting) if model is None else model, **{**defaults, **options})


def network(setting: Setting) -> nn.Module:
    """Build the residual network."""
    return residual_net(0, width=setting.choose(32, 4))


def trained(run: Trainer) -> dict[str, Tensor]:
    """Train, and return the weights on the CPU."""
    run.fit()
    return {name: tensor.cpu() for name, tensor in weights(run.state.model).items()}


def check_equal(first: dict[str, Tensor], second: dict[str, Tensor], what: str) -> None:
    """Raise an AssertionError that names the first tensor that differs."""
    for name, tensor in first.items():
        if not torch.equal(tensor, second[name]):
            furthest = (tensor.double() - second[name].double()).abs().max()
            raise AssertionError(f"{what}: {name} differs by up to {furthest:.3g}")


def distance(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Return the largest relative difference of a tensor."""
    pairs = [(first[name].double(), second[name].double()) for name in first]
    return max(float((a - b).norm() / (b.norm() + 1e-12)) for a, b in pairs)


def _available(name: str, setting: Setting) -> None:
    try:
        Precision(name).on(setting.device)
    except ValueError as error:
        raise Missing(str(error)) from error


def _repeat_and_resume(name: str, setting: Setting, **options: Any) -> Row:
    _available(name, setting)
    expected = trained(trainer(setting, precision=name, **options))
    check_equal(trained(trainer(setting, precision=name, **options)), expected, "a second run")
    with tempfile.TemporaryDirectory() as folder:
        saved = trainer(setting, precision=name, save_folder=folder, **options)
        check_equal(trained(saved), expected, "a run that is saved")
        half = Path(folder) / "ep1-ba6"
        resumed = trainer(setting, precision=name, load_path=half, **options)
        check_equal(trained(resumed), expected, "a resumed run")
    if not setting.is_cuda or name == "tf32" or "16" in name:
        return {}
    on_cpu = trainer(setting, precision=name, **{**options, "device": "cpu"})
    return {"difference_to_cpu": distance(expected, trained(on_cpu))}


def precisions(setting: Setting) -> Iterator[Row]:
    """Repeat and resume runs in each precision."""
    cases: dict[str, Case] = {name: partial(_repeat_and_resume, name) for name in PRECISIONS}
    cases["fp32, channels last"] = partial(
        _repeat_and_resume, "fp32", algorithms=[ChannelsLast(), EMA("3ba")]
    )
    cases["fp32, microbatches"] = partial(_repeat_and_resume, "fp32", grad_accum=2)
    cases["a plain loop with autocast and a scaler"] = _equals_plain_loop
    return run_cases(cases, setting)


def _equals_plain_loop(setting: Setting) -> Row:
    """Compare with a plain loop in amp_fp16: losses that overflow, and the scale after them."""
    _available("amp_fp16", setting)
    precision = Precision("amp_fp16", initial_scale=2.0**30, growth_interval=2)
    run = trainer(
        setting, precision=precision, algorithms=(), schedulers=None, deterministic_mode=True
    )
    found = trained(run)
    model = network(setting).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(setting.device.type, init_scale=2.0**30, growth_interval=2)
    for inputs, targets in images(setting, device=setting.device) * 2:
        with torch.autocast(setting.device.type, torch.float16):
            loss = cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    plain = {name: tensor.cpu() for name, tensor in weights(model).items()}
    check_equal(found, plain, "a plain loop")
    return {"scale": scaler.get_scale()}


# --- every method ---


def methods(setting: Setting) -> Iterator[Row]:
    """Train with every method: finite, repeated bit for bit, and close to the CPU."""
    from tests.support.algorithm_cases import cases_on  # it needs hypothesis

    chosen = [(problem, case) for problem in PROBLEMS for case in cases_on(problem, extras=False)]
    cases: dict[str, Case] = {
        f"{case.example!r} on {problem}": partial(_method, problem, case)
        for problem, case in chosen[:: setting.choose(1, 6)]
    }
    return run_cases(cases, setting)


def _method(problem: Any, case: Any, setting: Setting) -> Row:
    def run(device: Any) -> dict[str, Tensor]:
        algorithm = copy.deepcopy(case.example)
        return trained(
            problem.trainer(algorithms=[algorithm], device=device, deterministic_mode=True)
        )

    expected = run(setting.device)
    for name, tensor in expected.items():
        if not tensor.isfinite().all():
            raise AssertionError(f"{name} is not finite")
    check_equal(run(setting.device), expected, "a second run")
    return {"difference_to_cpu": distance(expected, run("cpu")) if setting.is_cuda else 0.0}


# --- no waiting ---


class _Forbids(Callback):
    """Raises an error for everything that waits, from the second batch to the last."""

    guarded, active = 0, False

    def batch_end(self, state: Any, logger: Any) -> None:
        self.guarded += self.active
        if not self.active and state.timestamp.batch == 1:
            self._set(active=True)

    def epoch_end(self, state: Any, logger: Any) -> None:
        self.close()

    def _set(self, *, active: bool) -> None:
        torch.cuda.set_sync_debug_mode("error" if active else "default")
        self.active = active

    def close(self) -> None:
        if self.active:
            self._set(active=False)


def _no_wait(setting: Setting, precision: str = "fp32", **options: Any) -> Row:
    if not setting.is_cuda:
        raise Missing("nothing waits for a CPU")
    _available(precision, setting)
    guard = _Forbids()
    trainer(
        setting,
        # On the device: a copy from pageable memory waits.
        train_dataloader=images(setting, device=setting.device),
        deterministic_mode=False,
        max_duration="1ep",
        precision=precision,
        callbacks=[guard],
        **options,
    ).fit()
    assert guard.guarded == 5, f"{guard.guarded} of 5 steps were guarded"
    return {}


def waits(setting: Setting) -> Iterator[Row]:
    """Train without waiting for the device; PyTorch's own loss scaler waits."""
    cases: dict[str, Case] = {
        name: partial(_no_wait, precision=name) for name in PRECISIONS if name != "amp_fp16"
    }
    cases["microbatches"] = partial(_no_wait, grad_accum=2)
    return run_cases(cases, setting)
