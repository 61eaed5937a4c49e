from typing import Any

import pytest

from composable.comparison.analysis.grid_edges import edge_notes

from .synthetic import protocol


@pytest.mark.parametrize(
    ("values", "chosen", "warned"),
    [
        ((0.3, 0.1, 0.2), 0.1, "lowest"),
        ((0.3, 0.1, 0.2), 0.3, "highest"),
        ((0.3, 0.1, 0.2), 0.2, None),
        ((0.3,), 0.3, None),
        (("a", "b"), "a", None),
        ((True, False), True, None),
        ((None, 1), 1, None),
    ],
)
def test_the_edge_of_a_grid_of_numbers_is_named(values: Any, chosen: Any, warned: Any) -> None:
    found = protocol(
        ["plain"], (1,), 3, None, grids={"plain": {"lr": values}}, chosen={"plain": {"lr": chosen}}
    )
    notes = edge_notes(found, "plain")
    assert [warned in note for note in notes] == ([True] if warned else [])
