"""Amounts of training data: their designs, their trials, and the epoch that a run chooses."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

import attrs

from composable._support.checks import check_range
from composable.comparison.budget import count_batches
from composable.comparison.design import Design
from composable.comparison.execution import Workers
from composable.comparison.records import Study
from composable.comparison.stages import train_design
from composable.core.time import Time, TimeUnit

__all__ = ["check_amounts", "plan_amounts", "train_designs"]


def check_amounts(amounts: Any) -> tuple[float, ...]:
    """Return at least two amounts of data, from the least on."""
    if isinstance(amounts, (str, bytes)) or not isinstance(amounts, Iterable):
        raise TypeError(f"data_amounts={amounts!r} must be a list of numbers, such as [0.1, 1.0].")
    listed = list(amounts)
    for one in listed:
        check_range("data_amounts", one, 0, ends="()")
    # NumPy's numbers are not written to files.
    given = tuple(int(one) if isinstance(one, Integral) else float(one) for one in listed)
    if len(set(given)) < 2:
        raise ValueError(f"data_amounts={list(given)} must be at least two amounts, for a curve.")
    return tuple(sorted(set(given)))


def plan_amounts(
    plan: Callable[..., Design], amounts: Sequence[float], durations: Any
) -> list[Design]:
    """Return the design of `plan` for each amount; all train for as many batches as with the most.

    Epochs are those of the most data: with less data, an epoch is shorter, and there are more.

    Raises:
        ValueError: Durations are epochs of an unknown number of batches.
    """
    most = plan(durations=durations, data_amount=amounts[-1])

    def in_batches(duration: str) -> str:
        batches = count_batches(duration, most.epoch_length)
        if batches is None and Time.parse(duration).unit is TimeUnit.EPOCH:
            raise ValueError(
                f"durations has {duration!r}, and the batches of an epoch are not known, so that "
                "amounts of data would have different numbers; pass batches, such as ['100ba']."
            )
        return duration if batches is None else f"{int(batches)}ba"

    schedules = most.protocol.schedules
    schedules.pop(most.protocol.repeated or "", None)
    same = {arm: [*map(in_batches, own)] for arm, own in schedules.items()}
    return [plan(durations=same, data_amount=one) for one in amounts]


def train_designs(designs: Sequence[Design], workers: Workers, until: float = math.inf) -> Study:
    """Train the designs of all amounts, each in an equal part of the time left, as one study."""
    studies: list[Study] = []
    for at, design in enumerate(designs):
        now = time.monotonic()
        studies.append(train_design(design, workers, now + (until - now) / (len(designs) - at)))
    protocols = [one.protocol for one in studies]
    notes = dict.fromkeys(note for one in protocols for note in one.notes)
    protocol = attrs.evolve(
        protocols[-1],
        data_amounts=tuple(amount for one in protocols for amount in one.data_amounts),
        seeds=min((one.seeds for one in protocols), key=len),
        notes=tuple(notes),
    )
    return Study(protocol, tuple(one for study in studies for one in study.results), ())
