"""Draws of each example, which depend on its index and the epoch, not on the batch."""

from typing import Any

from composable.core.state import State
from composable.data.indexed import indices_of


def draw_of_examples(state: State, name: str, index_key: int | str | None) -> dict[str, Any]:
    """Return the arguments of such a draw, for the algorithm `name`."""
    key = state.key.of_step or state.key  # it must not depend on the place in a step
    return {
        "indices": indices_of(state.batch, index_key, name),
        "epoch": state.timestamp.epoch,
        "seed": key.fold(name).seed >> 1,
    }
