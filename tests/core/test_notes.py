"""Errors name the component that raised them, on every Python."""

import pytest

from composable._support.notes import append_note


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
