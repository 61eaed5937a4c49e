"""Texts: tables, notes of errors, and what a Trainer and a logger are shown by."""

import pytest

from composable._support.notes import append_note
from composable._support.table import format_table
from composable.algorithms import EMA
from composable.loggers import InMemoryLogger
from tests.support.runs import make_trainer


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


class Numbered(Exception):
    def __str__(self):
        return f"error {self.args[0]}"


@pytest.mark.parametrize(
    ("error", "continued"),
    [
        (RuntimeError("no disk"), True),  # Python 3.10 prints no notes
        *((error, False) for error in (KeyError("x"), FileNotFoundError(2, "gone"))),
        *((error, False) for error in (Numbered("7"), ValueError(3), ValueError())),
    ],
    ids=repr,
)
def test_notes_continue_the_message_unless_code_may_read_the_arguments(error, continued):
    before = error.args, str(error)

    append_note(error, "raised by Saver")
    append_note(error, "at BATCH_END")

    assert error.__notes__ == ["raised by Saver", "at BATCH_END"]
    if continued:
        assert str(error) == "no disk\nraised by Saver\nat BATCH_END"
    else:
        assert (error.args, str(error)) == before


def test_texts():
    memory = InMemoryLogger()
    trainer = make_trainer(algorithms=EMA("1ba"), loggers=memory)
    assert repr(memory) == "<InMemoryLogger: 0 records of nothing>"
    trainer.fit()

    assert repr(trainer) == (
        "<Trainer of Linear: epoch 2, batch 6, max_duration 2ep, algorithms [EMA]>"
    )
    assert repr(memory) == "<InMemoryLogger: 6 records of loss/train, lr>"
