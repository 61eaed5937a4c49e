"""A campaign of kills: runs that are ended by SIGKILL at random moments, and resumed.

    python -m tools.kill_campaign --kills 500
    python -m tools.kill_campaign --loops 100
    python -m tools.kill_campaign --back-ends 20
    python -m tools.kill_campaign --remote 200

Every run saves at every batch, into one folder that keeps the newest two. It is killed, once or
several times, at moments drawn from a seed, and each time resumed in a new process. Its outcome is
compared with an uninterrupted run's of the same configuration. With `--loops`, trainings in the
loops of `tests/integrations/killed_loops.py` are. With `--back-ends`, runs that log to all back
ends are killed so many times, and what their readers show is compared. With `--remote`, the runs of
`tools.kill_remote` are, which are on machines that are lost.
"""

import argparse
import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import attrs
import torch.distributed as dist
from torch import Tensor
from torch.optim.lr_scheduler import StepLR

from composable import Callback
from composable.algorithms import EMA, GradientClipping
from composable.callbacks import CheckpointSaver
from composable.checkpoint import files
from composable.core.logger import Logger
from composable.core.state import State
from composable.distributed import DDP, FSDP2
from composable.loggers import JSONLinesLogger
from composable.optim import cosine
from tests.integrations.killed_loops import SAVED, SCRIPTS, Script, note
from tests.loggers.readers import BACK_ENDS
from tests.support import logged_run
from tests.support.algorithms import six_algorithms
from tests.support.data import batches, shuffling_loader
from tests.support.models import conv_net
from tests.support.runs import adam, make_trainer, sgd
from tools.kill_shards import end_all

EPOCHS = 4
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where files are safe from SIGKILL, though not from a power failure, and soon written."""
RESULT = "result.txt"
LIMIT = 60.0
"""How long a process waits for another one that was killed, in seconds."""
FILES = ("csv", "tensorboard")
MOMENTS = ("batch_start", "batch_end", "after_save", "eval_start", "eval_end")
METRICS = ("loss/train", "lr", "metrics/eval/loss")


class Kind(Protocol):
    """A kind of run."""

    processes: int

    def prepare(self) -> None:
        """Do what all processes need, before any of them is started."""

    def train(self, folder: Path) -> None:
        """Resume the run of a folder, finish it, and write a digest of its outcome."""

    def checkpoints(self, folder: Path) -> tuple[list[int], int]:
        """Return the batches of the whole checkpoints of a run, and the number of broken ones."""


@attrs.frozen
class Loop:
    """A training in a loop of another library, in one process."""

    script: Script
    processes: int = 1

    def prepare(self) -> None:
        import_module(self.script.library)  # once, and not in each process

    def train(self, folder: Path) -> None:
        bits = hashlib.sha256()
        with redirect_stdout(sys.stderr):
            feed(bits, self.script.train(folder))
        (folder / RESULT).write_text(bits.hexdigest())

    def checkpoints(self, folder: Path) -> tuple[list[int], int]:
        return self.script.checkpoints(folder)


LOOPS = {name: Loop(script) for name, script in SCRIPTS.items()}


@attrs.frozen
class Configuration:
    """A kind of run with the Trainer."""

    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Arguments of the Trainer."""
    background: bool = False
    """Whether it writes checkpoints in the background."""
    logs: bool = False
    """Whether it evaluates, and logs to files."""
    processes: int = 1

    def prepare(self) -> None:
        pass

    def train(self, folder: Path) -> None:
        train(folder, self)

    def checkpoints(self, folder: Path) -> tuple[list[int], int]:
        whole, broken = files.find(folder / "checkpoints", thorough=True)
        return [found.manifest.batch for found in whole], len(broken)


CONFIGURATIONS = {
    "foreground": Configuration({"grad_accum": 2}),
    "background": Configuration({"nonfinite_loss": "skip"}, background=True),
    "bfloat16": Configuration({"precision": "amp_bf16", "optimizers": sgd}),
    "logs": Configuration(logs=True),
    "DDP": Configuration({"parallel": "ddp"}, processes=2),
    "exact DDP": Configuration(
        {"parallel": DDP(shards=2, exact=True)}, background=True, processes=2
    ),
    "FSDP2": Configuration({"parallel": FSDP2(shards=2), "algorithms": [EMA("2ba")]}, processes=2),
    "FSDP2 with a torch scheduler": Configuration(
        {
            "parallel": FSDP2(shards=2),
            "algorithms": [GradientClipping("norm", 0.5)],
            "schedulers": partial(StepLR, step_size=7, gamma=0.5),
            "grad_accum": 2,
        },
        background=True,
        processes=2,
    ),
}


@attrs.frozen
class Outcome:
    """What became of one run."""

    kills: int
    """How many processes were killed while they ran."""
    hung: int
    """How many did not end, after another one was killed or at the end."""
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
        note(self.folder, state.timestamp.batch - self.background)


def train(folder: Path, kind: Configuration) -> None:
    """Resume the run of a folder, finish it, and write a digest of its outcome."""
    logging: dict[str, Any] = {}
    if kind.logs:
        loggers = [BACK_ENDS[name].make(folder) for name in FILES]
        loggers.append(JSONLinesLogger(folder / "metrics.jsonl"))
        logging = {"loggers": loggers, "eval_dataloader": batches([4], images=True)}
    options = {
        "algorithms": six_algorithms(),
        "optimizers": adam,
        "schedulers": cosine(),
        **kind.options,
    }
    run = make_trainer(
        conv_net(),
        shuffling_loader(18, images=True),
        max_duration=f"{EPOCHS}ep",
        callbacks=[
            CheckpointSaver(
                folder / "checkpoints",
                save_interval="1ba",
                num_checkpoints_to_keep=2,
                background=kind.background,
            ),
            Notes(folder, background=kind.background),
        ],
        load_path=newest(folder),
        check_effects=False,
        **{**options, **logging},
    )
    run.fit()
    result = digest(run.state)
    if not dist.is_initialized() or dist.get_rank() == 0:
        logged = [BACK_ENDS[n].series(folder, m) for n in FILES for m in METRICS if kind.logs]
        (folder / RESULT).write_text(f"{result} {logged}")


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run."""
    checkpoints = folder / "checkpoints"
    whole = files.find(checkpoints)[0] if checkpoints.is_dir() else []
    return whole[0].path if whole else None


def digest(state: State) -> str:
    """Return a digest of the final state of a run; all processes call this together."""
    bits = hashlib.sha256()
    feed(bits, [state.model.state_dict(), [o.state_dict() for o in state.optimizers]])
    feed(bits, [state.memory, state.timestamp.batch, state.timestamp.epoch])
    return bits.hexdigest()


def feed(bits: Any, tree: Any) -> None:
    if isinstance(tree, Tensor):
        tree = getattr(tree, "full_tensor", lambda: tree)()
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


def begin(folder: Path, kind: Kind) -> list[int]:
    """Start or resume the run in other processes."""
    store = folder / f"store-{time.monotonic_ns()}"
    return [start(folder, kind, store, rank) for rank in range(kind.processes)]


def start(folder: Path, kind: Kind, store: Path, rank: int) -> int:
    """Start or resume one of the processes of the run."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with (folder / "errors.txt").open("a") as errors:
            os.dup2(errors.fileno(), 2)
        if kind.processes > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=kind.processes,
                timeout=timedelta(seconds=LIMIT),
            )
        kind.train(folder)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def one_run(
    folder: Path, kind: Kind, expected: str, seconds: float, draw: random.Random
) -> Outcome:
    """Kill a run some times, let it end, and compare."""
    kills = hung = lost = broken = 0
    for _ in range(draw.choice([1, 1, 2, 3])):
        children = begin(folder, kind)
        time.sleep(draw.uniform(0, seconds))
        for child in children if draw.random() < 0.5 else [draw.choice(children)]:
            os.kill(child, signal.SIGKILL)
        statuses = end_all(children)
        kills += sum(status is not None and os.WIFSIGNALED(status) for status in statuses)
        hung += statuses.count(None)
        if not (folder / "checkpoints").is_dir():
            continue
        whole, faulty = kind.checkpoints(folder)
        broken += faulty
        notes = (folder / SAVED).read_text().split() if (folder / SAVED).exists() else []
        safe = int(notes[-1]) if notes else 0
        lost += safe > max(whole, default=0)
    statuses = end_all(begin(folder, kind))
    result = (folder / RESULT).read_text() if (folder / RESULT).exists() else "none"
    different = None not in statuses and (any(statuses) or result != expected)
    with (folder / "errors.txt").open("a") as errors:
        errors.write(f"ended with {statuses}, {result[:16]} for {expected[:16]}\n")
    return Outcome(kills, hung + statuses.count(None), lost, broken, different)


def campaign(
    kills: int,
    seed: int,
    names: Sequence[str] = (),
    table: Mapping[str, Kind] = CONFIGURATIONS,
) -> tuple[Counter[str], list[str]]:
    """Kill runs, count their outcomes, and collect the output of those that failed.

    Args:
        kills: The number of kills, or a few more.
        seed: The seed of the moments.
        names: The names of the kinds, of which each run has the next one; by default all.
        table: The kinds of runs.
    """
    names = names or tuple(table)
    for name in names:
        table[name].prepare()
    draw, found, faults = random.Random(seed), Counter[str](), []
    with TemporaryDirectory(dir=MEMORY) as scratch:
        whole = {name: uninterrupted(Path(scratch, name), table[name]) for name in names}
        for number, name in zip(itertools.count(), itertools.cycle(names)):
            if found["kills"] >= kills:
                break
            folder = Path(scratch, str(number))
            folder.mkdir()
            outcome = one_run(folder, table[name], *whole[name], draw)
            # One that ended before it was to be killed is looked at, but doesn't count.
            found.update(
                runs=bool(outcome.kills), **{k: int(v) for k, v in attrs.asdict(outcome).items()}
            )
            if outcome.hung or outcome.lost or outcome.broken or outcome.different:
                errors = (folder / "errors.txt").read_text()
                faults.append(f"run {number}, {name}: {outcome}\n{errors}")
    return found, faults


def uninterrupted(folder: Path, kind: Kind) -> tuple[str, float]:
    """Return the outcome of a run that is not killed, and how long it takes in seconds."""
    folder.mkdir()
    began = time.monotonic()
    if any(end_all(begin(folder, kind))):
        raise RuntimeError((folder / "errors.txt").read_text())
    return (folder / RESULT).read_text(), time.monotonic() - began


# --- back ends


def kill_back_ends(kills: int, seed: int) -> tuple[int, list[str]]:
    """Kill runs that log to all back ends, and return what their readers show wrongly.

    Args:
        kills: The number of kills, three a run or fewer.
        seed: The seed of the moments.

    Returns:
        The number of runs, and a line for each metric of which a step is missing or repeated.
    """
    draw, wrong = random.Random(seed), []
    for number in itertools.count(1):
        with TemporaryDirectory() as scratch:
            moments = []
            for batch in sorted(draw.sample(range(1, logged_run.BATCHES), 3)):
                wait = "" if draw.random() < 0.5 else f" {draw.uniform(0.001, 0.6):.3f}"
                moments.append(f"{draw.choice(MOMENTS)} {batch}{wait}")
            kills -= log_in_processes(Path(scratch), [*moments, "end"])
            wrong += [f"run {number}: {line}" for line in wrong_steps(Path(scratch))]
        if kills <= 0:
            return number, wrong
    raise AssertionError


def wrong_steps(folder: Path) -> list[str]:
    """Return a line for each metric of which a back end does not show every step once."""
    every = list(range(1, logged_run.BATCHES + 1))
    expected = {
        "loss/train": every,
        "lr": every,
        "metrics/eval/loss": every[2 :: logged_run.INTERVAL],
    }
    return [
        f"{name} has the steps {shown} of {metric}"
        for name, one in BACK_ENDS.items()
        for metric, steps in expected.items()
        if (shown := [step for step, _ in one.series(folder, metric)]) != steps
    ]


def log_in_processes(folder: Path, moments: Sequence[str]) -> int:
    """Start and resume the run of the back ends, and return how often it was killed."""
    command = [sys.executable, "-m", "tests.support.logged_run", str(folder), "0.3", *moments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.split().count(str(-signal.SIGKILL))


def main() -> int:
    """Run a campaign and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loops", type=int, metavar="KILLS")
    parser.add_argument("--back-ends", type=int, metavar="KILLS")
    parser.add_argument("--remote", type=int, metavar="KILLS")
    given = parser.parse_args()
    if given.back_ends:
        logged_run.quiet()
        runs, wrong = kill_back_ends(given.back_ends, given.seed)
        print(*wrong, sep="\n")
        print(f"runs {runs}, kills {given.back_ends}, wrong {len(wrong)}")
        return 1 if wrong else 0
    if given.remote:
        from tools import kill_remote  # on use: it imports this module

        found, faults = kill_remote.campaign(given.remote, given.seed)
    elif given.loops:
        found, faults = campaign(given.loops, given.seed, table=LOOPS)
    else:
        found, faults = campaign(given.kills, given.seed)
    print(*faults, sep="\n")
    print(", ".join(f"{name} {number}" for name, number in found.items()))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
