"""Values from a file are compared with declared types."""

from collections.abc import Mapping
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor
from typing_extensions import TypedDict

from composable.core.stateful import Count, Kind, StructureError, check_type

Name = Annotated[str, Kind("a name", lambda value: isinstance(value, str) and value.isalpha())]


class Inner(TypedDict):
    """Entries of which one has items."""

    names: list[Name]
    weights: dict[str, Tensor]


class Outer(TypedDict):
    """Entries of all kinds."""

    count: Count
    inner: Inner | None
    anything: Any
    numbers: Mapping[int, str]
    both: int | str


VALID = {
    "count": 3,
    "inner": {"names": ["a", "b"], "weights": {"w": torch.ones(1)}},
    "anything": [{1: {2}}],
    "numbers": {"what": "ever"},
    "both": "3",
}


@pytest.mark.parametrize("changes", [{}, {"inner": None}, {"both": 3}, {"anything": None}], ids=str)
def test_accepts_what_is_declared(changes):
    check_type({**VALID, **changes}, Outer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": True}, "run/count is True, and must be a non-negative integer"),
        ({"count": "3"}, "run/count is '3', and must be a non-negative integer"),
        ({"inner": 3}, "run/inner is 3, and must be a dictionary or None"),
        ({"inner": {}}, "run/inner/names is missing"),
        ({"inner": {"names": "ab", "weights": {}}}, "inner/names is 'ab', and must be a list"),
        ({"inner": {"names": ["a", "3"], "weights": {}}}, "names/1 is '3', and must be a name"),
        ({"inner": {"names": [], "weights": {1: 2}}}, "weights/1 is 1, and must be a string"),
        ({"inner": {"names": [], "weights": {"w": 2}}}, "weights/w is 2, and must be a tensor"),
        ({"inner": {"names": [], "weights": {1 << 99_999: 2}}}, "an integer of 100000 bits"),
        ({"numbers": [1]}, "run/numbers is a list, and must be a dictionary"),
        ({"both": 0.5}, "run/both is 0.5, and must be a int or a string"),
        ({"more": 1, 2: 3}, r"run has the unknown entries \['2', 'more'\]"),
    ],
)
def test_refuses_anything_else_with_its_path(changes, message):
    with pytest.raises(StructureError, match=message):
        check_type({**VALID, **changes}, Outer, "run")
