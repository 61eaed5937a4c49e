"""What `Trainer(compile=...)` gains and changes: time per step and to compile, and the weights.

Eager and compiled Trainers take turns of a few steps in one process and on one thread, in CPU time
of the thread, and are compared turn by turn. Repeat with

    python benchmarks/compile.py                 # both models, some minutes
    python benchmarks/compile.py conv            # one of them: conv, transformer

The figures in docs/performance.md and docs/compilation.md come from this script.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from composable import State, Trainer

BLOCK, ROUNDS, CHECKED = 5, 20, (1, 10, 100)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.first(x)).relu()
        return (x + self.norms[1](self.second(y))).relu()


def conv(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        Residual(32),
        nn.MaxPool2d(2),
        Residual(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(32, 10),
    )


def transformer(dropout: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        128, 4, 512, dropout, activation="gelu", batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(256, 128), encoder, nn.Linear(128, 256))


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(32, 3, 32, 32), torch.randint(10, (32,))


def text() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(256, (16, 65))
    return tokens[:, :-1], tokens[:, 1:]


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.flatten(0, -2), targets.flatten())


CASES = {"conv": (conv, images), "transformer": (transformer, text)}
VARIANTS: dict[str, dict[str, Any]] = {
    "eager": {},
    "eager, fused AdamW": {"fused": True},
    "compiled": {"compile": True},
    "compiled, fused AdamW": {"compile": True, "fused": True},
    "compiled, dynamic sizes": {"compile": {"dynamic": True}},
    "compiled, eager masks": {"compile": {"options": {"fallback_random": True}}},
    "eager, no dropout": {"dropout": 0.0},
    "compiled, no dropout": {"dropout": 0.0, "compile": True},
}


class Stepper:
    """A Trainer that takes single steps."""

    def __init__(
        self, build: Callable[[float], nn.Module], batches: list, dropout: float = 0.1, **options
    ) -> None:
        torch.manual_seed(0)
        adam = partial(torch.optim.AdamW, lr=1e-3, fused=options.pop("fused", None))
        self.trainer = Trainer(
            build(dropout),
            train_dataloader=batches,
            loss_fn=token_loss,
            optimizers=options.pop("optimizer", adam),
            max_duration="1000ep",
            seed=1,
            device="cpu",
            progress_bar=False,
            **options,
        )
        self.batches, self.state = batches, self.trainer.state
        self.trainer.state.model.train()

    @property
    def taken(self) -> int:
        return int(self.state.timestamp.batch)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            batch = self.batches[self.taken % len(self.batches)]
            state = self.trainer.train_batch(self.state.evolve(batch=batch))
            self.state = state.evolve(timestamp=state.timestamp.next_batch(len(batch[0])))

    def time(self, steps: int) -> float:
        started = time.thread_time()
        self.run(steps)
        return (time.thread_time() - started) / steps


def speeds(build: Callable, batches: list) -> None:
    steppers = {}
    for name, options in VARIANTS.items():
        steppers[name] = Stepper(build, batches, **options)
        started = time.perf_counter()
        steppers[name].run(1)
        print(f"  {name:24} first step {time.perf_counter() - started:6.1f} s", flush=True)
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(ROUNDS):
        for name, stepper in steppers.items():
            times[name].append(stepper.time(BLOCK))
    for name, own in times.items():
        eager = times["eager, no dropout" if name.endswith("no dropout") else "eager"]
        ratio = statistics.median(t / e for t, e in zip(own, eager, strict=True))
        print(f"  {name:24} {statistics.median(own) * 1e3:7.2f} ms   ratio to eager {ratio:.2f}")


def differences(build: Callable, batches: list) -> None:
    """Compare the weights of runs with those of an eager run: compiled ones, and a rounded one.

    By SGD: the first steps of AdamW have the size of the learning rate, whatever the gradients.
    """
    sgd = {"optimizer": partial(torch.optim.SGD, lr=0.01, momentum=0.9)}
    masks = {"compile": {"options": {"fallback_random": True}}}
    for title, dropout, options in (
        ("eager, weights in other roundings", 0.0, {}),
        ("compiled", 0.0, {"compile": True}),
        ("compiled, dropout", 0.1, {"compile": True}),
        ("compiled, dropout, fallback_random", 0.1, masks),
    ):
        eager = Stepper(build, batches, dropout, **sgd)
        other, again = (Stepper(build, batches, dropout, **options, **sgd) for _ in range(2))
        if not options:
            with torch.no_grad():
                for stepper in (other, again):
                    for parameter in stepper.state.model.parameters():
                        parameter.mul_(1 + torch.finfo(parameter.dtype).eps)
        found = []
        for steps in CHECKED:
            for stepper in (eager, other, again):
                stepper.run(steps - stepper.taken)
            found.append(f"{difference(other.state, eager.state):.0e}")
        same = "equal" if difference(other.state, again.state) == 0 else "DIFFERENT"
        print(f"  {title:36} after {CHECKED} steps: {', '.join(found)}; repeated: {same}")


@torch.no_grad()
def difference(first: State, second: State) -> float:
    """Return the largest difference of a weight, relative to the largest of its tensor."""
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    torch.set_num_threads(1)
    for name in parser.parse_args().cases:
        build, batch = CASES[name]
        torch.manual_seed(0)
        batches = [batch() for _ in range(8)]
        print(name)
        speeds(build, batches)
        differences(build, batches)


if __name__ == "__main__":
    main()
