"""The word check finds every banned phrase in prose, and none in code."""

from pathlib import Path

import pytest

from tools import check_words
from tools.check_words import PHRASES, Phrase, find_hits, main, read_lines

BANNED = [Phrase.parse(line) for line in read_lines(PHRASES)]
FROBNICATE = Phrase.parse("frobnicates? it => compute it => The loop frobnicates it.")


def lines_of_hits(name, text, phrases=(FROBNICATE,)):
    return [hit.line for hit in find_hits(Path(name), text, phrases)]


@pytest.mark.parametrize("phrase", BANNED, ids=lambda phrase: phrase.pattern.pattern)
def test_every_banned_phrase_is_found_in_its_example(phrase):
    assert lines_of_hits("page.md", phrase.example, [phrase]) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "There is no batch between epochs, and there\nare no hooks.",
        "The value is no longer used, and the step is no slower than a plain loop.",
        "Two schedules are told apart by their names.",
        "The value `is None` by default.",
        "The file cannot be read: permission denied.",
        "It runs out of memory, and `leaves` out of range raise an error.",
        "The person who maintains the cluster submits the job by hand.",
        "Resume the run from the last checkpoint, then restore the optimizer.",
    ],
)
def test_plain_technical_english_passes(text):
    assert lines_of_hits("page.md", text, BANNED) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""Frobnicate it."""\n', [1]),
        ("x = 1\n# It frobnicates\n#   it here.\n", [2]),
        ('x = "a"\nraise ValueError(\n    f"{x}: frobnicates "\n    f"it"\n)\n', [3]),
        ("x = 1  # frobnicate it, frobnicate it\n", [1, 1]),
        ("frobnicate, it = 1, 2\n", []),
        ("frobnicate: it\n", []),
        ('"""Frobnicates `it`."""\n', []),
        ("# frobnicate\nx = 1\n# it\n", []),
        ("# refrobnicate itself\n", []),
    ],
)
def test_phrases_are_found_in_docstrings_comments_and_strings_and_not_in_code(source, lines):
    assert lines_of_hits("module.py", source) == lines


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Build a project with two pages: one with a banned phrase, one without."""
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    monkeypatch.setattr(check_words, "PHRASES", tmp_path / "phrases.txt")
    monkeypatch.setattr(check_words, "TODO", tmp_path / "todo.txt")
    monkeypatch.setattr(check_words, "tracked_files", lambda: ["bad.md", "good.md"])
    (tmp_path / "phrases.txt").write_text("# comment\n\nfrob => compute => We frob.\n")
    (tmp_path / "bad.md").write_text("One line.\nThey frob.\n")
    (tmp_path / "good.md").write_text("They compute.\n")
    return tmp_path


def test_listed_files_pass_until_they_are_clean(project, capsys):
    assert main(["--write-todo"]) == 0
    assert read_lines(project / "todo.txt") == ["bad.md"]
    assert main([]) == 0
    assert main(["good.md"]) == 0  # the listed file was not looked at
    (project / "bad.md").write_text("They compute.\n")
    assert main(["bad.md"]) == 1
    assert main([]) == 1
    assert "bad.md: no banned phrases: remove it from todo.txt" in capsys.readouterr().out
    (project / "todo.txt").write_text("gone.md\n")  # it doesn't exist
    assert main([]) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 1, "bad.md:2: 'frob'; better: compute"),
        (["good.md"], 0, ""),
        (["--report"], 0, "1 bad.md 1 in 1 of 2 files"),
    ],
)
def test_reports_phrases_with_their_places_and_better_words(
    project, capsys, arguments, status, words
):
    assert main(arguments) == status
    assert " ".join(capsys.readouterr().out.split()) == words
