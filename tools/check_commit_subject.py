"""Check the subject of a commit message: "area: imperative", at most 72 letters.

python tools/check_commit_subject.py FILE    FILE holds the message, as for git's commit-msg hook
"""

import re
import sys
from pathlib import Path

LIMIT = 72
_AUTOMATIC = re.compile(r"Merge |Revert |fixup! |squash! |amend! ")
_AREA = re.compile(r"[a-z0-9_.][\w./+, -]*: (?P<summary>\S.*)")
_NOT_IMPERATIVE = re.compile(
    r"(?!(?:embed|exceed|feed|need|proceed|seed|shed|speed|bring|ping|string)\b)"
    r"(?:\w+(?:ed|ing)|\w+[^aius\W]s)\b",
    re.IGNORECASE,
)


def subject_problems(subject: str) -> list[str]:
    """Return what is wrong with a subject; an empty list if nothing is."""
    if _AUTOMATIC.match(subject):
        return []
    problems = []
    if len(subject) > LIMIT:
        problems.append(f"it has {len(subject)} characters; at most {LIMIT} are allowed")
    if subject.endswith("."):
        problems.append("it ends with a period; remove it")
    area = _AREA.fullmatch(subject)
    if area is None:
        problems.append('it has no area; begin with one in lower case, such as "cutmix: "')
    elif word := _NOT_IMPERATIVE.match(area["summary"]):
        problems.append(f"{word[0]!r} is not an imperative; write what the commit does: add, fix")
    elif area["summary"][:1].isupper() and area["summary"][1:2].islower():
        problems.append("the summary begins with a capital; use lower case")
    return problems


def main(path: str) -> int:
    """Check the message in a file; return the exit status."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    subject = next((line for line in lines if line and not line.startswith("#")), "")
    problems = subject_problems(subject)
    for problem in problems:
        print(f"commit subject {subject!r}: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
