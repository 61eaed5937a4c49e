"""Print the functions and files that a batch, a save and a resume pass, and their CPU time.

    python -m tools.run_paths            # the table of docs/design.md
    python -m tools.run_paths --files    # the files too

Frames are calls of functions and resumptions of generators, as `sys.setprofile` sees them. They
depend a little on the version of Python, which inlines comprehensions from 3.12 on.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import composable
from composable import Algorithm, Trainer
from composable.algorithms import EMA, LabelSmoothing, MixUp
from composable.trainer.loop import train_batch

PACKAGE = Path(composable.__file__).parent
HEADER = ("what", "frames", "files", "changes of file")


def trace(function: Callable[[], object]) -> list[CodeType]:
    """Return the functions of the package that a call enters, in order."""
    codes: list[CodeType] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            codes.append(frame.f_code)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return codes


def build(*algorithms: Algorithm, **options: Any) -> Trainer:
    """Return a Trainer of a tiny model, with five batches."""
    torch.manual_seed(0)
    batch = torch.randn(8, 4), torch.arange(8) % 3
    return Trainer(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
        train_dataloader=[batch] * 5,
        loss_fn=nn.functional.cross_entropy,
        optimizers=partial(torch.optim.SGD, lr=0.1),
        algorithms=list(algorithms),
        max_duration="1ep",
        progress_bar=False,
        seed=0,
        **options,
    )


def trace_batch(*algorithms: Algorithm) -> list[CodeType]:
    """Return the functions from the third batch to the fourth."""
    codes = trace(build(*algorithms).fit)
    starts = [i for i, code in enumerate(codes) if code is train_batch.__code__]
    return codes[starts[2] : starts[3]]


def trace_batches() -> dict[str, list[CodeType]]:
    """Return the functions of batches with nothing registered, and with one algorithm."""
    return {
        "a batch, nothing registered": trace_batch(),
        "a batch with MixUp": trace_batch(MixUp()),
    }


def trace_save(folder: Path) -> list[CodeType]:
    """Return the functions of a save between two calls."""
    trainer = build()
    trainer.fit()
    trainer.save_checkpoint(folder / "imports")
    return trace(lambda: trainer.save_checkpoint(folder / "saved"))


def trace_resume(folder: Path) -> dict[str, list[CodeType]]:
    """Return the functions of the construction of a Trainer that resumes.

    And which of them are in files that the construction of another Trainer does not pass.
    """
    build(load_path=folder / "saved")
    codes = trace(lambda: build(load_path=folder / "saved"))
    others = {code.co_filename for code in trace(build)}
    return {
        "the construction of a Trainer that resumes": codes,
        "of these, what resumes": [code for code in codes if code.co_filename not in others],
    }


def traces() -> dict[str, list[CodeType]]:
    """Return the functions of everything that is measured."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            **trace_batches(),
            "a batch with MixUp, LabelSmoothing and EMA": trace_batch(
                MixUp(), LabelSmoothing(), EMA(half_life="2ba")
            ),
            "a save of a tiny model": trace_save(Path(folder)),
            **trace_resume(Path(folder)),
        }


def cpu_ms(function: Callable[[], object], repeats: int) -> float:
    """Return the median of the milliseconds of CPU time of several calls."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        found.append(1e3 * (time.process_time() - began))
    return round(statistics.median(found), 1)


def cpu_times(repeats: int = 15) -> dict[str, float]:
    """Return the milliseconds of CPU time of a save, and of a resume beside the construction."""
    trainer = build()
    trainer.fit()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "saved")
        save = partial(trainer.save_checkpoint, path, overwrite=True)
        save(), build(load_path=path)  # imports
        whole = cpu_ms(lambda: build(load_path=path), repeats)
        return {
            "ms of CPU of a save of a tiny model": cpu_ms(save, repeats),
            "ms of CPU of a Trainer that resumes": whole,
            "ms of CPU of a resume of a tiny model": round(whole - cpu_ms(build, repeats), 1),
        }


def files_of(codes: list[CodeType]) -> list[str]:
    """Return the file of each function, relative to the package."""
    return [str(Path(code.co_filename).relative_to(PACKAGE)) for code in codes]


def row(what: str, codes: list[CodeType]) -> tuple[str, ...]:
    """Return the row of a trace: frames, files and changes from one file to another."""
    files = files_of(codes)
    changes = sum(one != other for one, other in pairwise(files))
    return what, f"{len(files):,}", str(len(set(files))), f"{changes:,}"


def table(found: dict[str, list[CodeType]]) -> str:
    """Return the table of docs/design.md."""
    rows = [HEADER, ("---", *["--:"] * 3), *(row(*item) for item in found.items())]
    return "\n".join(f"| {' | '.join(one)} |" for one in rows)


if __name__ == "__main__":
    measured = traces()
    print(table(measured))
    for name, milliseconds in cpu_times().items():
        print(f"{milliseconds} {name}")
    if "--files" in sys.argv[1:]:
        for name, entered in measured.items():
            print(f"\n{name}:", *sorted(set(files_of(entered))), sep="\n  ")
