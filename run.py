"""Set up and run: `python run.py demo`, `python run.py test`, `python run.py` for the list.

Standard library only. The environment is made on first use, and made anew when Python,
pyproject.toml or constraints.txt change. Two variables of the shell steer it: VENV, where it
is (.venv), and CONSTRAINTS, what pip is told about versions (-c constraints.txt).
"""

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(
        f"composable needs Python 3.10 or newer; this is {sys.version.split()[0]}. "
        "Name another: make test PYTHON=python3.12, or python3.12 run.py test"
    )

ROOT = Path(__file__).resolve().parent
VENV = ROOT / Path(os.environ.get("VENV", ".venv")).expanduser()
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
EXE = ".exe" if os.name == "nt" else ""
STAMP = VENV / ".ready"
CONSTRAINTS = os.environ.get("CONSTRAINTS", "-c constraints.txt")

BEARTYPE = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
# All of them run, even if one fails. The tests come last, so that pytest has the last word.
CHECKS = {
    "format": "ruff format --check .",
    "lint": "ruff check .",
    "types": "mypy",
    "imports": "lint-imports --no-logo",
    "docs": "sphinx-build -q -W --keep-going docs docs/_build/html",
    "shapes": (
        "pytest -q -n 2 --tb=short tests/functional -m 'not compile' "
        f"--hypothesis-profile=quick '--jaxtyping-packages=composable.functional,{BEARTYPE}'"
    ),
    "tests": "pytest -q -n 2 --tb=short --durations=10",
}


def run(*command: str, **variables: str) -> int:
    """Run a program of the environment; return its exit status."""
    env = {**os.environ, **variables}
    program = str(BIN / (command[0] + EXE))
    return subprocess.run([program, *command[1:]], env=env, stdin=subprocess.DEVNULL).returncode


def setup(extra: str = "dev") -> None:
    """Make the environment, unless it stands: with everything, or with the demo extra."""
    files = Path("pyproject.toml").read_text() + Path("constraints.txt").read_text()
    digest = hashlib.sha256((files + CONSTRAINTS).encode()).hexdigest()[:16]
    python = sys.version.split()[0]
    stamp = STAMP.read_text().split() if STAMP.exists() else []
    if stamp in ([python, digest, extra], [python, digest, "dev"]):  # dev holds all the others
        return
    if not (BIN / f"python{EXE}").exists() or (stamp and stamp[0] != python):
        if importlib.util.find_spec("ensurepip") is None:
            sys.exit(
                "This Python cannot make environments: its ensurepip is missing. Install your "
                "system's venv package (Debian and Ubuntu: apt install python3-venv), or name "
                "another Python with PYTHON=."
            )
        options = ["--clear"] if stamp else []
        if subprocess.run([sys.executable, "-m", "venv", *options, str(VENV)]).returncode:
            sys.exit(f"No environment could be made at {VENV}: see above.")
    STAMP.unlink(missing_ok=True)
    print(f"Installing into {VENV} (minutes the first time: torch is large)", flush=True)
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    options = [*quiet, *shlex.split(CONSTRAINTS), "--no-input", "-e", f".[{extra}]"]
    if run("python", "-m", "pip", "install", *options):
        sys.exit("Installing failed: see pip's message above.")
    STAMP.write_text(f"{python} {digest} {extra}\n")


def demo(*args: str) -> int:
    """Train on digits, with and without methods; nothing is downloaded."""
    setup("demo")
    return run("python", "examples/digits.py", *args)


def test(*names: str) -> int:
    """Run every check, as CI does; or those that are named: run.py test lint types."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        sys.exit(f"No such check: {', '.join(unknown)}. There are: {', '.join(CHECKS)}.")
    setup("dev")
    failed = []
    for name in names or CHECKS:
        print(f"\n=== {name}: {CHECKS[name]}", flush=True)
        start = time.perf_counter()
        # One thread each: the workers share the cores, and the last bits depend on the number.
        if run(*shlex.split(CHECKS[name]), OMP_NUM_THREADS="1", MPLBACKEND="Agg"):
            failed.append(name)
        if name != "tests":  # pytest ends with a line of its own
            outcome = "FAILED" if name in failed else "ok"
            print(f"--- {name}: {outcome}, {time.perf_counter() - start:.0f} s", flush=True)
    if failed:
        print(f"\nFAILED checks: {', '.join(failed)}")
    return len(failed)


def docs() -> int:
    """Build the documentation into docs/_build/html."""
    return test("docs")


def bench(*args: str) -> int:
    """Measure what the Trainer costs beside a plain loop."""
    setup("demo")
    return run("python", "benchmarks/overhead.py", *args)


def format() -> int:
    """Format the code and mend what the linter can."""
    setup("dev")
    return run("ruff", "format", ".") or run("ruff", "check", "--fix", ".")


def clean() -> int:
    """Remove the environment, the caches and the built documentation."""
    caches = [path for path in Path().glob(".*_cache") if path.is_dir()]
    made_here = [VENV] if STAMP.exists() else []
    for folder in [*made_here, *caches, Path(".hypothesis"), Path("docs/_build")]:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    tasks = {task.__name__: task for task in (demo, test, docs, bench, format, setup, clean)}
    name, *arguments = sys.argv[1:] or ["help"]
    if name in tasks:
        sys.exit(tasks[name](*arguments))
    for task in tasks.values():
        print(f"python run.py {task.__name__:8}{task.__doc__}")
    sys.exit(0 if name in ("help", "--help") else f"There is no task {name!r}.")
