"""A package `deepspeed` with stage 0 of ZeRO: what the engine calls, for tests without it."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from composable.distributed import DeepSpeed
from tests.support import parallel_runs


class FakeEngine:
    """Computes the mean of the gradients over the processes, and steps the optimizer."""

    global_steps = global_samples = micro_steps = skipped_steps = 0

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.module, self.optimizer = model, optimizer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.module(*args, **kwargs)

    def zero_optimization_stage(self) -> int:
        """Return the stage."""
        return 0

    def backward(self, loss: Tensor, scale_wrt_gas: bool) -> None:
        """Compute gradients."""
        assert not scale_wrt_gas
        loss.backward()  # type: ignore[no-untyped-call]
        self.micro_steps += 1

    def step(self) -> None:
        """Reduce the gradients, and step."""
        for parameter in self.module.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()  # type: ignore[operator]
        self.optimizer.step()
        self.global_steps += 1


def install() -> None:
    """Let `import deepspeed` import the fake."""
    fake: Any = ModuleType("deepspeed")
    fake.__spec__ = ModuleSpec("deepspeed", None)  # as code that looks for the package expects
    fake.ops = SimpleNamespace(__compatible_ops__={})
    fake.initialize = lambda *, model, optimizer, **_: [FakeEngine(model, optimizer)]
    sys.modules["deepspeed"] = fake


def fit(**options: Any) -> dict[str, Any]:
    """Train with DeepSpeed's engine like `parallel_runs.fit`."""
    install()
    return parallel_runs.fit(**{**options, "parallel": DeepSpeed(shards=2)})
