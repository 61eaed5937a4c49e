"""A campaign of kills: processes that write sharded checkpoints are ended by SIGKILL, and resumed.

    python -m tools.kill_shards --runs 100 --size 2

The processes of a run save at every step, each its own part. At a moment drawn from a seed, one of
them is killed, or all. The others must notice and end. Then the newest checkpoint must be whole,
and at least as new as the last one that was reported as written. At the end the run is resumed in
new processes, and must be bit-identical to an uninterrupted run. Half of the runs overwrite
one checkpoint, the others write a new one at each step and keep the newest two.
"""

import argparse
import itertools
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import torch
import torch.distributed as dist

from composable.checkpoint import TensorShard, files, pack, read, read_shards, write
from composable.checkpoint.compare import digest
from composable.checkpoint.files import delete
from composable.checkpoint.shards import Region
from composable.distributed import Processes

STEPS, ROWS, COLUMNS = 24, 64, 256
LIMIT = 180.0
"""How long processes may take to end on a busy machine, in seconds."""
ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where files are safe from SIGKILL, though not from a power failure, and soon written."""


@attrs.frozen
class Outcome:
    """What became of one run."""

    kills: int
    """How many processes were killed while they ran."""
    hung: int
    """How many did not end after another one was killed."""
    lost: int
    """How often a checkpoint that was there was gone afterwards."""
    broken: int
    """How many checkpoints were found that were not whole."""
    different: bool
    """Whether the run differs from an uninterrupted run in any bit."""


def own_rows(processes: Processes) -> Region:
    """Return the part of the tensor that a process has: the last one has fewer rows."""
    most = -(-ROWS // processes.size)
    start = processes.rank * most
    return Region((start, 0), (min(most, ROWS - start), COLUMNS))


def train(folder: Path, processes: Processes, *, overwrite: bool) -> None:
    """Resume the run of a folder from its newest checkpoint, and finish it."""
    region = own_rows(processes)
    part, step = (
        torch.ones(region.sizes) + torch.arange(region.offsets[0], region.ends[0])[:, None],
        0,
    )
    newest = processes.broadcast(str(newest_of(folder) or ""))
    if newest:
        found = read_shards(newest, {"w": region})
        part, step = found.tensors["w"], found.data["step"]
    (folder / f"ready-{processes.rank}").touch()
    for now in range(step + 1, STEPS + 1):
        part = part * 1.25 + torch.full_like(part, now).sin()
        tensors, _ = pack({"now": torch.tensor(now), "twice": torch.arange(9.0) * now})
        target = folder / ("latest" if overwrite else f"ba{now}")
        write(
            target,
            {**tensors, "w": TensorShard(part, (ROWS, COLUMNS), region.offsets)},
            {"step": now},
            overwrite=True,
            info={"batch": now, "run": "it"},
            processes=processes,
        )
        note(folder / f"saved-{processes.rank}", now)
        if processes.is_main and not overwrite:
            delete(folder / f"ba{now - 2}", "it")


def note(path: Path, step: int) -> None:
    """Write down which step is safe."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{step}\n".encode())
    os.close(descriptor)


def newest_of(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run."""
    whole = files.find(folder)[0]
    return whole[0].path if whole else None


def start(folder: Path, store: Path, rank: int, size: int, *, overwrite: bool) -> int:
    """Start or resume one of the processes of a run."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with (folder / "errors.txt").open("a") as errors:
            os.dup2(errors.fileno(), 2)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=LIMIT),
        )
        processes = Processes.current()
        train(folder, processes, overwrite=overwrite)
        processes.barrier()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def begin(folder: Path, size: int, *, overwrite: bool) -> list[int]:
    """Start or resume a run, and return its processes once all of them train."""
    store = folder / f"store-{time.monotonic_ns()}"
    for rank in range(size):
        (folder / f"ready-{rank}").unlink(missing_ok=True)
    children = [start(folder, store, rank, size, overwrite=overwrite) for rank in range(size)]
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if all((folder / f"ready-{rank}").exists() for rank in range(size)):
            break
        if any(os.waitid(os.P_PID, child, ENDED) for child in children):
            break
        time.sleep(0.001)
    return children


def end_all(children: Sequence[int]) -> list[int | None]:
    """Wait for processes, and return the status of each; None for one that had to be killed."""
    statuses: dict[int, int | None] = dict.fromkeys(children)
    end = time.monotonic() + LIMIT
    while None in statuses.values() and time.monotonic() < end:
        for child in [each for each, status in statuses.items() if status is None]:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                statuses[child] = status
        time.sleep(0.001)
    for child in [each for each, status in statuses.items() if status is None]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return list(statuses.values())


def one_run(folder: Path, size: int, expected: str, seconds: float, draw: random.Random) -> Outcome:
    """Kill processes of a run some times, let it end, and compare."""
    overwrite, kills, hung, lost, broken = draw.random() < 0.5, 0, 0, 0, 0
    for _ in range(draw.choice([1, 1, 2])):
        children = begin(folder, size, overwrite=overwrite)
        time.sleep(draw.uniform(0, seconds))
        for child in children if draw.random() < 0.4 else [draw.choice(children)]:
            os.kill(child, signal.SIGKILL)
        statuses = end_all(children)
        kills += sum(status is not None and os.WIFSIGNALED(status) for status in statuses)
        hung += statuses.count(None)
        whole, faulty = files.find(folder, thorough=True)
        broken += len(faulty)
        notes = [path.read_text().split() for path in folder.glob("saved-*")]
        safe = max((int(steps[-1]) for steps in notes if steps), default=0)
        lost += safe > max((found.manifest.batch for found in whole), default=0)
    statuses = end_all(begin(folder, size, overwrite=overwrite))
    return Outcome(kills, hung, lost, broken, any(statuses) or result_of(folder) != expected)


def result_of(folder: Path) -> str:
    """Return a digest of the newest checkpoint."""
    newest = newest_of(folder)
    contents = read(newest) if newest else None
    if contents is None or contents.data != {"step": STEPS}:
        return "unfinished"
    return " ".join(digest(tensor) for _, tensor in sorted(contents.tensors.items()))


def campaign(runs: int, seed: int, size: int = 2) -> tuple[Counter[str], list[str]]:
    """Kill runs, count their outcomes, and collect the output of those that failed."""
    draw, found, faults = random.Random(seed), Counter[str](), []
    with TemporaryDirectory(dir=MEMORY) as scratch:
        folder = Path(scratch, "whole")
        folder.mkdir()
        children = begin(folder, size, overwrite=False)
        began = time.monotonic()
        end_all(children)
        seconds, expected = time.monotonic() - began, result_of(folder)
        for number in itertools.count():
            if found["runs"] == runs:
                break
            folder = Path(scratch, str(number))
            folder.mkdir()
            outcome = one_run(folder, size, expected, seconds, draw)
            # One that ended before it was to be killed is looked at, but does not count.
            found.update(
                runs=bool(outcome.kills), **{k: int(v) for k, v in attrs.asdict(outcome).items()}
            )
            if outcome.hung or outcome.lost or outcome.broken or outcome.different:
                faults.append(f"run {number}: {outcome}\n{(folder / 'errors.txt').read_text()}")
    return found, faults


def main() -> int:
    """Run a campaign and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found, faults = campaign(given.runs, given.seed, given.size)
    print(*faults, sep="\n")
    print(", ".join(f"{name} {found[name]}" for name in ("runs", *attrs.fields_dict(Outcome))))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
