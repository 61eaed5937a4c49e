"""Runs of trainers in new processes, which are forked from one that imported the trainer."""

import importlib
import multiprocessing
import os
import runpy
import sys
import traceback
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.trainers.job import Job


def adapter(name: str) -> Any:
    """Load the module of a trainer: one of this package, or a file."""
    if name.endswith(".py"):
        return SimpleNamespace(**runpy.run_path(name))
    return importlib.import_module(f"benchmarks.trainers.{name}")


def in_a_new_process(name: str, job: Job) -> str:
    """Run a job, and return the kind of its error, or ""."""
    job.folder.mkdir(parents=True, exist_ok=True)
    error = job.folder / "error.txt"
    error.unlink(missing_ok=True)
    processes = multiprocessing.get_context("forkserver")
    if not name.endswith(".py"):
        processes.set_forkserver_preload([f"benchmarks.trainers.{name}"])
    process = processes.Process(target=train, args=(name, job))
    process.start()
    process.join()
    if process.exitcode == 0:
        return ""
    return error.read_text() if error.exists() else f"signal {-(process.exitcode or 0)}"


def train(name: str, job: Job) -> None:
    """Train in this process, and write the kind of an error to a file."""
    torch.set_num_threads(1)
    with (job.folder / "output.txt").open("a") as output:
        os.dup2(output.fileno(), 1), os.dup2(output.fileno(), 2)
    try:
        adapter(name).train(job)
    except Exception as error:
        traceback.print_exc()
        (job.folder / "error.txt").write_text(type(error).__name__)
        sys.exit(1)
