"""A campaign of kills: runs that are ended by SIGKILL at random moments, and resumed.

    python -m tools.kill_campaign --runs 200

Every run saves at every batch, into one folder that keeps the newest two. It is killed, once or
several times, at moments drawn from a seed, and each time resumed in a new process. Its outcome is
compared with that of an uninterrupted run. Half of the runs write in the background.
"""

import argparse
import hashlib
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
from torch import Tensor

from composable import Callback
from composable.callbacks import CheckpointSaver
from composable.checkpoint import files
from composable.core.logger import Logger
from composable.core.state import State
from composable.optim import cosine
from tests.support.algorithms import six_algorithms
from tests.support.data import shuffling_loader
from tests.support.models import conv_net
from tests.support.runs import adam, make_trainer

EPOCHS = 4
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where files are safe from SIGKILL, though not from a power failure, and soon written."""
SAVED, RESULT = "saved.txt", "result.txt"


@attrs.frozen
class Outcome:
    """What became of one run."""

    kills: int
    """How often it was killed while it ran."""
    lost: int
    """How often a checkpoint that was there was gone afterwards."""
    broken: int
    """How many checkpoints were found that were not whole."""
    different: bool
    """Whether what it left behind is not what the run left that was never killed."""


class Notes(Callback):
    """Writes down which batch is safe: its checkpoint was written, not just begun."""

    def __init__(self, folder: Path, *, background: bool) -> None:
        self.folder, self.background = folder, background

    def after_save(self, state: State, logger: Logger) -> None:
        safe = state.timestamp.batch - self.background
        descriptor = os.open(self.folder / SAVED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{safe}\n".encode())
        os.close(descriptor)


def train(folder: Path, *, background: bool) -> None:
    """Resume the run of a folder, finish it, and write a digest of its final state."""
    run = make_trainer(
        conv_net(),
        shuffling_loader(18, images=True),
        algorithms=six_algorithms(),
        optimizers=adam,
        schedulers=cosine(),
        max_duration=f"{EPOCHS}ep",
        callbacks=[
            CheckpointSaver(
                folder / "checkpoints",
                save_interval="1ba",
                num_checkpoints_to_keep=2,
                background=background,
            ),
            Notes(folder, background=background),
        ],
        load_path=newest(folder),
        check_effects=False,
    )
    run.fit()
    (folder / RESULT).write_text(digest(run.state))


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run."""
    checkpoints = folder / "checkpoints"
    whole = files.find(checkpoints)[0] if checkpoints.is_dir() else []
    return whole[0].path if whole else None


def digest(state: State) -> str:
    """Return a digest of the final state of a run."""
    bits = hashlib.sha256()
    feed(bits, [state.model.state_dict(), [o.state_dict() for o in state.optimizers]])
    feed(bits, [state.memory, state.timestamp.batch, state.timestamp.epoch])
    return bits.hexdigest()


def feed(bits: Any, tree: Any) -> None:
    if isinstance(tree, Tensor):
        bits.update(tree.detach().contiguous().numpy().tobytes())
    elif hasattr(tree, "items"):
        for key, value in tree.items():
            bits.update(repr(key).encode())
            feed(bits, value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            feed(bits, value)
    else:
        bits.update(repr(tree).encode())


def in_a_process(folder: Path, *, background: bool) -> int:
    """Start or resume the run in another process."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with (folder / "errors.txt").open("a") as errors:
            os.dup2(errors.fileno(), 2)
        train(folder, background=background)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def one_run(folder: Path, expected: str, seconds: float, draw: random.Random) -> Outcome:
    """Kill a run some times, let it end, and compare."""
    background, wanted = draw.random() < 0.5, draw.choice([1, 1, 2, 3])
    kills = lost = broken = 0
    for _ in range(wanted):
        child = in_a_process(folder, background=background)
        time.sleep(draw.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        if not (folder / "checkpoints").is_dir():
            continue
        whole, faulty = files.find(folder / "checkpoints", thorough=True)
        broken += len(faulty)
        notes = (folder / SAVED).read_text().split() if (folder / SAVED).exists() else []
        safe = int(notes[-1]) if notes else 0
        lost += safe > max((found.manifest.batch for found in whole), default=0)
    _, status = os.waitpid(in_a_process(folder, background=background), 0)
    result = (folder / RESULT).read_text() if (folder / RESULT).exists() else "none"
    return Outcome(kills, lost, broken, bool(status) or result != expected)


def campaign(runs: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Kill runs, count their outcomes, and collect the output of those that failed."""
    draw, found, faults = random.Random(seed), Counter[str](), []
    with TemporaryDirectory(dir=MEMORY) as scratch:
        folder = Path(scratch, "whole")
        folder.mkdir()
        began = time.monotonic()
        os.waitpid(in_a_process(folder, background=False), 0)
        seconds = time.monotonic() - began
        expected = (folder / RESULT).read_text()
        for number in itertools.count():
            if found["runs"] == runs:
                break
            folder = Path(scratch, str(number))
            folder.mkdir()
            outcome = one_run(folder, expected, seconds, draw)
            # One that ended before it was to be killed is looked at, but doesn't count.
            found.update(
                runs=bool(outcome.kills), **{k: int(v) for k, v in attrs.asdict(outcome).items()}
            )
            if outcome.lost or outcome.broken or outcome.different:
                faults.append(f"run {number}: {outcome}\n{(folder / 'errors.txt').read_text()}")
    return found, faults


def main() -> int:
    """Run a campaign and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found, faults = campaign(given.runs, given.seed)
    print(*faults, sep="\n")
    print(", ".join(f"{name} {found[name]}" for name in ("runs", *attrs.fields_dict(Outcome))))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
