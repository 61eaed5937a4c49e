"""What can go wrong with a host, and what the run does then."""

import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import attrs

from tools.hosts.network import Hosts

PHASES = ("start", "step", "save", "evaluation")
CLOCK = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


@attrs.frozen
class Fault:
    """A fault of a host.

    Args:
        do: Does it to a host; the last argument is the folder of the traces.
        ends: What the run does: "error", "save" (it ends with 143), or "nothing" (it trains on).
        around: What holds from the start of the run to its end.
        variables: Of the environment of the host.
    """

    do: Callable[[Hosts, int, Path], None] = lambda hosts, host, folder: None
    ends: str = "error"
    around: Callable[[Hosts, int], AbstractContextManager[None]] = lambda hosts, host: nullcontext()
    variables: dict[str, str] = attrs.field(factory=dict)


def _power(hosts: Hosts, host: int, folder: Path) -> None:
    hosts.cable(host, "down")
    hosts.signal(host, signal.SIGKILL, ranks=False)


def _blip(hosts: Hosts, host: int, folder: Path) -> None:
    hosts.cable(host, "down")
    time.sleep(2)
    hosts.cable(host, "up")


def _sent(number: int) -> Callable[[Hosts, int, Path], None]:
    return lambda hosts, host, folder: hosts.signal(host, number)


FAULTS = {
    "none": Fault(ends="nothing"),
    "cable": Fault(lambda hosts, host, folder: hosts.cable(host, "down")),
    "interface": Fault(lambda hosts, host, folder: hosts.interface(host, "down")),
    "power": Fault(_power),
    "kill": Fault(_sent(signal.SIGKILL)),
    "stop": Fault(_sent(signal.SIGSTOP)),
    "hang": Fault(lambda hosts, host, folder: (folder / f"hang{host}").touch()),
    "terminate": Fault(_sent(signal.SIGTERM), ends="save"),
    "blip": Fault(_blip, ends="nothing"),
    "wire": Fault(ends="nothing", around=lambda hosts, host: hosts.wire(host, 50, 5)),
}
if CLOCK is not None:
    ahead = {"LD_PRELOAD": str(CLOCK), "FAKETIME": "+2d"}
    FAULTS["clock"] = Fault(ends="nothing", variables=ahead)
