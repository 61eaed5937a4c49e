"""Draw the schedule on the card of SWA, from a run: python docs/pictures/swa.py."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from composable import State, Trainer
from composable.algorithms import SWA
from composable.core.event import Event
from composable.loggers import InMemoryLogger
from composable.optim import cosine

PICTURE = Path(__file__).with_suffix(".svg")
EPOCHS, LENGTH = 20, 10
LEFT, TOP, WIDTH, HEIGHT = 70, 20, 560, 130
GREY, BLUE, ORANGE = "#777", "#2166ac", "#d6604d"


def learning_rates(*algorithms: SWA) -> tuple[list[float], list[float]]:
    """Return the learning rate of each batch, and the batches of the updates of the mean."""
    logger, taken = InMemoryLogger(), [0]

    def note(event: Event, state: State, _: Any) -> None:
        count = state.memory.get("SWA", {}).get("count", 0)
        if event is Event.EPOCH_END and count > taken[0]:
            taken[:] = [count, *taken[1:], state.timestamp.batch]

    data = [(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))] * LENGTH
    Trainer(
        torch.nn.Linear(2, 2),
        train_dataloader=data,
        loss_fn=cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=0.1),
        schedulers=cosine(),
        algorithms=algorithms,
        callbacks=note,
        loggers=logger,
        max_duration=f"{EPOCHS}ep",
        progress_bar=False,
        seed=0,
    ).fit()
    return logger.series("lr"), taken[1:]


def line(rates: Iterable[float], color: str, dashed: str = "") -> str:
    """Draw a curve of learning rates."""
    points = " ".join(f"{x(k):.1f},{y(rate):.1f}" for k, rate in enumerate(rates))
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dashed}/>'


def x(batch: float) -> float:
    """Return the horizontal position of a batch."""
    return LEFT + WIDTH * batch / (EPOCHS * LENGTH)


def y(rate: float) -> float:
    """Return the vertical position of a learning rate."""
    return TOP + HEIGHT * (1 - rate / 0.1)


def text(at: float, height: float, words: str, color: str = GREY, anchor: str = "middle") -> str:
    """Draw a label."""
    return f'<text x="{at:.1f}" y="{height}" fill="{color}" text-anchor="{anchor}">{words}</text>'


def picture() -> str:
    """Draw the picture, as an SVG document."""
    plain, _ = learning_rates()
    ours, taken = learning_rates(
        SWA("0.7dur", "0.97dur", schedule_swa_lr=True, anneal_steps=3, swa_lr=0.04)
    )
    base, whole = TOP + HEIGHT, EPOCHS * LENGTH
    dots = [f'<circle cx="{x(k):.1f}" cy="{base + 22}" r="4" fill="{ORANGE}"/>' for k in taken]
    start, end = x(0.97 * whole), x(whole)
    parts = [
        f'<line x1="{LEFT}" y1="{base}" x2="{LEFT + WIDTH}" y2="{base}" stroke="{GREY}"/>',
        line(plain, GREY, ' stroke-dasharray="4"'),
        line(ours, BLUE),
        *dots,
        f'<rect x="{start:.1f}" y="{base + 35}" width="{end - start:.1f}" height="8" '
        f'fill="{BLUE}"/>',
        *(text(LEFT - 8, y(rate) + 4, str(rate), anchor="end") for rate in (0.0, 0.04, 0.1)),
        text(x(30), y(0.06), "learning rate", BLUE),
        text(x(130), base + 26, "update of the mean", ORANGE, "end"),
        text(start - 8, base + 43, "batch norm statistics of the mean", BLUE, "end"),
        *(text(x(part * whole), base + 64, f"{part}dur") for part in (0, 0.7, 1)),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {base + 75}"'
    font = 'font-family="sans-serif" font-size="12"'
    return "\n".join([f"{head} {font}>", *parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
