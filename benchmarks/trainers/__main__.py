"""Ask trainers four questions, each by runs in new processes, and print their answers.

    python -m benchmarks.trainers                    # those that are installed
    python -m benchmarks.trainers lightning          # one of them
    python -m benchmarks.trainers my_trainer.py      # yours: see docs/your_trainer.md
    python -m benchmarks.trainers --save             # writes docs/evidence/trainers.json

Trainers: composable, lightning, huggingface, composer, accelerate. They take the options that their
guides recommend. Lightning, Hugging Face's Trainer and Accelerate come with
`pip install ".[lightning,huggingface,accelerate]"`; Composer 0.32 pins an old PyTorch, so:

    pip install --no-deps mosaicml==0.32.1 mosaicml-cli torchvision
    pip install torch_optimizer tabulate "importlib-metadata<9" coolname py-cpuinfo arrow rich \
        ruamel.yaml validators questionary "gql[websockets]" prompt_toolkit backoff argcomplete
"""

import argparse
import importlib.util
import json
import runpy
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.trainers.job import Job
from benchmarks.trainers.questions import QUESTIONS

NEEDS = {
    "composable": "composable",
    "lightning": "lightning",
    "huggingface": "transformers",
    "composer": "composer",
    "accelerate": "accelerate",
}
RECORD = Path(__file__).parents[2] / "docs/evidence/trainers.json"


def adapter(name: str) -> Any:
    """Load the module of a trainer: one of this package, or a file."""
    if name.endswith(".py"):
        return SimpleNamespace(**runpy.run_path(name))
    return importlib.import_module(f"benchmarks.trainers.{name}")


def in_a_new_process(name: str, job: Job) -> str:
    """Run a job, and return the kind of its error, or ""."""
    job.folder.mkdir(parents=True, exist_ok=True)
    options = {**vars_of(job), "folder": str(job.folder)}
    command = [sys.executable, "-m", "benchmarks.trainers", name, "--job", json.dumps(options)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    (job.folder / "stderr.txt").write_text(ended.stderr)
    if ended.returncode == 0:
        return ""
    last = (ended.stderr.strip().splitlines() or [f"signal {-ended.returncode}"])[-1]
    return last.split(":")[0]


def vars_of(job: Job) -> dict[str, Any]:
    """Return the arguments of a job."""
    return {name: getattr(job, name) for name in Job.__annotations__}


def ask(name: str, folder: Path) -> dict[str, Any]:
    """Return the answers of a trainer, its version and the losses of the first question."""
    found: dict[str, Any] = {"version": adapter(name).version(), "answers": {}}
    for question, answer in QUESTIONS.items():
        does, seen = answer(partial(in_a_new_process, name), folder)
        found["answers"][question] = [does, seen]
        print(f"{name:12} {'yes' if does else 'no':4} {question}: {seen}", flush=True)
    for run in ("whole", "killed"):
        found[run] = [round(loss, 5) for _, loss in Job(folder / run).losses()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainers", nargs="*", help="names, or files with train(job)")
    parser.add_argument("--save", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.job:
        options = json.loads(arguments.job)
        adapter(arguments.trainers[0]).train(Job(**options | {"folder": Path(options["folder"])}))
        return
    installed = [name for name, need in NEEDS.items() if importlib.util.find_spec(need)]
    record = json.loads(RECORD.read_text())["trainers"] if RECORD.exists() else {}
    for name in arguments.trainers or installed:
        with tempfile.TemporaryDirectory() as folder:
            record[name] = ask(name, Path(folder))
    if arguments.save:
        whole = {"torch": torch.__version__, "trainers": record}
        RECORD.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
