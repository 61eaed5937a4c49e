"""Commit subjects have the form "area: imperative" and at most 72 characters."""

import pytest

from tools.check_commit_subject import main, subject_problems


@pytest.mark.parametrize(
    "subject",
    [
        "cutmix: read the draw once",
        "trainer, loop: split the step into functions",
        "tests/core: process signals in order",
        "docs: need no clean-up code",
        "build: pass constraints to pip",
        "checkpoint: focus the error on the path",
        "x: " + "a" * 69,
        'Revert "cutmix: read the draw once"',
        "Merge branch 'cutmix'",
        "fixup! cutmix: read the draw once",
    ],
)
def test_a_good_subject_has_no_problems(subject):
    assert subject_problems(subject) == []


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("Read the draw once", "no area"),
        ("Cutmix: read the draw once", "no area"),
        ("cutmix:read the draw once", "no area"),
        ("", "no area"),
        ("cutmix: reads the draw once", "'reads' is not an imperative"),
        ("cutmix: Added a test", "'Added' is not an imperative"),
        ("cutmix: reading the draw once", "'reading' is not an imperative"),
        ("cutmix: Read the draw once", "capital"),
        ("cutmix: read the draw once.", "period"),
        ("x: " + "a" * 70, "73 characters"),
    ],
)
def test_a_bad_subject_is_reported_with_the_reason(subject, problem):
    assert [text for text in subject_problems(subject) if problem in text]


def test_the_hook_reads_the_first_line_of_the_message(tmp_path, capsys):
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("# a comment of git\n\ncutmix: read the draw once\n\nBecause. Of this.\n")
    assert main(str(message)) == 0
    message.write_text("Read the draw once\n")
    assert main(str(message)) == 1
    assert "commit subject 'Read the draw once': it has no area" in capsys.readouterr().out
