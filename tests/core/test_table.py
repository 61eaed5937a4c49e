"""Tables: columns are aligned, and wide cells do not widen the others."""

import pytest

from composable._support.table import format_table


@pytest.mark.parametrize(
    ("rows", "header", "options", "lines"),
    [
        ([("a", "bb", "c"), ("aaa", "b", "")], None, {}, ["a    bb  c", "aaa  b"]),
        ([("1", "22")], ("one", "n"), {"indent": "> "}, ["> one  n", "> ---  --", "> 1    22"]),
        ([("a" * 9, "b"), ("a", "b")], None, {"max_width": 3}, ["aaaaaaaaa  b", "a    b"]),
        (
            [("name", "one two three")],
            ("n", "words"),
            {"width": 13},
            ["n     words", "----  -------", "name  one two", "      three"],
        ),
        (
            [("1", "a b")],
            ("n", "why here"),
            {"width": 8},
            ["n  why", "   here", "-  -----", "1  a b"],
        ),
        ([("a_long_name", "b c")], None, {"width": 5}, ["a_long_name  b", "             c"]),
        ([], None, {}, []),
        ([], ("name",), {}, ["name", "----"]),
    ],
)
def test_aligns_columns_without_trailing_spaces(rows, header, options, lines):
    given = [rows] if header is None else [rows, header]

    assert format_table(*given, **options) == "\n".join(lines)


def test_rejects_rows_of_different_lengths():
    with pytest.raises(ValueError, match="zip"):
        format_table([("a",), ("a", "b")])


def test_a_word_that_is_too_long_for_a_line_is_broken():
    table = format_table([("x" * 120, "2.05x"), ("mixup", "1.1x")], width=100)
    assert max(map(len, table.splitlines())) == 100
    assert table.count("x") == 120 + 3
