"""A campaign of kills of runs in an object store, each on a machine that is lost with its disk.

    python -m tools.kill_campaign --remote 200

Every run saves at each batch or two to a bucket of one S3 server. At moments drawn from a seed, its
process is killed, and the next one starts on a machine with an empty disk, or with the same disk.
In other cases it lives on, or stops for a while and continues, while the next one takes over: it
must end with a `TakenOverError`. After each kill, every checkpoint with a manifest in the bucket
must be whole, and one must be as new as the newest whose manifest was ever there. At the end, the
weights must equal an uninterrupted run's, and each step must be in the logs once.
"""

import csv
import hashlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from composable import Callback
from composable.checkpoint.errors import CheckpointError, TakenOverError
from composable.checkpoint.files import verify
from composable.core.logger import Logger
from composable.core.state import State
from composable.loggers import CSVLogger, JSONLinesLogger
from tests.support.data import shuffling_loader
from tests.support.models import conv_net
from tests.support.own_run import OwnRun
from tests.support.runs import adam, make_trainer
from tools.kill_campaign import MEMORY, RESULT, digest, feed
from tools.kill_shards import end_all

BUCKET = "bucket"
EPOCHS, EXAMPLES = 3, 18  # 15 batches
TAKEN = 3
"""The exit status of a process that was taken over."""
WAYS = ("lost",) * 4 + ("same disk",) * 2 + ("lives", "stops")
"""What becomes of a process: killed, with its disk or not, or alive when the next one starts."""
LIMIT = 120.0


class Slow(Callback):
    """Takes some time for each batch, and notes that training has begun."""

    def __init__(self, begun: Callable[[], None], seconds: float) -> None:
        self.begun, self.seconds = begun, seconds

    def batch_start(self, state: State, logger: Logger) -> None:
        self.begun()
        time.sleep(self.seconds)


@attrs.frozen
class Trained:
    """A kind of run with the Trainer."""

    options: Mapping[str, Any] = attrs.field(factory=dict)
    seconds: float = 0.01
    """The time of a batch."""
    logs: bool = True

    def train(self, folder: str, begun: Callable[[], None]) -> str:
        options = {"save_interval": "1ba", "save_num_checkpoints_to_keep": 2, **self.options}
        trainer = make_trainer(
            conv_net(),
            shuffling_loader(EXAMPLES, images=True),
            max_duration=f"{EPOCHS}ep",
            optimizers=adam,
            callbacks=[Slow(begun, self.seconds)],
            loggers=[
                JSONLinesLogger(f"{folder}/metrics.jsonl"),
                CSVLogger(f"{folder}-logs/metrics.csv"),
            ],
            save_folder=folder,
            autoresume=True,
            **options,
        )
        trainer.fit()
        return digest(trainer.state)


@attrs.frozen
class Looped:
    """A loop written by hand."""

    run: OwnRun = attrs.field(factory=OwnRun)
    logs: bool = False

    def train(self, folder: str, begun: Callable[[], None]) -> str:
        def note(batch: int) -> None:
            begun()
            time.sleep(0.004)

        bits = hashlib.sha256()
        with redirect_stdout(sys.stderr):
            feed(bits, self.run.train(folder, note=note))
        return bits.hexdigest()


KINDS: dict[str, Trained | Looped] = {
    "one kept": Trained({"save_num_checkpoints_to_keep": 1}),
    "two kept, in the background": Trained({"save_in_background": True}),
    "one kept, in the background": Trained(
        {"save_num_checkpoints_to_keep": 1, "save_in_background": True}, seconds=0.03
    ),
    "two kept, each second batch": Trained({"save_interval": "2ba"}, seconds=0.04),
    "own loop": Looped(),
    "own loop, a stream": Looped(OwnRun("stateful stream", save_interval="2ba")),
}


@attrs.frozen
class Outcome:
    """What became of one run."""

    kills: int = 0
    """How many processes were killed while they ran."""
    taken_over: int = 0
    """How many ended because another one had taken over."""
    hung: int = 0
    """How many did not end."""
    lost: int = 0
    """How often a checkpoint that was in the bucket was gone, and no newer one was there."""
    broken: int = 0
    """How many checkpoints with a manifest in the bucket were not whole."""
    failed: int = 0
    """How many processes ended with another error."""
    repeated: int = 0
    """How many logs did not have each step once."""
    different: int = 0
    """Whether the weights differ from an uninterrupted run's."""


# --- the server and what is in its bucket


def serve(folder: Path) -> int:
    """Start a process with a server, which notes each manifest that it gets."""
    if child := os.fork():
        return child
    from tests.support.object_store import Server

    class Noting(Server):
        def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
            statuses: list[str] = []

            def respond(status: str, *headers: Any) -> Any:
                statuses.append(status)
                return start_response(status, *headers)

            answer = super().__call__(environ, respond)
            path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
            if method == "PUT" and path.endswith("/manifest.json") and statuses[0][:3] == "200":
                with (folder / "manifests.txt").open("a") as file:
                    file.write(f"{path}\n")
            return answer

    address = Noting().address
    (folder / "new").write_text(address)
    (folder / "new").rename(folder / "address")
    while True:
        time.sleep(60)


@attrs.define
class Bucket:
    """The bucket of a server in another process."""

    folder: Path
    client: Any

    def paths(self, prefix: str) -> list[str]:
        found = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in found for one in page.get("Contents", ())]

    def read(self, path: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=BUCKET, Key=path)["Body"].read()
        return content

    def newest_ever(self, run: str) -> int:
        """Return the batch of the newest checkpoint whose manifest was ever in the bucket."""
        notes = self.folder / "manifests.txt"
        lines = notes.read_text().splitlines() if notes.exists() else []
        return max((batch_of(line) for line in lines if f"/{run}/" in line), default=0)

    def checkpoints(self, run: str) -> tuple[int, list[str]]:
        """Return the batch of the newest whole checkpoint, and what is wrong with others."""
        newest, faults, paths = 0, [], self.paths(f"{run}/")
        for manifest in [path for path in paths if path.endswith("/manifest.json")]:
            name = manifest.rpartition("/")[0]
            with TemporaryDirectory(dir=MEMORY) as copy:
                for path in [one for one in paths if one.startswith(f"{name}/")]:
                    Path(copy, path.rpartition("/")[2]).write_bytes(self.read(path))
                try:
                    verify(Path(copy))
                except CheckpointError as error:
                    faults.append(f"{name}: {error}")
                else:
                    newest = max(newest, batch_of(manifest))
        return newest, faults

    def settled(self, run: str) -> tuple[int, list[str]]:
        """Return the same, when another process may be deleting checkpoints in the meantime."""
        for _ in range(3):
            try:
                newest, faults = self.checkpoints(run)
            except self.client.exceptions.NoSuchKey:
                faults = ["files vanish"]
            if not faults:
                break
            time.sleep(0.2)
        return newest, faults

    def wrong_logs(self, run: str) -> list[str]:
        """Return the logs that don't have each batch once."""
        batches = list(range(1, EPOCHS * -(-EXAMPLES // 4) + 1))
        steps = [json.loads(line) for line in self.read(f"{run}/steps.jsonl").splitlines()]
        lines = [json.loads(line) for line in self.read(f"{run}/metrics.jsonl").splitlines()]
        text = self.read(f"{run}-logs/metrics.csv").decode()
        rows = list(csv.DictReader(io.StringIO(text)))
        shown = {
            "steps.jsonl": [one["batch"] + 1 for one in steps],
            "metrics.jsonl": [one["batch"] for one in lines if "loss/train" in one],
            "metrics.csv": [int(one["batch"]) for one in rows if one["loss/train"]],
        }
        return [f"{name} has {seen}" for name, seen in shown.items() if seen != batches]


def batch_of(path: str) -> int:
    """Return the batch in the path of a manifest of a checkpoint, which may be a second one."""
    return int(path.split("/")[-2].rpartition("ba")[2].partition(".")[0])


@contextmanager
def bucket(folder: Path) -> Iterator[Bucket]:
    """Yield a bucket of a server in another process, which the environment names."""
    server = serve(folder)
    try:
        while not (folder / "address").exists():
            time.sleep(0.01)
        os.environ |= {
            "AWS_ENDPOINT_URL": (folder / "address").read_text(),
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield Bucket(folder, prepared())
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def prepared() -> Any:
    """Return a client, after loading once what each process would load."""
    import boto3
    import botocore.session
    import fsspec

    session = botocore.session.Session()
    client = boto3.Session(botocore_session=session).client("s3")
    client.create_bucket(Bucket=BUCKET)
    loader = session.get_component("data_loader")  # it has read the description of S3
    botocore.session.create_loader = lambda *_: loader
    fsspec.filesystem("s3").find(BUCKET)
    return client


# --- runs


@attrs.define
class Machines:
    """The machines of one run, and its processes."""

    folder: Path
    kind: Trained | Looped
    run: str
    count: int = 0

    def start(self, *, same_disk: bool = False) -> int:
        """Start or resume the run in a process of the next machine, or of the last one."""
        self.count += not same_disk
        disk = self.folder / f"disk-{self.count}"
        (self.folder / RESULT).unlink(missing_ok=True)
        if child := os.fork():
            return child
        status = 1
        try:
            with (self.folder / "errors.txt").open("a") as errors:
                os.dup2(errors.fileno(), 2)
            os.environ["XDG_CACHE_HOME"] = str(disk)
            begun = self.folder / f"begun-{os.getpid()}"
            result = self.kind.train(f"s3://{BUCKET}/{self.run}", partial(begun.touch))
            (self.folder / f"{RESULT}-{os.getpid()}").write_text(result)
            threading._shutdown()  # type: ignore[attr-defined]  # waits for uploads, as at an exit
            status = 0
        except TakenOverError:
            traceback.print_exc()
            status = TAKEN
        except BaseException:
            traceback.print_exc()
        finally:
            print(f"process {os.getpid()} on disk {self.count}: {status}", file=sys.stderr)
            os._exit(status)

    def until_begun(self, child: int) -> None:
        """Wait until the process trains, or has ended."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and not (self.folder / f"begun-{child}").exists():
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
            time.sleep(0.002)

    def result(self, child: int) -> str:
        path = self.folder / f"{RESULT}-{child}"
        return path.read_text() if path.exists() else "none"

    def note(self, text: str) -> None:
        with (self.folder / "errors.txt").open("a") as errors:
            errors.write(f"--- {text}\n")


def one_run(
    machines: Machines, place: Bucket, expected: str, seconds: float, draw: random.Random
) -> Outcome:
    """Kill a run some times, or let it be taken over, let it end, and compare."""
    count, run, way = Counter[str](), machines.run, ""
    alive: list[int] = []
    for _ in range(draw.choice([2, 3, 4])):
        child = machines.start(same_disk=way == "same disk")
        way = draw.choice(WAYS)
        if draw.random() < 0.8 or way in ("lives", "stops"):
            machines.until_begun(child)
            time.sleep(draw.uniform(0, seconds))
        else:
            time.sleep(draw.uniform(0, 3.0))
        machines.note(f"{child}, {way}")
        if way in ("lives", "stops"):
            os.kill(child, signal.SIGSTOP if way == "stops" else signal.SIGCONT)
            alive.append(child)
            continue
        os.kill(child, signal.SIGKILL)
        count["kills"] += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        if way == "lost":
            shutil.rmtree(machines.folder / f"disk-{machines.count}", ignore_errors=True)
        check(machines, place, count)
    last = machines.start(same_disk=way == "same disk")
    if alive:
        machines.until_begun(last)
        time.sleep(draw.uniform(0, 1.5 * seconds))
    for child in alive:
        os.kill(child, signal.SIGCONT)
    status, *others = end_all([last, *alive])
    count["hung"] += [status, *others].count(None)
    codes = [os.waitstatus_to_exitcode(one) for one in others if one is not None]
    count["taken_over"] += codes.count(TAKEN)
    count["failed"] += sum(code not in (0, TAKEN) for code in codes)
    for _ in range(3):
        check(machines, place, count)
        if status is None or os.waitstatus_to_exitcode(status) != TAKEN:
            break
        count["taken_over"] += 1
        last = machines.start()  # it had read the folder before the process before it saved
        (status,) = end_all([last])
    count["failed"] += status not in (0, None)
    count["different"] += status == 0 and machines.result(last) != expected
    if status == 0 and machines.kind.logs and (wrong := place.wrong_logs(run)):
        machines.note(f"{wrong}\n{place.read(f'{run}/events.jsonl').decode()}")
        count["repeated"] += len(wrong)
    return Outcome(**count)


def check(machines: Machines, place: Bucket, count: Counter[str]) -> None:
    """Count the checkpoints that are lost, and those that are not whole."""
    run, ever = machines.run, place.newest_ever(machines.run)
    newest, faults = place.settled(run)
    machines.note(f"{newest} of {ever} in the bucket, {faults}")
    count["broken"] += len(faults)
    if newest < ever:
        machines.note(f"lost: {place.paths(run)}")
        count["lost"] += 1


def campaign(kills: int, seed: int, names: Sequence[str] = ()) -> tuple[Counter[str], list[str]]:
    """Kill runs, count their outcomes, and collect the output of those that failed.

    Args:
        kills: The number of kills, or a few more.
        seed: The seed of the moments.
        names: The names of the kinds, of which each run has the next one; by default all.
    """
    names = names or tuple(KINDS)
    draw, found, faults = random.Random(seed), Counter[str](), []
    with TemporaryDirectory(dir=MEMORY) as scratch, bucket(Path(scratch)) as place:
        whole = {name: uninterrupted(Path(scratch, name), KINDS[name]) for name in names}
        for number, name in zip(itertools.count(), itertools.cycle(names)):
            if found["kills"] >= kills:
                break
            folder = Path(scratch, f"run-{number}")
            folder.mkdir()
            machines = Machines(folder, KINDS[name], f"run-{number}")
            outcome = one_run(machines, place, *whole[name], draw)
            counts = attrs.asdict(outcome)
            found.update(runs=1, **counts)
            print(f"run {number}, {name}: {outcome}", file=sys.stderr)
            if any(counts[one] for one in counts if one not in ("kills", "taken_over")):
                errors = (folder / "errors.txt").read_text()
                faults.append(f"run {number}, {name}: {outcome}\n{errors}")
                print(errors, file=sys.stderr)
            shutil.rmtree(folder)
    return found, faults


def uninterrupted(folder: Path, kind: Trained | Looped) -> tuple[str, float]:
    """Return the outcome of a run that is not killed, and how long it trains in seconds."""
    folder.mkdir()
    machines = Machines(folder, kind, f"whole-{len(list(folder.parent.iterdir()))}")
    child = machines.start()
    machines.until_begun(child)
    began = time.monotonic()
    if any(end_all([child])):
        raise RuntimeError((folder / "errors.txt").read_text())
    return machines.result(child), time.monotonic() - began
