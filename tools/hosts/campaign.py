"""Runs on two hosts with a fault, and a restart after it."""

import os
import random
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import attrs

from tools.hosts.faults import FAULTS, PHASES
from tools.hosts.network import Hosts, Running, wait

SCRIPT = Path(__file__).with_name("train.py")
ENGINES = ("ddp", "exact", "fsdp2")
BEYOND = 30.0
"""Every host ends after `timeout=` and at most so many seconds."""
LIMIT = 150.0
"""How many seconds a run may take that nothing breaks, on a busy machine."""
STATUS = {"error": range(1, 256), "save": [143], "nothing": [0]}
NAMED = re.compile(r"ProcessError: .*\brank \d.*\bnode\d")


@attrs.frozen
class Case:
    """A fault of one of two hosts, in a phase of a run."""

    fault: str
    phase: str = "step"
    host: int = attrs.field(default=1, converter=int)
    engine: str = "ddp"
    timeout: float = 5.0
    later: float = 0.0
    """Seconds from the beginning of the phase to the fault."""


@attrs.frozen
class Outcome:
    """What became of a run: the seconds from the fault to the end of each host, and errors."""

    case: Case
    seconds: dict[int, float]
    wrong: list[str]

    def __str__(self) -> str:
        case, ends = self.case, [f"{host}: {s:5.1f} s" for host, s in self.seconds.items()]
        what = f"{case.fault:9} host {case.host} {case.phase:10} {case.engine:5}"
        return f"{what} ends {' '.join(ends)}  {', '.join(self.wrong) or 'ok'}"


def launch(host: int, *arguments: object, **options: object) -> list[str]:
    """Return the command of a host that starts the processes of the script."""
    given = {"nproc": 1, "world_size": 2, "node_rank": host, "master_addr": "node0", **options}
    shown = [f"--{name}={value}" for name, value in given.items()]
    return [sys.executable, "-m", "composable", "launch", *shown, str(SCRIPT), *map(str, arguments)]


def start(hosts: Hosts, folder: Path, case: Case, name: str, **given: object) -> Running:
    """Start the run of a case on both hosts, with options of the launcher."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in [*folder.glob("trace*"), *folder.glob("here*"), *folder.glob("hang*")]:
        file.unlink()
    options, started = ["--engine", case.engine, "--timeout", case.timeout], {}
    for host in (0, 1):
        command = launch(host, folder, *options, timeout=60, **given)
        variables = FAULTS[case.fault].variables if host == case.host else {}
        started[host] = hosts.start(host, command, folder / f"{name}{host}.log", **variables)
    return started


def reaches(folder: Path, case: Case, started: Running) -> bool:
    """Wait until the host of the fault is in its phase, after some batches."""
    trace, end = folder / f"trace{case.host}", time.monotonic() + LIMIT
    while time.monotonic() < end and not any(one.poll() for one in started.values()):
        lines = trace.read_text().split("\n")[:-1] if trace.exists() else []
        for phase, batch in map(str.split, lines):
            if phase == case.phase and (int(batch) >= 4 or phase == "start"):
                time.sleep(case.later)
                return True
        time.sleep(0.02)
    return False


def saved(folder: Path) -> int:
    """Return the batch of the newest checkpoint, or 0."""
    names = [one.name for one in (folder / "saves").glob("*-ba*") if "." not in one.name]
    return max((int(name.rpartition("ba")[2]) for name in names), default=0)


def weights(folder: Path) -> bytes:
    """Return the file of the weights that a run wrote at its end."""
    with suppress(FileNotFoundError):
        return (folder / "weights.safetensors").read_bytes()
    return b""


def run(hosts: Hosts, folder: Path, case: Case, whole: bytes | None = None) -> Outcome:
    """Run until a fault, and once more after it; compare the weights with a whole run."""
    fault, host = FAULTS[case.fault], case.host
    with fault.around(hosts, host):
        started = start(hosts, folder, case, "first")
        if not reaches(folder, case, started):
            return Outcome(case, {}, ["never began"])
        since, before = time.monotonic(), saved(folder)
        fault.do(hosts, host, folder)
        limit = case.timeout + BEYOND if fault.ends == "error" else LIMIT
        ends = wait(started, since, limit)
    if case.fault == "power":
        del ends[host]
    wrong = [f"hang of host {one}" for one, (status, _) in ends.items() if status is None]
    for one, (status, _) in ends.items():
        said = (folder / f"first{one}.log").read_text(errors="replace")
        if status is not None and status not in STATUS[fault.ends]:
            wrong.append(f"status {status} of host {one}")
        if fault.ends == "error" and one != host and not NAMED.search(said):
            wrong.append(f"no rank and host in the error of host {one}")
    for one in (0, 1):
        hosts.signal(one, 9, ranks=False)
    hosts.interface(host, "up")
    hosts.cable(host, "up")
    if whole is not None:
        if saved(folder) < before:
            wrong.append("lost")
        again = start(hosts, folder, attrs.evolve(case, timeout=60, fault="none"), "second")
        last = wait(again, time.monotonic(), LIMIT)
        if any(status != 0 for status, _ in last.values()) or weights(folder) != whole:
            wrong.append("different")
    return Outcome(case, {one: after for one, (_, after) in ends.items()}, wrong)


def drawn(count: int, seed: int) -> Iterator[Case]:
    """Yield cases: all faults in turn, with the other choices drawn from a seed."""
    draws, names = random.Random(seed), [name for name in FAULTS if name != "none"]
    for number in range(count):
        fault, engine = names[number % len(names)], ENGINES[number % len(ENGINES)]
        phase = draws.choice(PHASES if FAULTS[fault].ends == "error" else PHASES[1:])
        yield Case(fault, phase, draws.randrange(2), engine, later=draws.uniform(0, 0.2))


def campaign(count: int, folder: Path, seed: int = 0) -> list[Outcome]:
    """Run cases, two at a time, since hosts mostly wait; print what became of each."""
    whole: dict[str, bytes] = {}

    def one(number: int, case: Case) -> Outcome:
        place = folder / str(number)
        with Hosts(2, place / "hosts", job=f"{os.getpid()}-{number}") as hosts:
            found = run(hosts, place / "run", case, whole.get(case.engine))
        whole.setdefault(case.engine, weights(place / "run"))
        print(f"{number:3} {found}", flush=True)
        return found

    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(one, range(-3, 0), [Case("none", engine=name) for name in ENGINES]))
        return first + list(pool.map(one, range(count), drawn(count, seed)))
