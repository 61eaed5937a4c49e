"""Fit the heat equation with a network (a PINN): Adam, then LBFGS, against the exact solution.

    u_t = 0.1 u_xx,   u(x, 0) = sin(pi x),   u(0, t) = u(1, t) = 0,   x and t in [0, 1]

The exact solution is exp(-0.1 pi^2 t) sin(pi x). Raissi et al., "Physics-informed neural networks",
https://doi.org/10.1016/j.jcp.2018.10.045

    python examples/pinn.py                     # Adam, LBFGS, and one after the other
    python examples/pinn.py --seeds 1
"""

import argparse
import math
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from composable import Evaluator, State, Trainer, Update
from composable.utils.reproducibility import seed_context

DIFFUSIVITY = 0.1


class Heat(nn.Module):
    """A network of a place and a time, whose output is the temperature."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, points: Tensor) -> Tensor:
        return self.layers(points)[:, 0]


def heat_loss(model: Heat, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return the mean squares of what the equation, the start and the edges leave."""
    inside, start, edges = batch
    inside = inside.detach().requires_grad_()
    (first,) = torch.autograd.grad(model(inside).sum(), inside, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), inside, create_graph=True)
    equation = (first[:, 1] - DIFFUSIVITY * second[:, 0]).square().mean()
    at_start = (model(start) - exact(start)).square().mean()
    at_edges = model(edges).square().mean()
    total = equation + at_start + at_edges
    return {"loss": total, "equation": equation, "start": at_start, "edges": at_edges}


def exact(points: Tensor) -> Tensor:
    """Return the exact solution."""
    x, t = points.T
    return (-DIFFUSIVITY * math.pi**2 * t).exp() * (math.pi * x).sin()


def points(seed: int, count: int = 512) -> tuple[Tensor, ...]:
    """Draw points inside, at the start and at the two edges."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.rand, generator=generator, dtype=torch.float64)
    start, edges = draw(count // 4, 2), draw(count // 4, 2)
    start[:, 1] = 0
    edges[:, 0] = edges[:, 0].round()
    return draw(count, 2), start, edges


def relative_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the distance to the exact solution, relative to its size."""
    return (outputs - targets).norm() / targets.norm()


def build(updates: Sequence[Update], max_duration: str, seed: int = 0) -> Trainer:
    """Return a Trainer of a new network, whose only batch is all points."""
    with seed_context(seed):
        model = Heat().double()
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 51, dtype=torch.float64)] * 2)
    return Trainer(
        model,
        train_dataloader=[points(seed)],
        eval_dataloader=Evaluator("grid", [(grid, exact(grid))]),
        metrics={"error": relative_error},
        eval_interval="100ba",
        updates=updates,
        max_duration=max_duration,
        progress_bar=False,
        seed=seed,
    )


adam = partial(torch.optim.Adam, lr=1e-3)
lbfgs = partial(
    torch.optim.LBFGS,
    max_iter=20,
    history_size=50,
    line_search_fn="strong_wolfe",
    tolerance_grad=1e-12,
    tolerance_change=1e-14,
)


def one_after_the_other(batches: int) -> list[Update]:
    """Return updates of which the first is taken in the first `batches`, and then the second."""

    def early(state: State) -> bool:
        return state.timestamp.batch < batches

    def late(state: State) -> bool:
        return state.timestamp.batch >= batches

    return [
        Update("adam", loss=heat_loss, optimizer=adam, every=early),
        Update("lbfgs", loss=heat_loss, optimizer=lbfgs, every=late),
    ]


def runs() -> dict[str, tuple[list[Update], str]]:
    """Return the updates and the duration of each run that is compared."""
    return {
        "Adam": ([Update("adam", loss=heat_loss, optimizer=adam)], "4000ba"),
        "LBFGS": ([Update("lbfgs", loss=heat_loss, optimizer=lbfgs)], "100ba"),
        "Adam, then LBFGS": (one_after_the_other(1000), "1100ba"),
    }


def main() -> None:
    """Train each, and print errors and the CPU time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="default: %(default)s")
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)  # the network is too small to benefit from more
    print(f"{'':18} {'relative error, by seed':32} CPU seconds")
    for name, (updates, duration) in runs().items():
        began = time.process_time()
        trained = [build(updates, duration, seed).fit() for seed in seeds]
        seconds = (time.process_time() - began) / len(seeds)
        errors = [float(state.metrics["grid"]["error"]) for state in trained]
        print(f"{name:18} {'  '.join(f'{one:.1e}' for one in errors):32} {seconds:.0f}")


if __name__ == "__main__":
    main()
