"""Ask trainers five questions, each by runs in new processes, and print their answers.

    python -m benchmarks.trainers                    # those that are installed
    python -m benchmarks.trainers lightning          # one of them
    python -m benchmarks.trainers my_trainer.py      # yours: see docs/your_trainer.md
    python -m benchmarks.trainers --save             # writes docs/evidence/trainers.json

Trainers: composable, lightning, huggingface, composer, accelerate. They take the options that their
guides recommend. `tools/peer_environment FOLDER` makes an environment that has all of them.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.trainers.job import Job
from benchmarks.trainers.processes import adapter, in_a_new_process
from benchmarks.trainers.questions import QUESTIONS

NEEDS = {
    "composable": "composable",
    "lightning": "lightning",
    "huggingface": "transformers",
    "composer": "composer",
    "composer_link": "composer",
    "accelerate": "accelerate",
}
RECORD = Path(__file__).parents[2] / "docs/evidence/trainers.json"


def ask(name: str, folder: Path) -> dict[str, Any]:
    """Return the answers of a trainer, its version and the losses of the first question."""
    found: dict[str, Any] = {"version": adapter(name).version(), "answers": {}}
    for question, answer in QUESTIONS.items():
        does, seen = answer(partial(in_a_new_process, name), folder)
        found["answers"][question] = [does, seen]
        said = "yes" if does else "no"
        print(f"{name} {found['version']} {said:4} {question}: {seen}", flush=True)
    for run in ("whole", "killed"):
        found[run] = [round(loss, 5) for _, loss in Job(folder / run).losses()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainers", nargs="*", help="names, or files with train(job)")
    parser.add_argument("--save", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answers:
        with tempfile.TemporaryDirectory() as folder:
            found = ask(arguments.trainers[0], Path(folder))
        arguments.answers.write_text(json.dumps(found))
        return
    installed = [name for name, need in NEEDS.items() if importlib.util.find_spec(need)]
    for name in arguments.trainers:
        if name not in NEEDS and not name.endswith(".py"):
            parser.error(f"{name!r} must be a file *.py or one of {', '.join(NEEDS)}")
        if name in NEEDS and name not in installed:
            parser.error(f"{name} is not installed: run `tools/peer_environment FOLDER`")
    record = json.loads(RECORD.read_text())["trainers"] if RECORD.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.trainers or installed:
            answers = Path(folder) / "answers.json"  # of a process that imports one trainer alone
            command = [sys.executable, "-m", "benchmarks.trainers", name, "--answers", str(answers)]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            record[name] = json.loads(answers.read_text())
    if arguments.save:
        whole = {"torch": torch.__version__, "trainers": record}
        RECORD.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
