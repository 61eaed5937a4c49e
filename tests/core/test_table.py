"""Tables: columns are aligned, and wide cells do not widen the others."""

import pytest

from composable.core._table import format_table


def test_columns_are_aligned_and_lines_have_no_trailing_spaces():
    assert format_table([("a", "bb", "c"), ("aaa", "b", "")]) == "a    bb  c\naaa  b"


def test_a_header_is_underlined():
    lines = format_table([("1", "22")], ("one", "n"), indent="> ").splitlines()

    assert lines == ["> one  n", "> ---  --", "> 1    22"]


def test_a_cell_wider_than_the_maximum_overflows():
    assert format_table([("a" * 9, "b"), ("a", "b")], max_width=3) == "aaaaaaaaa  b\na    b"


def test_no_rows_make_no_lines():
    assert format_table([]) == ""
    assert format_table([], ("name",)) == "name\n----"


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="zip"):
        format_table([("a",), ("a", "b")])
