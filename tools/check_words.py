"""Reject banned phrases in the prose of the repository: Markdown, docstrings, comments, strings.

    python tools/check_words.py               check every tracked .py and .md file
    python tools/check_words.py PATH ...      check these files
    python tools/check_words.py --report      count the phrases of each file, and check nothing
    python tools/check_words.py --write-todo  write the list of the files that hold phrases today

`tools/banned_phrases.txt` holds the phrases, `tools/words_todo.txt` the files that are still to be
rewritten. A file of that list that has no more banned phrases must be removed from it, so the list
only shrinks.
"""

import argparse
import bisect
import io
import itertools
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHRASES = ROOT / "tools/banned_phrases.txt"
TODO = ROOT / "tools/words_todo.txt"

_NOT_PROSE = "\0"  # never matches: no phrase extends across code
_WORD = re.compile(r"\0[\0\s]*|[^\0\s]+")  # or a stretch of code
_INLINE_CODE = re.compile(r"`[^`\n]+`")
_REPLACEMENT_FIELD = re.compile(r"\{[^{}\n]*\}")
_DELIMITERS = re.compile(r"""^#+|^[a-zA-Z]{0,2}["']+|["']+$""")


@dataclass(frozen=True)
class Phrase:
    """A banned phrase, better words, and a sentence in which it occurs."""

    pattern: re.Pattern[str]
    better: str
    example: str

    @classmethod
    def parse(cls, line: str) -> "Phrase":
        """Parse a line of the form `pattern => better words => example`."""
        pattern, better, example = line.split(" => ")
        return cls(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), better, example)


@dataclass(frozen=True)
class Hit:
    """A banned phrase in a line of a file."""

    line: int
    found: str
    better: str


def read_lines(path: Path) -> list[str]:
    """Read the lines of a list; skip blank lines and comments."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if line.strip() and not line.startswith("#")]


def python_prose(source: str) -> str:
    """Return `source` with all code blanked, so that offsets and line numbers are unchanged."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    prose = list(re.sub(r"\S", _NOT_PROSE, source))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]  # STRING, FSTRING_START, FSTRING_MIDDLE, ...
        if kind == "COMMENT" or "STRING" in kind:
            begin = starts[token.start[0] - 1] + token.start[1]
            end = starts[token.end[0] - 1] + token.end[1]
            prose[begin:end] = _DELIMITERS.sub(_blank, source[begin:end])
    # Of f-strings: before Python 3.12 they are single tokens.
    return _REPLACEMENT_FIELD.sub(lambda code: _NOT_PROSE * len(code[0]), "".join(prose))


def find_hits(path: Path, text: str, phrases: Sequence[Phrase]) -> Iterator[Hit]:
    """Find the banned phrases in a file's prose. Inline code counts as a word."""
    prose = python_prose(text) if path.suffix == ".py" else text
    prose = _INLINE_CODE.sub(lambda code: "_" * len(code[0]), prose)
    words = list(_WORD.finditer(prose))
    texts = [word[0] if word[0][0] != _NOT_PROSE else _NOT_PROSE for word in words]
    joined = " ".join(texts)  # phrases extend over the ends of lines
    starts = list(itertools.accumulate((len(text) + 1 for text in texts), initial=0))
    for phrase in phrases:
        for match in phrase.pattern.finditer(joined):
            first = words[bisect.bisect_right(starts, match.start()) - 1]
            yield Hit(text.count("\n", 0, first.start()) + 1, match[0], phrase.better)


def tracked_files() -> list[str]:
    """List the Python and Markdown files that git tracks, and the new ones it doesn't ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted({name for name in output.splitlines() if (ROOT / name).exists()})


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the files, or report on them; return the exit status."""
    parser = argparse.ArgumentParser(description="Reject banned phrases.")
    parser.add_argument("paths", nargs="*", help="files relative to the root; default: all")
    parser.add_argument("--report", action="store_true", help="count the phrases of each file")
    parser.add_argument("--write-todo", action="store_true", help=f"write {TODO.name}")
    options = parser.parse_args(arguments)

    phrases = [Phrase.parse(line) for line in read_lines(PHRASES)]
    names = options.paths or tracked_files()
    hits = {
        name: sorted(
            find_hits(Path(name), (ROOT / name).read_text(encoding="utf-8"), phrases),
            key=lambda hit: hit.line,
        )
        for name in names
    }
    if options.report:
        return _report(hits)
    if options.write_todo:
        return _write_todo(hits)
    return _check(hits, set(read_lines(TODO)), complete=not options.paths)


def _report(hits: dict[str, list[Hit]]) -> int:
    counts = {name: len(found) for name, found in hits.items() if found}
    for name in sorted(counts, key=lambda name: -counts[name]):
        print(f"{counts[name]:5} {name}")
    print(f"{sum(counts.values()):5} in {len(counts)} of {len(hits)} files")
    return 0


def _write_todo(hits: dict[str, list[Hit]]) -> int:
    header = (
        "# Files with banned phrases that are still to be rewritten: see tools/check_words.py.\n"
    )
    TODO.write_text(header + "".join(f"{name}\n" for name in hits if hits[name]), encoding="utf-8")
    return 0


def _check(hits: dict[str, list[Hit]], todo: set[str], *, complete: bool) -> int:
    problems = [
        f"{name}:{hit.line}: {hit.found!r}; better: {hit.better}"
        for name, found in hits.items()
        if name not in todo
        for hit in found
    ]
    done = {name for name in todo if not hits.get(name, not complete)}
    problems += [f"{name}: no banned phrases: remove it from {TODO.name}" for name in sorted(done)]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


if __name__ == "__main__":
    sys.exit(main())
