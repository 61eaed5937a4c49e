"""Hosts: each has an address, a name, /etc/hosts and a disk, and a cable to a switch."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

MOST = 8
PREFIX = "cmp"
"""What the names of all namespaces of this tool begin with."""
ROOT = Path(__file__).parents[2]
# The name and the disk are those that the command sees.
_ENTER = 'echo "$1" >/proc/sys/kernel/hostname && mount --bind "$2" "$3" && shift 3 && exec "$@"'
Running = dict[int, subprocess.Popen[bytes]]


def ip(command: str) -> str:
    """Run `ip` of iproute2, and return its output."""
    done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {command}: {done.stderr.strip()}")
    return done.stdout


@cache
def why_not() -> str | None:
    """Return why hosts cannot be made on this machine, or None."""
    name = f"{PREFIX}{os.getpid()}-probe"
    try:
        ip(f"netns add {name}")
        ip(f"netns exec {name} unshare --uts --mount true")
        ip(f"netns del {name}")
    except OSError as error:
        return f"ip netns is not allowed here: {error}"
    return None


class Hosts:
    """Hosts on one switch, all in namespaces: no packet leaves them.

    Args:
        count: Number of hosts, at most 8.
        folder: Where the disks are.
        names: How /etc/hosts names a host for itself: "plain", "debian" (127.0.1.1), or "none".
        job: Names the namespaces.
    """

    def __init__(self, count: int, folder: Path, names: str = "plain", job: object = None) -> None:
        if not 1 <= count <= MOST:
            raise ValueError(f"count={count} must be from 1 to {MOST}.")
        self.count, self.folder, self.names = count, folder, names
        self.prefix = f"{PREFIX}{os.getpid() if job is None else job}-"
        self.switch, self.disk = f"{self.prefix}switch", folder / "disk"
        self.variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(self.disk)}

    def space(self, host: int) -> str:
        """Return the name of the namespace of a host."""
        return f"{self.prefix}{host}"

    def up(self) -> None:
        """Make the switch and the hosts."""
        self.disk.mkdir(parents=True, exist_ok=True)
        ip(f"netns add {self.switch}")
        ip(f"-n {self.switch} link add sw0 type bridge")
        ip(f"-n {self.switch} link set sw0 up")
        for host in range(self.count):
            space, etc = self.space(host), Path("/etc/netns", self.space(host))
            for folder in (etc, Path(f"{self.disk}{host}")):
                folder.mkdir(parents=True, exist_ok=True)
            named = {one: f"10.77.0.1{one}" for one in range(self.count)}
            named[host] = {"plain": named[host], "debian": "127.0.1.1", "none": ""}[self.names]
            lines = [f"{address} node{one}\n" for one, address in named.items() if address]
            (etc / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
            (etc / "resolv.conf").write_text("")
            ip(f"netns add {space}")
            ip(f"-n {self.switch} link add p{host} type veth peer name eth0 netns {space}")
            ip(f"-n {self.switch} link set p{host} master sw0 up")
            ip(f"-n {space} addr add 10.77.0.1{host}/24 dev eth0")
            for name in ("lo", "eth0"):
                ip(f"-n {space} link set {name} up")

    def __enter__(self) -> "Hosts":
        try:
            self.up()
        except BaseException:
            remove(self.prefix)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        remove(self.prefix)

    def command(self, host: int, command: Sequence[object]) -> list[str]:
        """Return the command that runs another one on a host, in the process of the first."""
        enter = ["unshare", "--uts", "--mount", "sh", "-c", _ENTER, "sh", f"node{host}"]
        disks = [f"{self.disk}{host}", self.disk]
        return ["ip", "netns", "exec", *map(str, [self.space(host), *enter, *disks, *command])]

    def start(
        self, host: int, command: Sequence[object], log: Path, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host; both of its outputs are written to a file."""
        with log.open("wb") as file:
            return subprocess.Popen(
                self.command(host, command),
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.variables, **variables},
                start_new_session=True,
            )

    # --- what happens to a host ---

    def cable(self, host: int, state: str) -> None:
        """Pull the cable, "down", or plug it, "up", at the switch: the host does not notice."""
        ip(f"-n {self.switch} link set p{host} {state}")

    def interface(self, host: int, state: str) -> None:
        """Take the interface of a host down or up: its kernel knows."""
        ip(f"-n {self.space(host)} link set eth0 {state}")

    def signal(self, host: int, number: int, *, ranks: bool = True) -> None:
        """Send a signal to the ranks on a host, or to all of its processes."""
        send(self.space(host), number, b"\0RANK=" if ranks else b"")

    @contextmanager
    def wire(self, host: int, delay: float, loss: float) -> Iterator[None]:
        """Put a wire between a host and the switch, with a delay in ms and a loss in percent."""
        inside, names = f"-n {self.switch}", (f"a{host}", f"b{host}")
        ip(f"{inside} link add w{host} type bridge")
        ip(f"{inside} link set w{host} up")
        for end, bridge in zip(names, ("sw0", f"w{host}"), strict=True):
            ip(f"{inside} tuntap add mode tap name {end}")
            ip(f"{inside} link set {end} master {bridge} up")
        ip(f"{inside} link set p{host} master w{host}")
        relay = [sys.executable, Path(__file__).with_name("wire.py"), *names, delay, loss]
        process = subprocess.Popen(["ip", "netns", "exec", self.switch, *map(str, relay)])
        try:
            yield
        finally:
            process.kill()
            process.wait()
            ip(f"{inside} link set p{host} master sw0")


def send(space: str, number: int, mark: bytes = b"") -> None:
    """Send a signal to the processes in a namespace that have something in their environment."""
    for pid in map(int, ip(f"netns pids {space}").split()):
        with suppress(OSError):  # it has ended
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, number)


def remove(prefix: str = PREFIX, *, left: bool = False) -> None:
    """Remove the namespaces of a prefix, or those that a tool has left; end what runs in them."""
    for space in [line.split()[0] for line in ip("netns list").splitlines()]:
        pid = space.removeprefix(PREFIX).partition("-")[0]
        if space.startswith(prefix) and not (left and Path("/proc", pid).exists()):
            send(space, signal.SIGKILL)
            ip(f"netns del {space}")
            shutil.rmtree(Path("/etc/netns", space), ignore_errors=True)


def wait(started: Running, since: float, seconds: float) -> dict[int, tuple[int | None, float]]:
    """Wait for processes; return the status of each, None if it still runs, and its time."""
    ends: dict[int, tuple[int | None, float]] = {}
    while len(ends) < len(started) and time.monotonic() < since + seconds:
        for host, process in started.items():
            if host not in ends and process.poll() is not None:
                ends[host] = (process.returncode, time.monotonic() - since)
        time.sleep(0.02)
    return {host: ends.get(host, (None, time.monotonic() - since)) for host in started}
