"""Errors name the component that raised them, on every Python."""

import pytest

from composable.core._notes import append_note


def test_without_notes_the_message_is_continued():
    error = RuntimeError("no disk")

    append_note(error, "raised by Saver at BATCH_END")

    assert str(error) == "no disk\nraised by Saver at BATCH_END"
    assert error.__notes__ == ["raised by Saver at BATCH_END"]


def test_without_notes_each_one_is_added():
    error = RuntimeError("no disk")

    append_note(error, "one")
    append_note(error, "two")

    assert str(error) == "no disk\none\ntwo"
    assert error.__notes__ == ["one", "two"]


class Numbered(Exception):
    def __str__(self):
        return f"error {self.args[0]}"


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), FileNotFoundError(2, "gone"), Numbered("7"), ValueError(3), ValueError()],
    ids=repr,
)
def test_arguments_that_code_may_read_are_left_alone(error):
    before = error.args, str(error)

    append_note(error, "raised by Saver at BATCH_END")

    assert (error.args, str(error)) == before
    assert error.__notes__ == ["raised by Saver at BATCH_END"]
