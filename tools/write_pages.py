"""Write the exports of the package and the generated parts of the documentation.

python -m tools.write_pages             # check the properties of new functions
python -m tools.write_pages --matrix    # check those of all functions: takes minutes
python -m tools.write_pages --exports   # write the exports only
"""

import argparse
from pathlib import Path

from tools.exports import PACKAGES, exports

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Write what is out of date, and print its path."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--matrix", action="store_true", help="check the properties of all again")
    parser.add_argument("--exports", action="store_true", help="write no pages")
    given = parser.parse_args()
    for name in PACKAGES:  # before anything imports the package
        package = ROOT / "composable" / name
        write(package / "__init__.py", exports(package))
    if given.exports:
        return

    from tests.support.cases import all_function_cases
    from tools import pages

    recorded = {} if given.matrix else pages.recorded_answers()
    rows = [row for _, row in all_function_cases()]
    asked = pages.ask(row for row in rows if row.name not in recorded)
    for path, render in pages.pages({**recorded, **asked}).items():
        write(path, render())


def write(path: Path, text: str) -> None:
    """Write a file unless it has this text."""
    if path.read_text() != text:
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
