"""Install the wheel of a folder outside of the repository, and run the demo with it.

    python -m tools.run_wheel dist

The dependencies come from this environment. The demo trains a hundredth of its steps.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def main() -> None:
    """Run the demo; a failing command ends with its output and its exit status."""
    (wheel,) = Path(sys.argv[1]).glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        site, place = Path(folder, "site"), Path(folder, "elsewhere")
        place.mkdir()
        for name in ("demo.py", "small_gpt.py"):
            shutil.copy(EXAMPLES / name, place)
        install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site]
        subprocess.run([sys.executable, *install, wheel.resolve()], check=True, cwd=place)
        outside = {"cwd": place, "env": {**os.environ, "PYTHONPATH": str(site)}}
        where = "import composable; print(composable.__file__)"
        found = subprocess.check_output([sys.executable, "-c", where], text=True, **outside)
        if not Path(found.strip()).is_relative_to(site):
            sys.exit(f"the demo would run with {found.strip()}, and not with the wheel")
        demo = ["demo.py", "--seeds", "1", "--share", "0.01"]
        subprocess.run([sys.executable, *demo], check=True, **outside)


if __name__ == "__main__":
    main()
